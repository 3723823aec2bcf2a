"""Kernels that join what lies between matrix products: norms, rotations, residuals, gates."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm_rotate(
    x_ptr, out_ptr, q_weight, k_weight, cos_ptr, sin_ptr, count, tokens, row,
    q_heads: tl.constexpr, k_heads: tl.constexpr, half: tl.constexpr, padded_half: tl.constexpr,
    eps: tl.constexpr, q_scale: tl.constexpr, has_norm: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    t = tl.program_id(0) * rows + tl.arange(0, rows)
    j = tl.arange(0, padded_half)
    inside = (t[:, None] < count) & (j[None, :] < half)
    place = x_ptr + t[:, None].to(tl.int64) * row + head * (2 * half) + j[None, :]
    left = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
    if has_norm:
        square = tl.sum(left * left, 1) + tl.sum(right * right, 1)
        scale = tl.rsqrt(square / (2 * half) + eps)
        weight = q_weight if head < q_heads else k_weight
        left = left * scale[:, None] * tl.load(weight + j, mask=j < half, other=0.0).to(tl.float32)[None, :]
        right = right * scale[:, None] * tl.load(weight + half + j, mask=j < half, other=0.0).to(tl.float32)[None, :]
    angle = (t % tokens)[:, None] * half + j[None, :]
    cos = tl.load(cos_ptr + angle, mask=inside, other=1.0)
    sin = tl.load(sin_ptr + angle, mask=inside, other=0.0)
    factor = q_scale if head < q_heads else 1.0
    # Heads come first in what is written: attention then reads whole lines.
    batch = (t // tokens)[:, None].to(tl.int64)
    target = out_ptr + ((batch * (q_heads + k_heads) + head) * tokens + (t % tokens)[:, None]) * (2 * half) + j[None, :]
    tl.store(target, ((left * cos - right * sin) * factor).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(target + half, ((right * cos + left * sin) * factor).to(out_ptr.dtype.element_ty), mask=inside)


def norm_rotate(
    qkv: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor, sin: Tensor,
    *, q_heads: int, k_heads: int, eps: float, q_scale: float,
) -> Tensor:  # fmt: skip
    """Normalise and rotate the queries and keys of [B, N, heads, D], heads first: [B, A + G, N, D].

    cos and sin are [N, D/2]; queries are multiplied by `q_scale`.
    """
    B, N, heads, D = qkv.shape
    out = torch.empty(B, q_heads + k_heads, N, D, device=qkv.device, dtype=qkv.dtype)
    rows = 64
    launch: Any = _norm_rotate[(triton.cdiv(B * N, rows), q_heads + k_heads)]
    launch(
        qkv, out, q_weight, k_weight, cos, sin, B * N, N, heads * D,
        q_heads=q_heads, k_heads=k_heads, half=D // 2, padded_half=triton.next_power_of_2(D // 2),
        eps=eps, q_scale=q_scale, has_norm=q_weight is not None, rows=rows, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _add_norm(
    x_ptr, y_ptr, scale_ptr, weight_ptr, out_ptr, channels,
    eps: tl.constexpr, has_scale: tl.constexpr, has_branch: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * channels
    c = tl.arange(0, padded)
    inside = c < channels
    x = tl.load(x_ptr + row + c, mask=inside, other=0.0).to(tl.float32)
    if has_branch:
        y = tl.load(y_ptr + row + c, mask=inside, other=0.0).to(tl.float32)
        if has_scale:
            y = y * tl.load(scale_ptr + c, mask=inside, other=0.0).to(tl.float32)
        x = (x + y).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + row + c, x, mask=inside)
        x = x.to(tl.float32)
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
        x, y, scale, weight, out, channels,
        eps=eps, has_scale=scale is not None, has_branch=y is not None, padded=padded,
        num_warps=4 if padded <= 1024 else 8,
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
