"""Matrix products of 8-bit floating-point numbers, for inference: each row with a scale of its own.

    x ─▶ values of 4 bits for the exponent and 3 for the digits [.., K], a scale for each row [.., 1]

Weights are rounded once, a scale for each output channel; tokens on the fly, in the kernel that makes them. Each
function takes its kernel where that can run, else plain torch, which rounds in the same way.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, unflatten
from torch.nn import functional as F

from vitruvian.kernels.attention import attend_bounded, tiling_for
from vitruvian.kernels.available import takes_kernel

KIND = torch.float8_e4m3fn
LARGEST = 448.0  # of this kind
LEAST = 1e-12  # a row of zeros has a scale too


class Rows(NamedTuple):
    """A matrix of 8-bit values [..., K] and the scale of each row [..., 1] in float32."""

    values: Tensor
    scales: Tensor

    def wide(self) -> Tensor:
        """Return what the values stand for, in float32."""
        return self.values.float() * self.scales


def can_multiply(device: torch.device) -> bool:
    """Tell whether a device multiplies 8-bit floating-point numbers with a scale for each row: Hopper and newer."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def round_rows(x: Tensor) -> Rows:
    """Round the rows of [..., K]."""
    if takes_kernel(x, name="fp8"):
        from vitruvian.kernels import fp8_triton

        return Rows(*fp8_triton.round_rows(x.contiguous()))
    wide = x.float()
    scales = wide.abs().amax(-1, keepdim=True).clamp_min(LEAST) / LARGEST  # [..., 1]
    return Rows((wide / scales).clamp(-LARGEST, LARGEST).to(KIND), scales)


def add_norm_rows_(x: Tensor, branch: Tensor | None, scale: Tensor | None, weight: Tensor, *, eps: float) -> Rows:
    """Add a branch, scaled by channel, to [..., C] in place, and return the RMS norm of the sum in 8 bits."""
    if takes_kernel(x, weight, name="fp8"):
        from vitruvian.kernels import fp8_triton

        return Rows(*fp8_triton.add_norm_rows_(x, branch, scale, weight, eps=eps))
    if branch is not None:
        x += branch if scale is None else branch * scale
    wide = x.float()
    return round_rows(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float())


def linear_rows(x: Rows, weight: Rows, bias: Tensor | None, *, dtype: torch.dtype) -> Tensor:
    """Return x @ weightᵀ + bias: [..., K], [F, K] -> [..., F]."""
    if not x.values.is_cuda:
        return F.linear(x.wide(), weight.wide(), None if bias is None else bias.float()).to(dtype)
    flat = x.values.flatten(0, -2)  # [M, K]
    out = torch._scaled_mm(
        flat,
        weight.values.t(),
        scale_a=x.scales.reshape(-1, 1),
        scale_b=weight.scales.reshape(1, -1),
        bias=bias,
        out_dtype=dtype,
        use_fast_accum=True,
    )
    return unflatten(out, 0, x.values.shape[:-1])


def linear_reach(norm: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The most that a linear layer can return after an RMS norm, channel by channel: [K], [F, K], [F] -> [F].

    What an RMS norm returns has a length of at most √K before it is scaled by `norm`, so that no product with a row of
    the matrix exceeds √K times that row's length. Such a bound is many times what values usually are, and
    floating-point numbers have that room: of 8 bits, 4 are for the exponent.
    """
    lengths: Tensor = torch.linalg.vector_norm(weight.float() * norm.float(), dim=1)
    reach = lengths * math.sqrt(weight.shape[1])  # [F]
    return (reach if bias is None else reach + bias.float().abs()).clamp_min(LEAST)


def gated_reach(norm: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The most that silu(gate) · up can be after an RMS norm: [K], [2F, K], [2F] -> [F]. silu(x) stays below x."""
    reach = linear_reach(norm, weight, bias)  # [2F]
    return (reach[0::2] * reach[1::2]).clamp_min(LEAST)


def attend_rows(q: Tensor, k: Tensor, v: Tensor) -> Rows:
    """Attend from [B, A, N, D] to [B, G, N, D]: [B, N, A·D] in 8 bits. See `attention.attend_bounded`.

    Args:
        q: Queries in 8 bits.
        k: Keys in 8 bits.
        v: Values of at most `LARGEST`, which their means do not exceed either.
    """
    B, A, N, D = q.shape
    ones = torch.ones(B, N, 1, device=q.device)
    if takes_kernel(v, name="attention_hopper"):
        from vitruvian.kernels import attention_hopper

        if attention_hopper.fits(q, k, v):
            out = attention_hopper.attend_bounded(q, k, v, tiling_for(q), dtype=KIND)
            return Rows(out.view(B, N, A * D), ones)
    out = attend_bounded(q.to(v.dtype), k.to(v.dtype), v)  # [B, N, A, D]
    return Rows(out.reshape(B, N, A * D).clamp(-LARGEST, LARGEST).to(KIND), ones)


def gated_linear_rows(x: Rows, weight: Rows, bias: Tensor | None, fit: Tensor, *, dtype: torch.dtype) -> Rows:
    """Return silu(gate) · up · fit in 8 bits, where x @ weightᵀ + bias holds gate and up in turns: [..., K] to F.

    Args:
        x: Tokens.
        weight: Rows of gate and up in turns [2F, K].
        bias: Of both in turns [2F].
        fit: What brings each channel into the range of 8 bits [F]: the next matrix has to take it back.
        dtype: Of what is not 8 bits on the way.
    """
    shape = x.values.shape[:-1]
    ones = x.scales.new_ones(*shape, 1)
    given = () if bias is None else (bias,)
    if x.values.is_cuda and takes_kernel(*given, name="fp8"):
        from vitruvian.kernels import fp8_triton

        if fp8_triton.fits(x.values, weight.values):
            flat = x.values.flatten(0, -2), x.scales.flatten(0, -2)  # [M, K], [M, 1]
            return Rows(unflatten(fp8_triton.gated_linear(*flat, *weight, bias, fit), 0, shape), ones)
    both = linear_rows(x, weight, bias, dtype=dtype).float()  # [..., 2F]
    hidden = F.silu(both[..., 0::2]) * both[..., 1::2] * fit
    return Rows(hidden.clamp(-LARGEST, LARGEST).to(KIND), ones)
