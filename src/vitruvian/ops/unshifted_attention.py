"""Attention with an unshifted softmax (without subtracting the maximum), for RMS-normalized queries and keys.

RMS-normalized queries and keys have bounded products. exp2 of a score then neither overflows nor underflows in float32,
and softmax needs no maximum: each score costs one exp2, one addition and one conversion, which the tensor cores hide.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitruvian.ops.attention import attention
from vitruvian.ops.dispatch import triton_jit, use_triton
from vitruvian.ops.online_softmax import LOG2_E
from vitruvian.ops.triton_import import tl, triton
from vitruvian.tensor_cache import WeightCache

_MAX_SCORE = 100.0  # as a power of two; float32 and bfloat16 hold 2^±126
_MAX_SCORE_FLOAT16 = 14.0  # float16 holds 2^±15 with full precision


def suits_unshifted_attention(q: Tensor, q_weight: Tensor, k_weight: Tensor, bounded: WeightCache[bool]) -> bool:
    """Return whether `unshifted_attention` is faster than `attention`, and safe after RMS norms with weights [D].

    Args:
        q: Queries of the call.
        q_weight: Weight of the norm of queries.
        k_weight: Weight of the norm of keys.
        bounded: Cache of `has_bounded_scores` for these weights.
    """
    weights = q_weight, k_weight
    return use_triton("unshifted_attention", q, q_weight) and bounded.get(weights, lambda: has_bounded_scores(*weights))


def has_bounded_scores(q_weight: Tensor, k_weight: Tensor) -> bool:
    """Return whether `unshifted_attention` is safe after RMS norms with these weights [D]. Synchronizes the device."""
    bound = float(q_weight.abs().max()) * float(k_weight.abs().max()) * math.sqrt(len(q_weight)) * LOG2_E
    return bound < (_MAX_SCORE_FLOAT16 if q_weight.dtype == torch.float16 else _MAX_SCORE)


def query_scale(head_dim: int) -> float:
    """Return the factor that `unshifted_attention` expects on its queries: log2(e) / √D."""
    return LOG2_E / math.sqrt(head_dim)


def unshifted_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from queries [B, A, N, D] to keys and values [B, G, N, D]: [B, N, A, D].

    Queries include the factor `query_scale`; `has_bounded_scores` must hold.
    """
    if use_triton("unshifted_attention", q, k, v):
        return _unshifted_attention_triton(q, k, v)
    return attention(q, k, v, scale=math.log(2))[0].transpose(1, 2)  # [B, N, A, D]


# ---------------------------------------------------------------------------------------------------------- Triton


def _unshifted_attention_triton(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    B, A, N, D = q.shape
    out = torch.empty(B, N, A, D, device=q.device, dtype=q.dtype)
    block_rows = 128  # the fastest of several on an H200, for 3081 tokens
    _unshifted_attention_kernel[(triton.cdiv(N, block_rows), B * A)](
        q, k, v, out, N,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], out.stride(0), out.stride(2), out.stride(1),
        heads=A, groups=A // k.shape[1], head_dim=D, padded_dim=max(16, triton.next_power_of_2(D)),
        block_rows=block_rows, block_columns=64, stages=3 if D <= 64 else 2, num_warps=8,
    )  # fmt: skip
    return out


@triton_jit
def _unshifted_attention_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, o_ptr, tokens,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token, o_batch, o_head, o_token,
    heads: tl.constexpr, groups: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr,
    block_rows: tl.constexpr, block_columns: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    n = tl.arange(0, block_columns)
    d = tl.arange(0, padded_dim)
    in_head = d < head_dim
    in_rows = m[:, None] < tokens
    q_start = q_ptr + batch * q_batch + head * q_head + m[:, None] * q_token + d[None, :]
    k_start = k_ptr + batch * k_batch + (head // groups) * k_head + n[None, :] * k_token + d[:, None]
    v_start = v_ptr + batch * v_batch + (head // groups) * v_head + n[:, None] * v_token + d[None, :]
    q = tl.load(q_start, mask=in_rows & in_head[None, :], other=0.0)
    out = tl.zeros([block_rows, padded_dim], tl.float32)
    total = tl.zeros([block_rows], tl.float32)
    whole = (tokens // block_columns) * block_columns
    for start in tl.range(0, whole, block_columns, num_stages=stages):
        if padded_dim == head_dim:
            k = tl.load(k_start + start * k_token)
            v = tl.load(v_start + start * v_token)
        else:
            k = tl.load(k_start + start * k_token, mask=in_head[:, None], other=0.0)
            v = tl.load(v_start + start * v_token, mask=in_head[None, :], other=0.0)
        p = tl.math.exp2(tl.dot(q, k))
        total += tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out)
    if whole < tokens:
        inside = whole + n < tokens
        k = tl.load(k_start + whole * k_token, mask=inside[None, :] & in_head[:, None], other=0.0)
        v = tl.load(v_start + whole * v_token, mask=inside[:, None] & in_head[None, :], other=0.0)
        p = tl.where(inside[None, :], tl.math.exp2(tl.dot(q, k)), 0.0)
        total += tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out)
    target = o_ptr + batch * o_batch + head * o_head + m[:, None] * o_token + d[None, :]
    tl.store(target, (out / total[:, None]).to(o_ptr.dtype.element_ty), mask=in_rows & in_head[None, :])
