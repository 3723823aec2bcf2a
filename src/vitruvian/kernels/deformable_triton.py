"""Multi-scale deformable attention in one kernel: softmax of the weights, places, and the sum of bilinear samples."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _tap(value, row_size, y, x, high, wide, first, d, weight, in_head):
    there = (y >= 0) & (y < high) & (x >= 0) & (x < wide)
    at = (first + y * wide + x) * row_size
    seen = tl.load(value + at[:, None] + d[None, :], mask=there[:, None] & in_head[None, :], other=0.0)
    return seen.to(tl.float32) * weight[:, None]


@triton.jit
def _deformable(
    value_ptr, proj_ptr, centers_ptr, levels_ptr, out_ptr, queries, value_row, value_batch, proj_row,
    heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr,
    levels: tl.constexpr, points: tl.constexpr, padded_points: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    q = tl.program_id(0) * rows + tl.arange(0, rows)
    inside = q < queries
    d = tl.arange(0, padded_dim)
    in_head = d < head_dim
    every: tl.constexpr = levels * points
    proj = proj_ptr + (batch * queries + q.to(tl.int64)) * proj_row  # [rows]
    offsets = proj + head * (every * 2)
    scores = proj + heads * every * 2 + head * every
    i = tl.arange(0, padded_points)
    all_scores = tl.load(
        scores[:, None] + i[None, :], mask=inside[:, None] & (i[None, :] < every), other=float("-inf")
    ).to(tl.float32)  # fmt: skip
    most = tl.where(inside, tl.max(all_scores, 1), 0.0)
    total = tl.where(inside, tl.sum(tl.exp(all_scores - most[:, None]), 1), 1.0)
    center_x = tl.load(centers_ptr + q * 2, mask=inside, other=0.0)
    center_y = tl.load(centers_ptr + q * 2 + 1, mask=inside, other=0.0)
    value = value_ptr + batch * value_batch + head * head_dim
    out = tl.zeros([rows, padded_dim], tl.float32)
    for level in tl.static_range(levels):
        high = tl.load(levels_ptr + level * 3)
        wide = tl.load(levels_ptr + level * 3 + 1)
        first = tl.load(levels_ptr + level * 3 + 2)
        base_x = center_x * wide - 0.5
        base_y = center_y * high - 0.5
        for point in range(points):
            at = level * points + point
            x = base_x + tl.load(offsets + at * 2, mask=inside, other=0.0).to(tl.float32)
            y = base_y + tl.load(offsets + at * 2 + 1, mask=inside, other=0.0).to(tl.float32)
            weight = tl.exp(tl.load(scores + at, mask=inside, other=0.0).to(tl.float32) - most) / total
            # What lies further out than one pixel counts as 0 as well; numbers stay small enough for indices.
            x = tl.minimum(tl.maximum(x, -1.0), wide.to(tl.float32))
            y = tl.minimum(tl.maximum(y, -1.0), high.to(tl.float32))
            left = tl.floor(x)
            top = tl.floor(y)
            right_part = x - left
            bottom_part = y - top
            ix = left.to(tl.int32)
            iy = top.to(tl.int32)
            upper = weight * (1 - bottom_part)
            lower = weight * bottom_part
            left_part = 1 - right_part
            out += _tap(value, value_row, iy, ix, high, wide, first, d, upper * left_part, in_head)
            out += _tap(value, value_row, iy, ix + 1, high, wide, first, d, upper * right_part, in_head)
            out += _tap(value, value_row, iy + 1, ix, high, wide, first, d, lower * left_part, in_head)
            out += _tap(value, value_row, iy + 1, ix + 1, high, wide, first, d, lower * right_part, in_head)
    place = out_ptr + ((batch * queries + q.to(tl.int64)) * heads + head)[:, None] * head_dim + d[None, :]
    tl.store(place, out.to(out_ptr.dtype.element_ty), mask=inside[:, None] & in_head[None, :])


def sample_points(
    value: Tensor, projected: Tensor, centers: Tensor, levels: Tensor, *, heads: int, points: int
) -> Tensor:
    """Sum samples of value [B, N, C] at the points and with the weights of projected [B, N, A·L·P·3]: [B, N, C].

    centers [N, 2] are where each query lies, x and y in [0, 1]; levels [L, 3] height, width and first token of each.
    """
    B, N, C = value.shape
    D = C // heads
    count = levels.shape[0] * points
    out = torch.empty(B, N, C, device=value.device, dtype=value.dtype)
    padded = triton.next_power_of_2(D)
    rows = max(4, min(32, 1024 // padded))
    launch: Any = _deformable[(triton.cdiv(N, rows), heads, B)]
    launch(
        value, projected, centers, levels, out, N, value.stride(1), value.stride(0), projected.shape[-1],
        heads=heads, head_dim=D, padded_dim=padded, levels=levels.shape[0], points=points,
        padded_points=triton.next_power_of_2(count), rows=rows, num_warps=4,
    )  # fmt: skip
    return out
