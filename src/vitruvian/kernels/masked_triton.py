"""Attention of a few queries to many keys, each query only where its mask is: keys split among programs."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitruvian.ops.split_softmax import merge_splits, split_keys


@triton.jit
def _masked(
    q_ptr, k_ptr, v_ptr, logits_ptr, top_ptr, part_ptr, reach_ptr, queries, keys, size, total_rows,
    q_batch, q_token, k_batch, k_token, v_batch, v_token,
    heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    LOG2E: tl.constexpr = 1.4426950408889634
    split = tl.program_id(1)
    batch = (tl.program_id(2) // heads).to(tl.int64)
    head = tl.program_id(2) % heads
    m = tl.program_id(0) * rows + tl.arange(0, rows)
    d = tl.arange(0, padded_dim)
    in_head = d < head_dim
    here = m < queries
    q = tl.load(
        q_ptr + batch * q_batch + m[:, None] * q_token + head * head_dim + d[None, :],
        mask=here[:, None] & in_head[None, :], other=0.0,
    )  # fmt: skip
    # A query whose mask is empty looks everywhere.
    open_rows = tl.load(top_ptr + batch * queries + m, mask=here, other=-1.0).to(tl.float32) < 0
    out = tl.zeros([rows, padded_dim], tl.float32)
    total = tl.zeros([rows], tl.float32)
    most = tl.full([rows], float("-inf"), tl.float32)
    k_start = k_ptr + batch * k_batch + head * head_dim
    v_start = v_ptr + batch * v_batch + head * head_dim
    last = tl.minimum((split + 1) * size, keys)
    for first in tl.range(split * size, last, columns):
        n = first + tl.arange(0, columns)
        there = n < last
        k = tl.load(k_start + n[None, :] * k_token + d[:, None], mask=there[None, :] & in_head[:, None], other=0.0)
        v = tl.load(v_start + n[:, None] * v_token + d[None, :], mask=there[:, None] & in_head[None, :], other=0.0)
        at = (batch * queries + m)[:, None] * keys + n[None, :]
        logits = tl.load(logits_ptr + at, mask=here[:, None] & there[None, :], other=-1.0).to(tl.float32)
        seen = ((logits >= 0) | open_rows[:, None]) & there[None, :]
        scores = tl.where(seen, tl.dot(q, k) * (scale * LOG2E), float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen so far
        p = tl.math.exp2(scores - base[:, None])
        factor = tl.math.exp2(most - base)
        total = total * factor + tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out * factor[:, None])
        most = higher
    row = split * total_rows + (batch * queries + m) * heads + head
    out = tl.where(total[:, None] > 0, out / total[:, None], 0.0)
    tl.store(part_ptr + row[:, None] * head_dim + d[None, :], out, mask=here[:, None] & in_head[None, :])
    tl.store(reach_ptr + row, most + tl.log2(total), mask=here)


def attend_masked(q: Tensor, k: Tensor, v: Tensor, logits: Tensor, top: Tensor, *, heads: int) -> Tensor:
    """Attend from [B, Q, C] to [B, N, C] where logits [B, Q, N] are not negative; top [B, Q] is their largest."""
    (B, Q, C), N = q.shape, k.shape[1]
    D = C // heads
    rows, columns = max(16, min(64, triton.next_power_of_2(Q))), 64
    down = triton.cdiv(Q, rows)
    splits, size = split_keys(N, B * heads * down, multiple=columns, least=2 * columns)
    parts = torch.empty(splits, B * Q * heads, D, device=q.device, dtype=torch.float32)
    reach = torch.empty(splits, B * Q * heads, device=q.device, dtype=torch.float32)
    launch: Any = _masked[(down, splits, B * heads)]
    launch(
        q, k, v, logits, top, parts, reach, Q, N, size, B * Q * heads,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
        heads=heads, head_dim=D, padded_dim=max(16, triton.next_power_of_2(D)),
        rows=rows, columns=columns, scale=1 / math.sqrt(D), num_warps=4, num_stages=3,
    )  # fmt: skip
    return merge_splits(parts, reach, q.dtype).view(B, Q, C)
