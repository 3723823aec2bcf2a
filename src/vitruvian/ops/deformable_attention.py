"""Multi-scale deformable attention: each token attends to a few learned points around it in each feature level.

value [B, N, C] (levels one after the other), offsets [B, N, A, L, P, 2], scores [B, N, A, L, P] ─▶ [B, N, C]

A bilinear sample is a weighted sum of four pixels, so the operation is one weighted sum of 4·L·P rows of `value` for
each token and head. There are three versions. The Triton kernel does all of it in one pass. `embedding_bag` sums rows
of D contiguous channels; it is the version for the CPU. `grid_sample`, level by level, stores every sample; it exports
to other runtimes, runs on every device, and has the faster gradient on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, unflatten
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.ops.dispatch import triton_jit, use_triton, wants_grad
from vitruvian.ops.triton_import import tl, triton
from vitruvian.tensor_cache import cached_tensors

LevelSizes = tuple[tuple[int, int], ...]  # (height, width) of each level

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def deformable_attention(value: Tensor, offsets: Tensor, scores: Tensor, level_hw: LevelSizes) -> Tensor:
    """Sum bilinear samples around every token of every level; samples outside a level are 0.

    Args:
        value: Tokens of all levels [B, N, C], level by level, each in row-major order.
        offsets: Offsets (x, y) of the sampled points from the token's position, in pixels of the sampled level
            [B, N, A, L, P, 2].
        scores: Scores of the points [B, N, A, L, P]. The softmax over a head's points gives their weights.
        level_hw: Height and width of each level.

    Returns:
        [B, N, C] in the dtype of `value`. Coordinates, weights and sums are computed in float32.
    """
    if sum(height * width for height, width in level_hw) != value.shape[1]:
        raise InputError(
            f"value: expected one token for each pixel of {list(level_hw)}, got {value.shape[1]} tokens. "
            "Give the size of every level, in the order of the tokens."
        )
    if use_triton("deformable_attention", value, offsets, scores, dtypes=_DTYPES):
        return _deformable_attention_triton(value, offsets, scores, level_hw)
    heads, levels, points = scores.shape[2:]
    weights = unflatten(_short_softmax(scores.float().flatten(3)), -1, (levels, points))  # [B, N, A, L, P]
    center_x, center_y = _point_centers(level_hw, points, value.device)  # [N, 1, L·P] each
    moved = offsets.float().flatten(3, 4)  # [B, N, A, L·P, 2]
    x = unflatten(moved[..., 0] + center_x, -1, (levels, points))  # [B, N, A, L, P]
    y = unflatten(moved[..., 1] + center_y, -1, (levels, points))
    tokens = unflatten(value.float(), -1, (heads, -1))  # [B, N, A, D]
    exports = torch.compiler.is_exporting() or value.device.type not in ("cpu", "cuda")
    if exports or (value.is_cuda and wants_grad(value)):
        return _sum_of_grid_samples(tokens, level_hw, x, y, weights).to(value.dtype)
    return _sum_of_rows(tokens, level_hw, x, y, weights).to(value.dtype)


# ----------------------------------------------------------------------------------------------------------- torch


def _sum_of_grid_samples(value: Tensor, level_hw: LevelSizes, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Sum samples with one `grid_sample` a level.

    Args:
        value: Tokens [B, N, A, D] in float32.
        level_hw: Height and width of each level.
        x: Column of each sample, 0 at the center of the first pixel [B, Q, A, L, P].
        y: Row of each sample [B, Q, A, L, P].
        weights: Weight of each sample [B, Q, A, L, P].

    Returns:
        [B, Q, A·D].
    """
    B, _, A, _ = value.shape
    sizes = [height * width for height, width in level_hw]
    maps = torch.split(value.permute(0, 2, 3, 1).flatten(0, 1), sizes, dim=-1)  # [B·A, D, h·w] each
    parts = []
    for level, (height, width) in enumerate(level_hw):
        grid = torch.stack(((x[..., level, :] * 2 + 1) / width - 1, (y[..., level, :] * 2 + 1) / height - 1), dim=-1)
        samples = F.grid_sample(
            unflatten(maps[level], -1, (height, width)),  # [B·A, D, h, w]
            grid.transpose(1, 2).flatten(0, 1),  # [B·A, Q, P, 2]
            align_corners=False,
        )  # [B·A, D, Q, P]
        weight = weights[..., level, :].transpose(1, 2).flatten(0, 1)[:, None]  # [B·A, 1, Q, P]
        parts.append((samples * weight).sum(-1))  # [B·A, D, Q]
    total = unflatten(sum(parts[1:], start=parts[0]), 0, (B, A))  # [B, A, D, Q]
    return total.permute(0, 3, 1, 2).flatten(2)  # [B, Q, A·D]


def _sum_of_rows(value: Tensor, level_hw: LevelSizes, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Compute `_sum_of_grid_samples` as one weighted sum of table rows."""
    B, _, A, D = value.shape
    Q, P = x.shape[1], x.shape[-1]
    maps = torch.split(value.flatten(2), [height * width for height, width in level_hw], dim=1)
    # A border of zeros stands for everything outside: one row or column before, two after.
    grids = (unflatten(level, 1, hw) for level, hw in zip(maps, level_hw, strict=True))  # [B, h, w, A·D] each
    table = torch.cat([F.pad(grid, (0, 0, 1, 2, 1, 2)).flatten(1, 2) for grid in grids], dim=1)  # [B, M, A·D]
    M = table.shape[1]
    layout = _table_layout(level_hw, A, P, value.device)
    # One flat dimension for all points of a token: loops over a few points each would take most of the time.
    x, y, weights = x.flatten(2), y.flatten(2), weights.flatten(2)  # [B, Q, A·L·P]
    x = torch.clamp(x, layout.lowest, layout.width)
    y = torch.clamp(y, layout.lowest, layout.height)
    left, top = x.detach().floor(), y.detach().floor()
    right_share, bottom_share = x - left, y - top
    bottom = weights * bottom_share
    upper = weights - bottom
    upper_right, bottom_right = upper * right_share, bottom * right_share
    # Only NaN gives a row below 0. Its weights are NaN too, so that any row serves.
    row = torch.addcmul(left + layout.first, top, layout.stride).to(torch.int32).clamp_(min=0) * A + layout.head
    if B > 1:
        row = row + torch.arange(B, dtype=torch.int32, device=value.device)[:, None, None] * (M * A)
    down = (layout.stride * A).to(torch.int32)

    def corners(*parts: Tensor) -> Tensor:
        """Concatenate values of the four pixels of each point: [B, Q, A·L·P] -> [B·Q·A, 4·L·P]."""
        return torch.cat([unflatten(part, -1, (A, -1)).flatten(0, 2) for part in parts], dim=1)

    out = F.embedding_bag(
        corners(row, row + A, row + down, row + (down + A)),
        table.view(B * M * A, D),
        per_sample_weights=corners(upper - upper_right, upper_right, bottom - bottom_right, bottom_right),
        mode="sum",
    )  # [B·Q·A, D]
    return out.view(B, Q, A * D)


@dataclass(frozen=True)
class _TableLayout:
    """Where the level of each point of each head lies in the table of `_sum_of_rows`: [A·L·P] each.

    The table has a row for each pixel: level after level, each with its border of zeros. All but `head` is in float32,
    which is exact up to 2²⁴.
    """

    lowest: Tensor  # column and row of the border before the level: -1
    width: Tensor  # column of the border behind the level
    height: Tensor  # row of the border behind the level
    stride: Tensor  # rows of the table from one line of pixels to the next
    first: Tensor  # row of the table with the first pixel of the level
    head: Tensor  # number of the head, int32


@cached_tensors
def _table_layout(level_hw: LevelSizes, heads: int, points: int, device: torch.device) -> _TableLayout:
    """Return the layout of levels with a border of one row and column before and two after."""
    columns, before = [], 0
    for height, width in level_hw:
        columns.append((-1.0, float(width), float(height), float(width + 3), float(before + width + 4)))
        before += (height + 3) * (width + 3)
    values = torch.tensor(columns, device=device).t().repeat_interleave(points, dim=1).repeat(1, heads)  # [5, A·L·P]
    head = torch.arange(heads, dtype=torch.int32, device=device).repeat_interleave(len(level_hw) * points)
    lowest, wide, high, stride, first = values.unbind(0)
    return _TableLayout(lowest, wide, high, stride, first, head)


def _short_softmax(scores: Tensor) -> Tensor:
    """Softmax over a last dimension of a few numbers; torch's own on the CPU is not vectorized for those."""
    if scores.device.type != "cpu":
        return scores.softmax(-1)
    powers = (scores - scores.detach().amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


@cached_tensors
def _point_centers(level_hw: LevelSizes, points: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Column and row of every token in every level, in its pixels, repeated for each point: [N, 1, L·P] each."""
    sizes = torch.tensor([(width, height) for height, width in level_hw], dtype=torch.float32, device=device)
    centers = _token_centers(level_hw, device)[:, None] * sizes - 0.5  # [N, L, 2]
    repeated = centers.repeat_interleave(points, dim=1)[:, None]  # [N, 1, L·P, 2]
    return repeated[..., 0].contiguous(), repeated[..., 1].contiguous()


@cached_tensors
def _token_centers(level_hw: LevelSizes, device: torch.device) -> Tensor:
    """Center (x, y) of every token in the image, each in [0, 1]: [N, 2]."""
    parts = []
    for height, width in level_hw:
        y = (torch.arange(height, dtype=torch.float32, device=device) + 0.5) / height
        x = (torch.arange(width, dtype=torch.float32, device=device) + 0.5) / width
        parts.append(torch.stack((x.repeat(height), y.repeat_interleave(width)), dim=-1))  # [h·w, 2]
    return torch.cat(parts)


# ---------------------------------------------------------------------------------------------------------- Triton


def _deformable_attention_triton(value: Tensor, offsets: Tensor, scores: Tensor, level_hw: LevelSizes) -> Tensor:
    """Softmax, coordinates and weighted sum in one kernel."""
    B, N, C = value.shape
    heads, levels, points = scores.shape[2:]
    head_dim = C // heads
    value = value if value.stride(-1) == 1 else value.contiguous()
    offsets, scores = _as_rows(offsets), _as_rows(scores)
    out = torch.empty(B, N, C, device=value.device, dtype=value.dtype)
    padded = triton.next_power_of_2(head_dim)
    block_rows = max(4, min(32, 1024 // padded))
    _deformable_attention_kernel[(triton.cdiv(N, block_rows), heads, B)](
        value, offsets, scores, _token_centers(level_hw, value.device), _level_table(level_hw, value.device), out,
        N, value.stride(1), value.stride(0), offsets.stride(1), scores.stride(1),
        heads=heads, head_dim=head_dim, padded_dim=padded, levels=levels, points=points,
        padded_points=triton.next_power_of_2(levels * points), block_rows=block_rows, num_warps=4,
    )  # fmt: skip
    return out


def _as_rows(values: Tensor) -> Tensor:
    """Flatten [B, N, …] to [B, N, M] with rows of contiguous numbers at one distance; a copy only where needed."""
    rows = values.flatten(2)
    evenly_spaced = rows.stride(-1) == 1 and rows.stride(0) == rows.shape[1] * rows.stride(1)
    return rows if evenly_spaced else rows.contiguous()


@cached_tensors
def _level_table(level_hw: LevelSizes, device: torch.device) -> Tensor:
    """Height, width and first token of each level: int32 [L, 3]."""
    rows, first = [], 0
    for height, width in level_hw:
        rows.append((height, width, first))
        first += height * width
    return torch.tensor(rows, dtype=torch.int32, device=device)


@triton_jit
def _weighted_pixel(value, row_stride, y, x, height, width, first, d, weight, in_head):  # type: ignore[no-untyped-def]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    offset = (first + y * width + x) * row_stride
    pixel = tl.load(value + offset[:, None] + d[None, :], mask=inside[:, None] & in_head[None, :], other=0.0)
    return pixel.to(tl.float32) * weight[:, None]


@triton_jit
def _deformable_attention_kernel(  # type: ignore[no-untyped-def]
    value_ptr, offsets_ptr, scores_ptr, centers_ptr, levels_ptr, out_ptr,
    tokens, value_row, value_batch, offsets_row, scores_row,
    heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr,
    levels: tl.constexpr, points: tl.constexpr, padded_points: tl.constexpr, block_rows: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    token = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    inside = token < tokens
    d = tl.arange(0, padded_dim)
    in_head = d < head_dim
    samples: tl.constexpr = levels * points
    row = batch * tokens + token.to(tl.int64)
    offsets = offsets_ptr + row * offsets_row + head * (samples * 2)
    scores = scores_ptr + row * scores_row + head * samples
    i = tl.arange(0, padded_points)
    all_scores = tl.load(
        scores[:, None] + i[None, :], mask=inside[:, None] & (i[None, :] < samples), other=float("-inf")
    ).to(tl.float32)  # fmt: skip
    highest = tl.where(inside, tl.max(all_scores, 1), 0.0)
    total = tl.where(inside, tl.sum(tl.exp(all_scores - highest[:, None]), 1), 1.0)
    center_x = tl.load(centers_ptr + token * 2, mask=inside, other=0.0)
    center_y = tl.load(centers_ptr + token * 2 + 1, mask=inside, other=0.0)
    value = value_ptr + batch * value_batch + head * head_dim
    out = tl.zeros([block_rows, padded_dim], tl.float32)
    for level in tl.static_range(levels):
        height = tl.load(levels_ptr + level * 3)
        width = tl.load(levels_ptr + level * 3 + 1)
        first = tl.load(levels_ptr + level * 3 + 2)
        base_x = center_x * width - 0.5
        base_y = center_y * height - 0.5
        for point in range(points):
            sample = level * points + point
            x = base_x + tl.load(offsets + sample * 2, mask=inside, other=0.0).to(tl.float32)
            y = base_y + tl.load(offsets + sample * 2 + 1, mask=inside, other=0.0).to(tl.float32)
            weight = tl.exp(tl.load(scores + sample, mask=inside, other=0.0).to(tl.float32) - highest) / total
            # Everything further out than one pixel is 0 as well; clamped, coordinates fit into an index.
            x = tl.minimum(tl.maximum(x, -1.0), width.to(tl.float32))
            y = tl.minimum(tl.maximum(y, -1.0), height.to(tl.float32))
            left = tl.floor(x)
            top = tl.floor(y)
            right_share = x - left
            bottom_share = y - top
            ix = left.to(tl.int32)
            iy = top.to(tl.int32)
            upper = weight * (1 - bottom_share)
            lower = weight * bottom_share
            left_share = 1 - right_share
            out += _weighted_pixel(value, value_row, iy, ix, height, width, first, d, upper * left_share, in_head)
            out += _weighted_pixel(value, value_row, iy, ix + 1, height, width, first, d, upper * right_share, in_head)
            out += _weighted_pixel(value, value_row, iy + 1, ix, height, width, first, d, lower * left_share, in_head)
            out += _weighted_pixel(
                value, value_row, iy + 1, ix + 1, height, width, first, d, lower * right_share, in_head
            )
    target = out_ptr + (row * heads + head)[:, None] * head_dim + d[None, :]
    tl.store(target, out.to(out_ptr.dtype.element_ty), mask=inside[:, None] & in_head[None, :])
