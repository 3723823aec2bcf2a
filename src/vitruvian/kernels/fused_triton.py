"""Kernels that join what lies between matrix products: norms, rotations, residuals, gates."""
# mypy: disable-error-code="assignment, var-annotated", no-warn-unreachable
# ruff: noqa: RUF005 (Triton joins tuples with +)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitruvian.kernels.available import takes_kernel


@triton.jit
def _norm_rotate(
    x_ptr, out_ptr, q_weight, k_weight, cos_ptr, sin_ptr, count, tokens, row,
    q_heads: tl.constexpr, k_heads: tl.constexpr, half: tl.constexpr, padded_half: tl.constexpr,
    eps: tl.constexpr, q_scale: tl.constexpr, has_norm: tl.constexpr, rows: tl.constexpr, together: tl.constexpr,
):  # fmt: skip
    # A few heads at a time: they share cosines and sines, which are twice as large as a head, and wait together.
    first = tl.program_id(1) * together
    t = tl.program_id(0) * rows + tl.arange(0, rows)
    j = tl.arange(0, padded_half)
    inside = (t[:, None] < count) & (j[None, :] < half)
    place = x_ptr + t[:, None].to(tl.int64) * row + first * (2 * half) + j[None, :]
    lefts = ()
    rights = ()
    for h in tl.static_range(together):
        lefts = lefts + (tl.load(place + h * (2 * half), mask=inside, other=0.0),)
        rights = rights + (tl.load(place + (h * (2 * half) + half), mask=inside, other=0.0),)
    angle = (t % tokens)[:, None] * half + j[None, :]
    cos = tl.load(cos_ptr + angle, mask=inside, other=1.0)
    sin = tl.load(sin_ptr + angle, mask=inside, other=0.0)
    factor = q_scale if first < q_heads else 1.0
    # Heads come first in what is written: attention then reads whole lines.
    batch = (t // tokens)[:, None].to(tl.int64)
    target = out_ptr + ((batch * (q_heads + k_heads) + first) * tokens + (t % tokens)[:, None]) * (2 * half)
    target += j[None, :]
    if has_norm:
        weight = q_weight if first < q_heads else k_weight
        left_weight = tl.load(weight + j, mask=j < half, other=0.0).to(tl.float32)[None, :]
        right_weight = tl.load(weight + half + j, mask=j < half, other=0.0).to(tl.float32)[None, :]
    for h in tl.static_range(together):
        left, right = lefts[h].to(tl.float32), rights[h].to(tl.float32)
        if has_norm:
            square = tl.sum(left * left, 1) + tl.sum(right * right, 1)
            scale = tl.rsqrt(square / (2 * half) + eps)
            left = left * scale[:, None] * left_weight
            right = right * scale[:, None] * right_weight
        there = target + h * (2 * half) * tokens
        tl.store(there, ((left * cos - right * sin) * factor).to(out_ptr.dtype.element_ty), mask=inside)
        tl.store(there + half, ((right * cos + left * sin) * factor).to(out_ptr.dtype.element_ty), mask=inside)


def norm_rotate(
    qkv: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor, sin: Tensor,
    *, q_heads: int, k_heads: int, eps: float, q_scale: float, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Normalise and rotate the queries and keys of [B, N, heads, D], heads first: [B, A + G, N, D].

    cos and sin are [N, D/2]; queries are multiplied by `q_scale`.
    """
    B, N, heads, D = qkv.shape
    out = torch.empty(B, q_heads + k_heads, N, D, device=qkv.device, dtype=dtype or qkv.dtype)
    together = heads_together(q_heads, k_heads) if takes_kernel(qkv, name="rotate_heads") else 1
    padded = triton.next_power_of_2(D // 2)
    rows = 64 if together == 1 else max(8, min(64, 1024 // padded))
    launch: Any = _norm_rotate[(triton.cdiv(B * N, rows), (q_heads + k_heads) // together)]
    launch(
        qkv, out, q_weight, k_weight, cos, sin, B * N, N, heads * D,
        q_heads=q_heads, k_heads=k_heads, half=D // 2, padded_half=padded,
        eps=eps, q_scale=q_scale, has_norm=q_weight is not None, rows=rows, together=together, num_warps=4,
    )  # fmt: skip
    return out


def heads_together(q_heads: int, k_heads: int) -> int:
    """Return how many heads a program of `norm_rotate` takes: all of them queries, or all keys."""
    return next(number for number in (4, 2, 1) if q_heads % number == k_heads % number == 0)


@triton.jit
def _add_norm(
    x_ptr, y_ptr, scale_ptr, weight_ptr, out_ptr, channels, eps: tl.constexpr,
    has_branch: tl.constexpr, has_scale: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * channels
    c = tl.arange(0, padded)
    inside = c < channels
    x = tl.load(x_ptr + row + c, mask=inside, other=0.0).to(tl.float32)
    if has_branch:
        y = tl.load(y_ptr + row + c, mask=inside, other=0.0).to(tl.float32)
        if has_scale:
            y = y * tl.load(scale_ptr + c, mask=inside, other=0.0).to(tl.float32)
        kept = (x + y).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + row + c, kept, mask=inside)
        x = kept.to(tl.float32)
    spread = tl.rsqrt(tl.sum(x * x, 0) / channels + eps)
    weight = tl.load(weight_ptr + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + c, (x * spread * weight).to(out_ptr.dtype.element_ty), mask=inside)


def add_norm_(x: Tensor, y: Tensor | None, scale: Tensor | None, weight: Tensor, *, eps: float) -> Tensor:
    """Add a (scaled) branch to [..., C] in place, and return the RMS norm of the sum."""
    channels = x.shape[-1]
    out = torch.empty_like(x)
    padded = triton.next_power_of_2(channels)
    launch: Any = _add_norm[(x.numel() // channels,)]
    launch(
        x, y, scale, weight, out, channels, eps=eps,
        has_branch=y is not None, has_scale=scale is not None, padded=padded, num_warps=4 if padded <= 1024 else 8,
    )  # fmt: skip
    return out


@triton.jit
def _gate(h_ptr, out_ptr, count, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    pair = tl.program_id(0).to(tl.int64) * (2 * block) + tl.arange(0, 2 * block)
    both = tl.load(h_ptr + pair, mask=pair < 2 * count, other=0.0).to(tl.float32)
    gate, up = tl.split(tl.reshape(both, (block, 2)))
    tl.store(out_ptr + at, (gate * tl.sigmoid(gate) * up).to(out_ptr.dtype.element_ty), mask=at < count)


def silu_gate(h: Tensor) -> Tensor:
    """Return silu(gate) · up for [..., 2F] that holds gate and up in turns: [..., F]."""
    out = torch.empty(*h.shape[:-1], h.shape[-1] // 2, device=h.device, dtype=h.dtype)
    launch: Any = _gate[(triton.cdiv(out.numel(), 1024),)]
    launch(h, out, out.numel(), block=1024, num_warps=4)
    return out


@triton.jit
def _fill_planes(out_ptr, values_ptr, pixels, planes, block: tl.constexpr):
    plane = tl.program_id(0)
    at = tl.program_id(1) * block + tl.arange(0, block)
    value = tl.load(values_ptr + plane % planes).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + plane.to(tl.int64) * pixels + at, tl.zeros([block], value.dtype) + value, mask=at < pixels)


def fill_planes_(out: Tensor, values: Tensor) -> Tensor:
    """Fill the planes of [B, K, H, W], contiguous, with one value [K] each."""
    B, K, H, W = out.shape
    block = 8192
    launch: Any = _fill_planes[(B * K, triton.cdiv(H * W, block))]
    launch(out, values, H * W, K, block=block, num_warps=4)
    return out
