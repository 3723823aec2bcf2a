"""Masked attention of Mask2Former: each query attends inside its own mask, or everywhere if that mask is empty."""

from __future__ import annotations

import math

import torch
from torch import Tensor, unflatten

from vitruvian.ops.attention import attention
from vitruvian.ops.dispatch import triton_jit, use_triton
from vitruvian.ops.online_softmax import LOG2_E, add_keys, merge_splits, split_keys
from vitruvian.ops.triton_import import tl, triton


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask_logits: Tensor,
    *,
    heads: int,
    dropout: float = 0.0,
    implementation: str = "sdpa",
) -> Tensor:
    """Attend from queries [B, Q, C] to keys and values [B, N, C]: [B, Q, C].

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        mask_logits: Mask logits of each query [B, Q, N]. A query attends where they are not negative, or everywhere if
            all are. They get no gradient.
        heads: Number of heads, which share the mask.
        dropout: Probability of dropping an attention weight.
        implementation: See `vitruvian.ops.attention`; "eager" keeps to plain torch operations.
    """
    if dropout == 0 and implementation != "eager" and use_triton("masked_attention", q, k, v, mask_logits):
        return _masked_attention_triton(q, k, v, mask_logits, heads=heads)
    with torch.no_grad():
        inside = mask_logits >= 0  # [B, Q, N]
        mask = inside | ~inside.any(-1, keepdim=True)
    q, k, v = (unflatten(part, -1, (heads, -1)).transpose(1, 2) for part in (q, k, v))  # [B, A, Q | N, D]
    out, _ = attention(q, k, v, mask=mask[:, None], dropout=dropout, implementation=implementation)
    return out.transpose(1, 2).flatten(2)  # [B, Q, C]


# ---------------------------------------------------------------------------------------------------------- Triton


def _masked_attention_triton(q: Tensor, k: Tensor, v: Tensor, mask_logits: Tensor, *, heads: int) -> Tensor:
    """Attend with the keys split among programs, since the queries are too few to fill a device."""
    (B, Q, C), N = q.shape, k.shape[1]
    q, k, v = (part if part.stride(-1) == 1 else part.contiguous() for part in (q, k, v))
    head_dim = C // heads
    block_m, block_n = max(16, min(64, triton.next_power_of_2(Q))), 64
    blocks = triton.cdiv(Q, block_m)
    splits, split_size = split_keys(N, B * heads * blocks, multiple=block_n, min_keys=2 * block_n)
    parts = torch.empty(splits, B * Q * heads, head_dim, device=q.device, dtype=torch.float32)
    log_sums = torch.empty(splits, B * Q * heads, device=q.device, dtype=torch.float32)
    _masked_attention_kernel[(blocks, splits, B * heads)](
        q, k, v, mask_logits.contiguous(), mask_logits.amax(-1), parts, log_sums, Q, N, split_size, B * Q * heads,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
        heads=heads, head_dim=head_dim, padded_dim=max(16, triton.next_power_of_2(head_dim)),
        block_m=block_m, block_n=block_n, scale=LOG2_E / math.sqrt(head_dim), num_warps=4, num_stages=3,
    )  # fmt: skip
    return merge_splits(parts, log_sums, q.dtype).view(B, Q, C)


@triton_jit
def _masked_attention_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, logits_ptr, highest_logit_ptr, parts_ptr, log_sums_ptr, queries, keys, split_size, total_rows,
    q_batch, q_token, k_batch, k_token, v_batch, v_token,
    heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    batch = (tl.program_id(2) // heads).to(tl.int64)
    head = tl.program_id(2) % heads
    m = tl.program_id(0) * block_m + tl.arange(0, block_m)
    d = tl.arange(0, padded_dim)
    in_head = d < head_dim
    in_queries = m < queries
    q = tl.load(
        q_ptr + batch * q_batch + m[:, None] * q_token + head * head_dim + d[None, :],
        mask=in_queries[:, None] & in_head[None, :], other=0.0,
    )  # fmt: skip
    is_empty = tl.load(highest_logit_ptr + batch * queries + m, mask=in_queries, other=-1.0).to(tl.float32) < 0
    out = tl.zeros([block_m, padded_dim], tl.float32)
    total = tl.zeros([block_m], tl.float32)
    highest = tl.full([block_m], float("-inf"), tl.float32)
    k_start = k_ptr + batch * k_batch + head * head_dim
    v_start = v_ptr + batch * v_batch + head * head_dim
    last = tl.minimum((split + 1) * split_size, keys)
    for first in tl.range(split * split_size, last, block_n):
        n = first + tl.arange(0, block_n)
        in_keys = n < last
        k = tl.load(k_start + n[None, :] * k_token + d[:, None], mask=in_keys[None, :] & in_head[:, None], other=0.0)
        v = tl.load(v_start + n[:, None] * v_token + d[None, :], mask=in_keys[:, None] & in_head[None, :], other=0.0)
        pair = (batch * queries + m)[:, None] * keys + n[None, :]
        logits = tl.load(logits_ptr + pair, mask=in_queries[:, None] & in_keys[None, :], other=-1.0).to(tl.float32)
        visible = ((logits >= 0) | is_empty[:, None]) & in_keys[None, :]
        scores = tl.where(visible, tl.dot(q, k) * scale, float("-inf"))
        out, total, highest = add_keys(scores, v, out, total, highest, may_be_empty=True)
    row = split * total_rows + (batch * queries + m) * heads + head
    out = tl.where(total[:, None] > 0, out / total[:, None], 0.0)
    tl.store(parts_ptr + row[:, None] * head_dim + d[None, :], out, mask=in_queries[:, None] & in_head[None, :])
    tl.store(log_sums_ptr + row, highest + tl.log2(total), mask=in_queries)
