"""Attention inside windows of a grid of tokens, read from and written to their places in the grid.

Shifting, padding, the bias of positions and the pooling of queries are arithmetic on indices here: no window is ever
copied. A place of a window that no token fills counts as a token of zeros, whose projections are the biases.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 1024  # tokens of a window


@triton.jit
def _place(local_y, local_x, down, across, shift, window: tl.constexpr, height, width, row, column):
    # Where a place of a window lies in the grid, and whether a token is there.
    y = row * window + local_y + shift
    x = column * window + local_x + shift
    y = tl.where(y >= down * window, y - down * window, y)
    x = tl.where(x >= across * window, x - across * window, x)
    return y * width + x, (y < height) & (x < width)


@triton.jit
def _windows(
    qkv_ptr, fill_ptr, bias_ptr, out_ptr, height, width, down, across, shift,
    heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr, window: tl.constexpr, pool: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, scale: tl.constexpr, blocked: tl.constexpr,
    has_fill: tl.constexpr, has_bias: tl.constexpr, has_shift: tl.constexpr,
):  # fmt: skip
    LOG2E: tl.constexpr = 1.4426950408889634
    channels: tl.constexpr = heads * head_dim
    tokens: tl.constexpr = window * window
    side: tl.constexpr = window // pool
    parts: tl.constexpr = (side * side + rows - 1) // rows
    rest = tl.program_id(0)
    # Heads of a window run next to each other: they share lines of memory.
    head = rest % heads
    rest = rest // heads
    part = rest % parts
    rest = rest // parts
    column = rest % across
    rest = rest // across
    row = rest % down
    batch = (rest // down).to(tl.int64)
    d = tl.arange(0, padded_dim)
    in_head = d < head_dim
    start = qkv_ptr + batch * height * width * (3 * channels) + head * head_dim

    m = part * rows + tl.arange(0, rows)
    my = m // side
    mx = m % side
    q = tl.zeros([rows, padded_dim], qkv_ptr.dtype.element_ty)
    for i in tl.static_range(pool * pool):
        q_at, q_inside = _place(
            my * pool + i // pool, mx * pool + i % pool, down, across, shift, window, height, width, row, column
        )
        asked = q_inside & (m < side * side)
        one = tl.load(
            start + q_at[:, None] * (3 * channels) + d[None, :], mask=asked[:, None] & in_head[None, :], other=0.0
        )
        if has_fill:
            own = tl.load(fill_ptr + head * head_dim + d, mask=in_head, other=0.0)
            one = tl.where(q_inside[:, None], one, own[None, :])
        if i == 0:
            q = one
        else:
            q = tl.maximum(q, one).to(one.dtype)

    out = tl.zeros([rows, padded_dim], tl.float32)
    total = tl.zeros([rows], tl.float32)
    most = tl.full([rows], float("-inf"), tl.float32)
    for first in range(0, tokens, columns):
        n = first + tl.arange(0, columns)
        ny = n // window
        nx = n % window
        at, inside = _place(ny, nx, down, across, shift, window, height, width, row, column)
        there = inside & (n < tokens)
        k = tl.load(
            start + channels + at[None, :] * (3 * channels) + d[:, None],
            mask=there[None, :] & in_head[:, None], other=0.0,
        )  # fmt: skip
        v = tl.load(
            start + 2 * channels + at[:, None] * (3 * channels) + d[None, :],
            mask=there[:, None] & in_head[None, :], other=0.0,
        )  # fmt: skip
        if has_fill:
            k_fill = tl.load(fill_ptr + channels + head * head_dim + d, mask=in_head, other=0.0)
            v_fill = tl.load(fill_ptr + 2 * channels + head * head_dim + d, mask=in_head, other=0.0)
            k = tl.where(inside[None, :], k, k_fill[:, None])
            v = tl.where(inside[:, None], v, v_fill[None, :])
        scores = tl.dot(q, k) * (scale * LOG2E)
        if has_bias:
            pair = (head * tokens + m[:, None]) * tokens + n[None, :]
            known = (m[:, None] < tokens) & (n[None, :] < tokens)
            scores += tl.load(bias_ptr + pair, mask=known, other=0.0).to(tl.float32) * LOG2E
        if has_shift:
            # In the last row and column of windows, tokens that only met by wrapping around do not see each other.
            last = window - shift
            across_edge = (column == across - 1) & ((mx >= last)[:, None] != (nx >= last)[None, :])
            down_edge = (row == down - 1) & ((my >= last)[:, None] != (ny >= last)[None, :])
            scores += tl.where(across_edge | down_edge, blocked * LOG2E, 0.0)
        scores = tl.where(n[None, :] < tokens, scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        p = tl.math.exp2(scores - higher[:, None])
        factor = tl.math.exp2(most - higher)
        total = total * factor + tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out * factor[:, None])
        most = higher
    out = out / total[:, None]
    if pool == 1:
        target, kept = _place(my, mx, down, across, shift, window, height, width, row, column)
        size = height * width
    else:
        target, kept = _place(my, mx, down, across, 0, side, height // pool, width // pool, row, column)
        size = (height // pool) * (width // pool)
    kept = kept & (m < side * side)
    place = out_ptr + batch * size * channels + target[:, None] * channels + head * head_dim + d[None, :]
    tl.store(place, out.to(out_ptr.dtype.element_ty), mask=kept[:, None] & in_head[None, :])


def attend_windows(
    qkv: Tensor, fill: Tensor | None, bias: Tensor | None,
    *, grid_hw: tuple[int, int], heads: int, window: int, shift: int, pool: int, blocked: float,
) -> Tensor:  # fmt: skip
    """Attend inside windows of tokens [B, h·w, 3C]: [B, h·w / pool², C]."""
    B, channels = qkv.shape[0], qkv.shape[-1] // 3
    height, width = grid_hw
    down, across = triton.cdiv(height, window), triton.cdiv(width, window)
    head_dim, queries = channels // heads, (window // pool) ** 2
    rows = max(16, min(64, triton.next_power_of_2(queries)))
    columns = max(16, min(64, triton.next_power_of_2(window**2)))
    padded = max(16, triton.next_power_of_2(head_dim))
    out = torch.empty(B, height * width // pool**2, channels, device=qkv.device, dtype=qkv.dtype)
    programs = B * down * across * triton.cdiv(queries, rows) * heads
    launch: Any = _windows[(programs,)]
    launch(
        qkv, fill, bias, out, height, width, down, across, shift,
        heads=heads, head_dim=head_dim, padded_dim=padded, window=window, pool=pool,
        rows=rows, columns=columns, scale=1 / math.sqrt(head_dim), blocked=blocked,
        has_fill=fill is not None, has_bias=bias is not None, has_shift=shift > 0,
        num_warps=4 if columns == 64 else max(1, rows // 16), num_stages=2,
    )  # fmt: skip
    return out
