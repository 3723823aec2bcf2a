"""Attention inside the windows of a token grid: shifted windows, position bias, pooled queries.

qkv [B, h·w, 3C] ─▶ windows of `window` × `window` tokens (N) ─▶ attention inside each ─▶ [B, h·w, C]

The grid is padded to whole windows and, with a shift, rolled up and left. Tokens that become neighbors by the roll
must not attend to each other. Only windows of the last row and column have such tokens, so windows form up to four
groups (inner, right edge, bottom edge, corner), and the windows of a group share one mask. The torch version gathers
tokens into windows, sorted by group. The Triton version copies nothing: padding, roll and pooling are index arithmetic.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, unflatten
from torch.autograd.function import FunctionCtx

from vitruvian.ops.attention import attention
from vitruvian.ops.dispatch import triton_jit, use_triton
from vitruvian.ops.online_softmax import add_keys
from vitruvian.ops.triton_import import tl, triton
from vitruvian.tensor_cache import cached_tensors

_MASKED = -100.0  # added to the scores of pairs across the roll's seam; Swin was trained with this value
_LARGEST_WINDOW = 1024  # tokens of a window that the kernel takes


def window_attention(
    qkv: Tensor,
    *,
    grid_hw: tuple[int, int],
    heads: int,
    window: int,
    shift: int = 0,
    pool: int = 1,
    fill: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    implementation: str = "sdpa",
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend inside the windows of a token grid.

    Args:
        qkv: Queries, keys and values of all tokens [B, h·w, 3C].
        grid_hw: Height and width of the grid. It is padded to whole windows.
        heads: Number of heads A.
        window: Side of a window; N is its square.
        shift: Tokens by which windows are shifted down and right, cyclically. Pairs of tokens that are neighbors only
            by the wrap-around are masked.
        pool: Max-pool queries over `pool` × `pool` cells. It must divide the window and the grid.
        fill: Value of qkv in the padding [3C]; zeros by default.
        bias: Bias of the scores [A, N, N].
        dropout: Probability of dropping an attention weight.
        implementation: See `vitruvian.ops.attention`; the Triton version runs in place of "sdpa".
        need_weights: Return the attention weights too.

    Returns:
        [B, h·w / pool², C], and None or the weights [B · windows, A, N / pool², N], windows sorted by image, row and
        column.
    """
    fill = None if fill is None else fill.to(qkv.dtype)
    bias = None if bias is None else bias.to(qkv.dtype)
    tensors = [tensor for tensor in (qkv, fill, bias) if tensor is not None]
    supported = implementation == "sdpa" and dropout == 0 and window**2 <= _LARGEST_WINDOW and not need_weights
    if supported and use_triton("window_attention", *tensors):
        out = _window_attention_triton(
            qkv, grid_hw=grid_hw, heads=heads, window=window, shift=shift, pool=pool, fill=fill, bias=bias
        )
        return out, None
    index = _window_index(qkv.shape[0], grid_hw, window=window, shift=shift, device=qkv.device)
    q, k, v, masks = _window_inputs(qkv, index, heads=heads, pool=pool, fill=fill, bias=bias)
    sizes = [count for _, count in index.groups]
    groups = zip(index.groups, torch.split(q, sizes), torch.split(k, sizes), torch.split(v, sizes), strict=True)
    outputs, parts = [], []
    for (kind, _), qs, ks, vs in groups:
        mask = None if masks is None else masks[kind : kind + 1]
        out, group_weights = attention(
            qs, ks, vs, implementation=implementation, mask=mask, dropout=dropout, need_weights=need_weights
        )
        outputs.append(out)
        parts.append(group_weights)
    out = torch.cat(outputs) if len(outputs) > 1 else outputs[0]  # [windows, A, N / pool², D]
    weights: Tensor | None = None
    if need_weights:
        order = _row_major_order(index, batch=qkv.shape[0], grid_hw=grid_hw)
        weights = torch.cat([part for part in parts if part is not None])[order]  # [windows, A, N / pool², N]
        out = weights[order.argsort()] @ v  # the output depends on what is returned, which may retain its gradient
    if pool > 1:
        grid_hw = (grid_hw[0] // pool, grid_hw[1] // pool)
        index = _window_index(qkv.shape[0], grid_hw, window=window // pool, shift=0, device=qkv.device)
    out = _from_windows(out.transpose(1, 2).flatten(2), index, batch=qkv.shape[0])
    return out, weights


# ----------------------------------------------------------------------------------------------------------- torch


@dataclass(frozen=True)
class _WindowIndex:
    """Index tables between the tokens of a batch of grids and the cells of windows.

    Attributes:
        token_of_cell: Token in each cell of the windows [windows · N]; any valid index in the padding.
        cell_of_token: Cell of each token [B · h · w].
        padding: True for cells without a token [windows · N, 1], or None without padding.
        padding_cells: Indices of those cells; None also while torch compiles, where shapes must not depend on values.
        groups: Group (0 inner, 1 right edge, 2 bottom edge, 3 corner) and number of windows, without empty groups.
        window: Side of a window.
        shift: Tokens by which the grid is rolled.
    """

    token_of_cell: Tensor
    cell_of_token: Tensor
    padding: Tensor | None
    padding_cells: Tensor | None
    groups: tuple[tuple[int, int], ...]
    window: int
    shift: int


@cached_tensors
def _window_index(
    batch: int, grid_hw: tuple[int, int], *, window: int, shift: int, device: torch.device
) -> _WindowIndex:
    """Sort the windows of `batch` grids of h × w tokens by group, image, row and column."""
    height, width = grid_hw
    rows, columns = -(-height // window), -(-width // window)  # of windows
    y = (torch.arange(rows * window, device=device) + shift) % (rows * window)
    x = (torch.arange(columns * window, device=device) + shift) % (columns * window)
    tokens = height * width
    missing = batch * tokens  # stands for "no token"
    token = torch.where((y[:, None] >= height) | (x >= width), missing, y[:, None] * width + x)
    cells = unflatten(unflatten(token, 1, (columns, window)), 0, (rows, window))  # [rows, window, columns, window]
    cells = cells.transpose(1, 2).flatten(2)  # [rows, columns, N]
    inner_y, inner_x = (rows - 1, columns - 1) if shift else (rows, columns)
    parts = (cells[:inner_y, :inner_x], cells[:inner_y, inner_x:], cells[inner_y:, :inner_x], cells[inner_y:, inner_x:])
    first = torch.arange(batch, device=device)[:, None] * tokens  # [B, 1]
    tables, groups = [], []
    for kind, part in enumerate(parts):
        count = part.shape[0] * part.shape[1]
        if count:
            tables.append(torch.where(part.flatten() < missing, part.flatten() + first, missing).flatten())
            groups.append((kind, batch * count))
    token_of_cell = torch.cat(tables)  # [windows · N]
    cell_of_token = torch.zeros(missing + 1, dtype=torch.int64, device=device)
    cell_of_token = cell_of_token.scatter(0, token_of_cell, torch.arange(token_of_cell.shape[0], device=device))[:-1]
    is_padded = rows * window != height or columns * window != width
    padding = (token_of_cell == missing)[:, None] if is_padded else None
    has_values = device.type != "meta" and not torch.compiler.is_compiling()
    padding_cells = padding.flatten().nonzero().flatten() if padding is not None and has_values else None
    token_of_cell = token_of_cell.clamp(max=missing - 1)
    return _WindowIndex(token_of_cell, cell_of_token, padding, padding_cells, tuple(groups), window, shift)


def _window_inputs(
    qkv: Tensor, index: _WindowIndex, *, heads: int, pool: int, fill: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gather queries [windows, A, N / pool², D], keys and values [windows, A, N, D], and masks [1 | 4, 1 | A, N, N]."""
    q, k, v = _to_windows(qkv, index, fill=fill).chunk(3, dim=-1)  # [windows, N, C] each
    if pool > 1:
        side = index.window // pool
        q = unflatten(q, 1, (side, pool, side, pool))
        # Comparing slices is several times as fast on a CPU as a reduction over two dimensions.
        cells = [q[:, :, i, :, j] for i in range(pool) for j in range(pool)]
        q = functools.reduce(torch.maximum, cells).flatten(1, 2)  # [windows, N / pool², C]
    q, k, v = (unflatten(part, -1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
    masks: Tensor | None = None if bias is None else bias[None].to(q.dtype)  # [1, A, N, N]
    if index.shift:
        seam = _seam_masks(window=index.window, shift=index.shift, dtype=q.dtype, device=q.device)  # [4, N, N]
        masks = seam[:, None] if masks is None else masks + seam[:, None]  # [4, A | 1, N, N]
    return q, k, v, masks


def _to_windows(tokens: Tensor, index: _WindowIndex, *, fill: Tensor | None = None) -> Tensor:
    """Gather tokens [B, h·w, C] into windows [windows, N, C]. The padding is 0, or `fill` [C]."""
    padding = index.padding if fill is None else None
    cells: Tensor = _Permute.apply(tokens.flatten(0, 1), index.token_of_cell, index.cell_of_token, padding, None)  # type: ignore[no-untyped-call]
    if fill is not None and index.padding_cells is not None:
        cells = cells.index_copy_(0, index.padding_cells, fill.expand(len(index.padding_cells), -1))
    elif fill is not None and index.padding is not None:
        cells = torch.where(index.padding, fill, cells)
    return unflatten(cells, 0, (-1, index.window**2))  # [windows, N, C]


def _from_windows(windows: Tensor, index: _WindowIndex, *, batch: int) -> Tensor:
    """Gather windows [windows, N, C] back into tokens [B, h·w, C], without the padding."""
    cells = windows.flatten(0, 1)
    tokens: Tensor = _Permute.apply(cells, index.cell_of_token, index.token_of_cell, None, index.padding)  # type: ignore[no-untyped-call]
    return unflatten(tokens, 0, (batch, -1))  # [B, h·w, C]


class _Permute(torch.autograd.Function):
    """Gather rows, each of which is used at most once: the gradient is a gather by the inverse index, not a sum."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        rows: Tensor,
        index: Tensor,
        inverse: Tensor,
        padding: Tensor | None,
        inverse_padding: Tensor | None,
    ) -> Tensor:
        """Return rows[index], 0 where `padding` is True."""
        ctx.save_for_backward(index, inverse, padding, inverse_padding)  # type: ignore[arg-type]
        out = rows.index_select(0, index)
        return out if padding is None else out.masked_fill_(padding, 0.0)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Gather the gradients by the inverse index."""
        index, inverse, padding, inverse_padding = ctx.saved_tensors  # type: ignore[attr-defined]
        grad: Tensor = _Permute.apply(grads[0], inverse, index, inverse_padding, padding)  # type: ignore[no-untyped-call]
        return grad, None, None, None, None


@cached_tensors
def _seam_masks(*, window: int, shift: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Masks to add to the scores in windows of each group: [4, N, N]."""
    # 1 for tokens from the other side of the grid; integers, since torch.compile cannot compare booleans.
    wrapped = (torch.arange(window, device=device) >= window - shift).long()
    column = wrapped.expand(window, window).flatten()  # [N]
    row = wrapped[:, None].expand(window, window).flatten()  # [N]
    across, down = column[:, None] != column, row[:, None] != row  # [N, N]
    masked = torch.stack((torch.zeros_like(across), across, down, across | down))  # [4, N, N]
    return torch.zeros(masked.shape, dtype=dtype, device=device).masked_fill(masked, _MASKED)


def _row_major_order(index: _WindowIndex, *, batch: int, grid_hw: tuple[int, int]) -> Tensor:
    """Index that sorts windows by image, row and column: [windows]."""
    device = index.token_of_cell.device
    rows, columns = (-(-side // index.window) for side in grid_hw)
    last_row = (torch.arange(rows, device=device) == rows - 1).long() * (index.shift > 0)
    last_column = (torch.arange(columns, device=device) == columns - 1).long() * (index.shift > 0)
    group = (2 * last_row[:, None] + last_column).flatten().expand(batch, -1).flatten()  # [B · rows · columns]
    return torch.argsort(torch.argsort(group, stable=True))


# ---------------------------------------------------------------------------------------------------------- Triton


def _window_attention_triton(
    qkv: Tensor,
    *,
    grid_hw: tuple[int, int],
    heads: int,
    window: int,
    shift: int,
    pool: int,
    fill: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Attend inside the windows of [B, h·w, 3C]: [B, h·w / pool², C]. One program takes a head of a window."""
    qkv = qkv.contiguous()
    fill, bias = None if fill is None else fill.contiguous(), None if bias is None else bias.contiguous()
    B, channels = qkv.shape[0], qkv.shape[-1] // 3
    height, width = grid_hw
    rows, columns = triton.cdiv(height, window), triton.cdiv(width, window)  # of windows
    head_dim, queries = channels // heads, (window // pool) ** 2
    block_m = max(16, min(64, triton.next_power_of_2(queries)))
    block_n = max(16, min(64, triton.next_power_of_2(window**2)))
    out = torch.empty(B, height * width // pool**2, channels, device=qkv.device, dtype=qkv.dtype)
    programs = B * rows * columns * triton.cdiv(queries, block_m) * heads
    _window_attention_kernel[(programs,)](
        qkv, fill, bias, out, height, width, rows, columns, shift,
        heads=heads, head_dim=head_dim, padded_dim=max(16, triton.next_power_of_2(head_dim)),
        window=window, pool=pool, block_m=block_m, block_n=block_n, scale=1 / math.sqrt(head_dim), masked=_MASKED,
        has_fill=fill is not None, has_bias=bias is not None, has_shift=shift > 0,
        num_warps=4 if block_n == 64 else max(1, block_m // 16), num_stages=2,
    )  # fmt: skip
    return out


@triton_jit
def _token_of_cell(y, x, rows, columns, shift, window: tl.constexpr, height, width, row, column):  # type: ignore[no-untyped-def]
    # Token in cell (y, x) of window (row, column), and whether there is one.
    y = row * window + y + shift
    x = column * window + x + shift
    y = tl.where(y >= rows * window, y - rows * window, y)
    x = tl.where(x >= columns * window, x - columns * window, x)
    return y * width + x, (y < height) & (x < width)


@triton_jit
def _window_attention_kernel(  # type: ignore[no-untyped-def]
    qkv_ptr, fill_ptr, bias_ptr, out_ptr, height, width, rows, columns, shift,
    heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr, window: tl.constexpr, pool: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, scale: tl.constexpr, masked: tl.constexpr,
    has_fill: tl.constexpr, has_bias: tl.constexpr, has_shift: tl.constexpr,
):  # fmt: skip
    LOG2E: tl.constexpr = 1.4426950408889634
    channels: tl.constexpr = heads * head_dim
    tokens: tl.constexpr = window * window
    side: tl.constexpr = window // pool
    blocks: tl.constexpr = (side * side + block_m - 1) // block_m
    program = tl.program_id(0)
    # Heads of a window run next to each other: they share cache lines.
    head = program % heads
    program = program // heads
    block = program % blocks
    program = program // blocks
    column = program % columns
    program = program // columns
    row = program % rows
    batch = (program // rows).to(tl.int64)
    d = tl.arange(0, padded_dim)
    in_head = d < head_dim
    start = qkv_ptr + batch * height * width * (3 * channels) + head * head_dim

    m = block * block_m + tl.arange(0, block_m)
    my = m // side
    mx = m % side
    q = tl.zeros([block_m, padded_dim], qkv_ptr.dtype.element_ty)
    for i in tl.static_range(pool * pool):
        q_token, q_inside = _token_of_cell(
            my * pool + i // pool, mx * pool + i % pool, rows, columns, shift, window, height, width, row, column
        )
        q_mask = q_inside & (m < side * side)
        q_i = tl.load(
            start + q_token[:, None] * (3 * channels) + d[None, :], mask=q_mask[:, None] & in_head[None, :], other=0.0
        )
        if has_fill:
            q_fill = tl.load(fill_ptr + head * head_dim + d, mask=in_head, other=0.0)
            q_i = tl.where(q_inside[:, None], q_i, q_fill[None, :])
        if i == 0:
            q = q_i
        else:
            q = tl.maximum(q, q_i).to(q_i.dtype)

    out = tl.zeros([block_m, padded_dim], tl.float32)
    total = tl.zeros([block_m], tl.float32)
    highest = tl.full([block_m], float("-inf"), tl.float32)
    for first in range(0, tokens, block_n):
        n = first + tl.arange(0, block_n)
        ny = n // window
        nx = n % window
        token, inside = _token_of_cell(ny, nx, rows, columns, shift, window, height, width, row, column)
        kv_mask = inside & (n < tokens)
        k = tl.load(
            start + channels + token[None, :] * (3 * channels) + d[:, None],
            mask=kv_mask[None, :] & in_head[:, None], other=0.0,
        )  # fmt: skip
        v = tl.load(
            start + 2 * channels + token[:, None] * (3 * channels) + d[None, :],
            mask=kv_mask[:, None] & in_head[None, :], other=0.0,
        )  # fmt: skip
        if has_fill:
            k_fill = tl.load(fill_ptr + channels + head * head_dim + d, mask=in_head, other=0.0)
            v_fill = tl.load(fill_ptr + 2 * channels + head * head_dim + d, mask=in_head, other=0.0)
            k = tl.where(inside[None, :], k, k_fill[:, None])
            v = tl.where(inside[:, None], v, v_fill[None, :])
        scores = tl.dot(q, k) * (scale * LOG2E)
        if has_bias:
            pair = (head * tokens + m[:, None]) * tokens + n[None, :]
            pair_mask = (m[:, None] < tokens) & (n[None, :] < tokens)
            scores += tl.load(bias_ptr + pair, mask=pair_mask, other=0.0).to(tl.float32) * LOG2E
        if has_shift:
            seam = window - shift
            across = (column == columns - 1) & ((mx >= seam)[:, None] != (nx >= seam)[None, :])
            down = (row == rows - 1) & ((my >= seam)[:, None] != (ny >= seam)[None, :])
            scores += tl.where(across | down, masked * LOG2E, 0.0)
        scores = tl.where(n[None, :] < tokens, scores, float("-inf"))
        out, total, highest = add_keys(scores, v, out, total, highest)
    out = out / total[:, None]
    if pool == 1:
        token, inside = _token_of_cell(my, mx, rows, columns, shift, window, height, width, row, column)
        size = height * width
    else:
        token, inside = _token_of_cell(my, mx, rows, columns, 0, side, height // pool, width // pool, row, column)
        size = (height // pool) * (width // pool)
    inside = inside & (m < side * side)
    target = out_ptr + batch * size * channels + token[:, None] * channels + head * head_dim + d[None, :]
    tl.store(target, out.to(out_ptr.dtype.element_ty), mask=inside[:, None] & in_head[None, :])
