"""Attention whose values have fewer channels than queries and keys, as to the memories of SAM 2.

A linear layer after attention commutes with it, as the weights of a query add up to 1. Values can then be attended to
before they are projected to more channels: less work for each pair of a query and a key.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from vitruvian.ops.attention import attention
from vitruvian.ops.dispatch import triton_jit, use_cpu_version, use_triton
from vitruvian.ops.online_softmax import LOG2_E, OnlineSoftmax, add_keys, merge_splits, split_keys
from vitruvian.ops.triton_import import tl, triton

_CPU_BLOCK = 1024  # queries, and keys, whose scores are computed at a time: 4 MiB


def narrow_value_attention(q: Tensor, k: Tensor, v: Tensor, *, implementation: str = "sdpa") -> Tensor:
    """Attend from queries [B, N, D] to keys [B, M, D] and values [B, M, E], one head: [B, N, E].

    `implementation` is that of `vitruvian.ops.attention`; "eager" keeps to plain torch operations.
    """
    if implementation != "eager":
        if use_triton("narrow_value_attention", q, k, v):
            return _narrow_value_attention_triton(q, k, v)
        if use_cpu_version("narrow_value_attention", q, k, v):
            return _narrow_value_attention_cpu(q, k, v)
    # Queries that objects share have no stride over them, which cuDNN does not accept.
    return attention(q.contiguous()[:, None], k[:, None], v[:, None], implementation=implementation)[0][:, 0]


def _narrow_value_attention_cpu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from a part of the queries to a part of the keys at a time.

    torch has no fused kernel for these shapes on the CPU.
    """
    out, buffer = q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(_CPU_BLOCK * _CPU_BLOCK)
    scaled = q * (LOG2_E * q.shape[2] ** -0.5)
    for batch, start in itertools.product(range(len(q)), range(0, q.shape[1], _CPU_BLOCK)):
        part = scaled[batch, start : start + _CPU_BLOCK].T  # [D, n]
        mean = OnlineSoftmax(part.shape[1], v)
        for first in range(0, k.shape[1], _CPU_BLOCK):
            block = k[batch, first : first + _CPU_BLOCK]  # [m, D]
            scores = buffer[: len(block) * part.shape[1]].view(len(block), -1)
            mean.add_(torch.mm(block, part, out=scores), v[batch, first : first + _CPU_BLOCK])
        out[batch, start : start + _CPU_BLOCK] = mean.result()
    return out


# ---------------------------------------------------------------------------------------------------------- Triton


def _narrow_value_attention_triton(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with the keys split among programs where the queries are too few to fill a device."""
    (B, N, D), (M, E) = q.shape, v.shape[1:]
    q, k, v = (part if part.stride(-1) == 1 else part.contiguous() for part in (q, k, v))
    block_rows, block_columns, stages = _blocks(D + E, q.device)
    blocks = triton.cdiv(N, block_rows)
    splits, split_size = split_keys(M, B * blocks, multiple=block_columns, min_keys=4 * block_columns)
    parts = torch.empty(splits, B * N, E, device=q.device, dtype=q.dtype if splits == 1 else torch.float32)
    log_sums = torch.empty(splits, B * N, device=q.device, dtype=torch.float32)
    _narrow_value_attention_kernel[(blocks, splits, B)](
        q, k, v, parts, log_sums, N, M, split_size, B * N, *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
        channels=D, padded=max(16, triton.next_power_of_2(D)),
        value_channels=E, padded_values=max(16, triton.next_power_of_2(E)),
        block_rows=block_rows, block_columns=block_columns, scale=LOG2_E / math.sqrt(D),
        num_warps=block_rows // 16, num_stages=stages,
    )  # fmt: skip
    return (parts[0] if splits == 1 else merge_splits(parts, log_sums, q.dtype)).view(B, N, E)


def _blocks(channels: int, device: torch.device) -> tuple[int, int, int]:
    """Return the queries and keys of a block, and how many blocks of keys are loaded ahead: what fits shared memory."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    available = getattr(properties, "shared_memory_per_block_optin", 0)
    for rows, columns, stages in ((128, 64, 3), (128, 64, 2)):
        if 2 * channels * (rows + stages * columns) <= available:
            return rows, columns, stages
    return 64, 32, 2


@triton_jit
def _narrow_value_attention_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, parts_ptr, log_sums_ptr, queries, keys, split_size, total_rows,
    q_batch, q_token, k_batch, k_token, v_batch, v_token,
    channels: tl.constexpr, padded: tl.constexpr, value_channels: tl.constexpr, padded_values: tl.constexpr,
    block_rows: tl.constexpr, block_columns: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    n = tl.arange(0, block_columns)
    c = tl.arange(0, padded)
    e = tl.arange(0, padded_values)
    in_queries = m < queries
    q = tl.load(
        q_ptr + batch * q_batch + m[:, None] * q_token + c[None, :],
        mask=in_queries[:, None] & (c < channels)[None, :], other=0.0,
    )  # fmt: skip
    first = split * split_size
    last = tl.minimum(first + split_size, keys)
    k_start = k_ptr + batch * k_batch + n[None, :] * k_token + c[:, None]
    v_start = v_ptr + batch * v_batch + n[:, None] * v_token + e[None, :]
    out = tl.zeros([block_rows, padded_values], tl.float32)
    total = tl.zeros([block_rows], tl.float32)
    highest = tl.full([block_rows], float("-inf"), tl.float32)
    whole = first + ((last - first) // block_columns) * block_columns
    for start in tl.range(first, whole, block_columns):
        if padded == channels:
            k = tl.load(k_start + start * k_token)
        else:
            k = tl.load(k_start + start * k_token, mask=(c < channels)[:, None], other=0.0)
        if padded_values == value_channels:
            v = tl.load(v_start + start * v_token)
        else:
            v = tl.load(v_start + start * v_token, mask=(e < value_channels)[None, :], other=0.0)
        out, total, highest = add_keys(tl.dot(q, k), v, out, total, highest, scale)
    if whole < last:
        inside = whole + n < last
        k = tl.load(k_start + whole * k_token, mask=inside[None, :] & (c < channels)[:, None], other=0.0)
        v = tl.load(v_start + whole * v_token, mask=inside[:, None] & (e < value_channels)[None, :], other=0.0)
        scores = tl.where(inside[None, :], tl.dot(q, k), float("-inf"))
        out, total, highest = add_keys(scores, v, out, total, highest, scale)
    row = split * total_rows + batch * queries + m
    target = parts_ptr + row[:, None] * value_channels + e[None, :]
    tl.store(
        target, (out / total[:, None]).to(parts_ptr.dtype.element_ty),
        mask=in_queries[:, None] & (e < value_channels)[None, :],
    )  # fmt: skip
    tl.store(log_sums_ptr + row, highest + tl.log2(total), mask=in_queries)
