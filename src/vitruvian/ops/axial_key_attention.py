"""Attention to the memories of SAM 2: few channels, projected to keys with axial rotary positions, and narrow values.

A key is R (W m + b): a memory m [E], projected to D channels and rotated by its cell. The first half of the channels is
rotated by the column, the second half by the row, so the score of a query q is

    q · R (W m + b) = (u · [m, 1]) + (v · [m, 1]),   u = [W, b]ᵀ Rᵀ q by column,   v the same by row

On a CPU u and v are computed for each column and row of the grid, and keys not at all: 2 (E + 1) instead of D products
for each pair of a query and a memory. SAM 2 has E = 64 and D = 256.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitruvian.ops.dispatch import is_tensor_subclass, use_cpu_version
from vitruvian.ops.narrow_value_attention import narrow_value_attention
from vitruvian.ops.online_softmax import LOG2_E, OnlineSoftmax
from vitruvian.ops.rope import RopeTables, rotate_neighbors, rotate_pairs

_CPU_QUERIES, _CPU_KEYS = 256, 2048  # whose scores are computed at a time: 2 MiB, twice


def axial_key_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    projection: nn.Module,
    rotation: RopeTables,
    *,
    grid_hw: tuple[int, int],
    plain_tokens: int,
    implementation: str = "sdpa",
) -> Tensor:
    """Attend from rotated queries [B, N, D] to values [B, T·M + S, E], one head: [B, N, E].

    Args:
        q: Queries.
        keys: Keys before their projection and rotation [B, T·M + S, E]: T memories of M cells, and S other tokens.
        values: Values.
        projection: Linear layer from E to D channels.
        rotation: Cosines and sines of the M cells [M, D/2], as of `axial_rope_tables`.
        grid_hw: Height and width of the grid of cells.
        plain_tokens: S, the number of tokens at the end that are not rotated.
        implementation: That of `vitruvian.ops.attention`; "eager" keeps to plain torch operations.
    """
    if (
        implementation != "eager"
        and type(projection) is nn.Linear
        and projection.bias is not None
        and not is_tensor_subclass(projection.weight)
        and use_cpu_version("axial_key_attention", q, keys, values, projection.weight)
        and _saves_products(cells := keys.shape[1] - plain_tokens, grid_hw, *projection.weight.shape)
    ):
        return _axial_key_attention_cpu(q, keys, values, projection, rotation, grid_hw, count=cells // len(rotation[0]))
    k = rotate_pairs(projection(keys), rotation, heads=1, plain_tokens=plain_tokens)[:, 0]  # [B, T·M + S, D]
    return narrow_value_attention(q, k, values, implementation=implementation)


def _saves_products(keys: int, grid_hw: tuple[int, int], channels: int, memory_channels: int) -> bool:
    """Return whether the version for the CPU needs fewer products for a query."""
    return keys * 2 * (memory_channels + 1) + sum(grid_hw) * (memory_channels + 1) * channels // 2 < keys * channels


def _axial_key_attention_cpu(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    projection: nn.Linear,
    rotation: RopeTables,
    grid_hw: tuple[int, int],
    *,
    count: int,
) -> Tensor:
    """Attend to T = `count` memories and other tokens."""
    h, w = grid_hw
    by_column, by_row = _rotated_weights(projection, rotation, w)  # [w, E + 1, D/2], [h, E + 1, D/2]
    rows = min(h, max(1, _CPU_KEYS // (count * w)))
    scaled = (q * (LOG2_E * q.shape[2] ** -0.5)).transpose(1, 2).contiguous()  # [B, D, N]
    out, buffers = q.new_empty(*q.shape[:2], values.shape[2]), q.new_empty(2, rows * count * w * _CPU_QUERIES)
    for batch in range(len(q)):
        cells, tokens = _split_cells(keys[batch], count, grid_hw)
        with_ones = torch.cat((cells, cells.new_ones(h, count, w, 1)), dim=3)  # [h, T, w, E + 1]
        cell_values, token_values = _split_cells(values[batch], count, grid_hw)
        cell_values, plain_keys = cell_values.contiguous(), projection(tokens)
        for start in range(0, q.shape[1], _CPU_QUERIES):
            part = scaled[batch, :, start : start + _CPU_QUERIES]  # [D, n]
            n = part.shape[1]
            x_part, y_part = part.chunk(2)
            u = (by_column.flatten(0, 1) @ x_part).view(w, -1, n)  # [w, E + 1, n]
            v = (by_row.flatten(0, 1) @ y_part).view(h, -1, n)  # [h, E + 1, n]
            mean = OnlineSoftmax(n, values)
            if len(tokens):
                mean.add_(plain_keys @ part, token_values)
            for y in range(0, h, rows):
                block = with_ones[y : y + rows]  # [r, T, w, E + 1]
                # Two contiguous batches of products, which run in several threads, and their sum.
                scores, of_columns = (buffer[: block[..., 0].numel() * n] for buffer in buffers)
                scores = torch.bmm(block.flatten(1, 2), v[y : y + rows], out=scores.view(len(block), count * w, n))
                of_columns = of_columns.view(w, len(block) * count, n)
                torch.bmm(block.flatten(0, 1).transpose(0, 1), u, out=of_columns)
                scores.view(-1, w, n).add_(of_columns.transpose(0, 1))  # [r·T, w, n]
                mean.add_(scores.flatten(0, 1), cell_values[y : y + rows].flatten(0, 2))
            out[batch, start : start + n] = mean.result()
    return out


def _rotated_weights(projection: nn.Linear, rotation: RopeTables, width: int) -> tuple[Tensor, Tensor]:
    """Rotate the weights and bias of a projection to each column [w, E + 1, D/2] and row [h, E + 1, D/2]."""
    x_tables = [table.chunk(2, dim=1)[0][:width, None] for table in rotation]  # [w, 1, D/4] each
    y_tables = [table.chunk(2, dim=1)[1][::width, None] for table in rotation]  # [h, 1, D/4] each
    weights = torch.cat((projection.weight, projection.bias[:, None]), dim=1).T  # [E + 1, D]
    x_part, y_part = weights.chunk(2, dim=1)
    return rotate_neighbors(x_part, (x_tables[0], x_tables[1])), rotate_neighbors(y_part, (y_tables[0], y_tables[1]))


def _split_cells(x: Tensor, count: int, grid_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Split [T·M + S, E] into cells [h, T, w, E] and other tokens [S, E]."""
    cells = count * grid_hw[0] * grid_hw[1]
    return x[:cells].reshape(count, *grid_hw, -1).transpose(0, 1), x[cells:]
