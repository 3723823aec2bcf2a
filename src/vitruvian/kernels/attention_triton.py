"""Attention without a running maximum, for queries and keys of bounded length.

Queries and keys that are RMS-normalised have bounded products, so exp2 of a score can neither overflow nor vanish in
float32, and softmax needs no maximum: what is left for each score is one exp2, one addition and one conversion, which
the tensor cores of another warp hide. Queries come with the factor log2(e) / √D already in them.

A head's channels may come in two parts, each padded to a power of two by itself: 80 as 64 and 16, rather than 128.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from vitruvian.kernels.attention import Tiling


@triton.jit
def _add_up(p, rows: tl.constexpr, columns: tl.constexpr, folds: tl.constexpr):
    # Of eight columns a thread holds two, so that sums over every eighth column need no exchange between threads.
    if folds:
        p = tl.reshape(p, [rows, columns // 8, 8])
    return tl.sum(p, 1)


@triton.jit
def _kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, tokens,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token, o_batch, o_head, o_token,
    heads: tl.constexpr, groups: tl.constexpr, head_dim: tl.constexpr, main_dim: tl.constexpr, rest_dim: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, stages: tl.constexpr, folds: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    m = tl.program_id(0) * rows + tl.arange(0, rows)
    n = tl.arange(0, columns)
    d = tl.arange(0, main_dim)
    in_head = d < head_dim
    here = m[:, None] < tokens
    q_start = q_ptr + batch * q_batch + head * q_head + m[:, None] * q_token
    k_start = k_ptr + batch * k_batch + (head // groups) * k_head + n[None, :] * k_token
    v_start = v_ptr + batch * v_batch + (head // groups) * v_head + n[:, None] * v_token
    q = tl.load(q_start + d[None, :], mask=here & in_head[None, :], other=0.0)
    k_main, v_main = k_start + d[:, None], v_start + d[None, :]
    out = tl.zeros([rows, main_dim], tl.float32)
    if rest_dim > 0:
        e = main_dim + tl.arange(0, rest_dim)
        in_rest = e < head_dim
        q_rest = tl.load(q_start + e[None, :], mask=here & in_rest[None, :], other=0.0)
        k_rest, v_rest = k_start + e[:, None], v_start + e[None, :]
        out_rest = tl.zeros([rows, rest_dim], tl.float32)
    total = _add_up(tl.zeros([rows, columns], tl.float32), rows, columns, folds)
    whole = (tokens // columns) * columns
    for start in tl.range(0, whole, columns, num_stages=stages):
        if main_dim <= head_dim:
            k = tl.load(k_main + start * k_token)
            v = tl.load(v_main + start * v_token)
        else:
            k = tl.load(k_main + start * k_token, mask=in_head[:, None], other=0.0)
            v = tl.load(v_main + start * v_token, mask=in_head[None, :], other=0.0)
        s = tl.dot(q, k)
        if rest_dim > 0:
            s = tl.dot(q_rest, tl.load(k_rest + start * k_token, mask=in_rest[:, None], other=0.0), s)
        p = tl.math.exp2(s)
        total += _add_up(p, rows, columns, folds)
        p = p.to(v.dtype)
        out = tl.dot(p, v, out)
        if rest_dim > 0:
            out_rest = tl.dot(p, tl.load(v_rest + start * v_token, mask=in_rest[None, :], other=0.0), out_rest)
    if whole < tokens:
        inside = whole + n < tokens
        k = tl.load(k_main + whole * k_token, mask=inside[None, :] & in_head[:, None], other=0.0)
        v = tl.load(v_main + whole * v_token, mask=inside[:, None] & in_head[None, :], other=0.0)
        s = tl.dot(q, k)
        if rest_dim > 0:
            k = tl.load(k_rest + whole * k_token, mask=inside[None, :] & in_rest[:, None], other=0.0)
            s = tl.dot(q_rest, k, s)
        p = tl.where(inside[None, :], tl.math.exp2(s), 0.0)
        total += _add_up(p, rows, columns, folds)
        p = p.to(v.dtype)
        out = tl.dot(p, v, out)
        if rest_dim > 0:
            v = tl.load(v_rest + whole * v_token, mask=inside[:, None] & in_rest[None, :], other=0.0)
            out_rest = tl.dot(p, v, out_rest)
    if folds:
        total = tl.sum(total, 1)
    place = o_ptr + batch * o_batch + head * o_head + m[:, None] * o_token
    kind = o_ptr.dtype.element_ty
    tl.store(place + d[None, :], (out / total[:, None]).to(kind), mask=here & in_head[None, :])
    if rest_dim > 0:
        tl.store(place + e[None, :], (out_rest / total[:, None]).to(kind), mask=here & in_rest[None, :])


def attend_bounded(q: Tensor, k: Tensor, v: Tensor, tiling: Tiling) -> Tensor:
    """Attend from [B, A, N, D] to [B, G, N, D] (any strides but the last): [B, N, A, D], contiguous."""
    B, A, N, D = q.shape
    out = torch.empty(B, N, A, D, device=q.device, dtype=q.dtype)
    main, rest = split_dim(D) if tiling.splits else (max(16, triton.next_power_of_2(D)), 0)
    grid: tuple[int, int] = (triton.cdiv(N, tiling.rows), B * A)
    launch: Any = _kernel[grid]
    launch(
        q, k, v, out, N,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], out.stride(0), out.stride(2), out.stride(1),
        heads=A, groups=A // k.shape[1], head_dim=D, main_dim=main, rest_dim=rest,
        rows=tiling.rows, columns=tiling.columns, stages=tiling.stages, folds=tiling.folds, num_warps=tiling.warps,
    )  # fmt: skip
    return out


def split_dim(size: int) -> tuple[int, int]:
    """Cut a number of channels into powers of two of at least 16, the second one 0 where one will do."""
    main = max(16, 1 << (size.bit_length() - 1))
    rest = size - main
    return (main, 0) if rest <= 0 else (main, max(16, triton.next_power_of_2(rest)))
