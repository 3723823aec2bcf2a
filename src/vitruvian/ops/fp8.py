"""Matrix products in 8-bit floating point (e4m3) for inference, with a scale for each row.

Weights are quantized once, with a scale for each output channel; tokens on the fly, in the kernel that computes them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.ops.dispatch import triton_jit, use_triton
from vitruvian.ops.rms_norm import add_rms_norm, rms_norm_row
from vitruvian.ops.swiglu import launch_gated_linear, suits_fused_kernel
from vitruvian.ops.triton_import import tl, triton

_FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
_TINY = 1e-12  # rows of zeros have a scale too
_DEPTH = 128  # channels of a tile of the Triton kernel


class Fp8Rows(NamedTuple):
    """A matrix in 8-bit floating point.

    Attributes:
        values: float8_e4m3fn [..., K].
        scales: Scale of each row [..., 1] in float32.
    """

    values: Tensor
    scales: Tensor

    def dequantize(self) -> Tensor:
        """Return the matrix in float32."""
        return self.values.float() * self.scales


def fp8_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return what products in fp8 need and a model of this device and data type lacks; None if they can run."""
    if not hasattr(F, "scaled_mm"):
        return f"torch.nn.functional.scaled_mm, which torch {torch.__version__} does not have"
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return f"an NVIDIA GPU of the Hopper generation or newer, got a model on {device}"
    return None if dtype == torch.bfloat16 else f"a model in bfloat16, got {dtype}"


def quantize_rows(x: Tensor) -> Fp8Rows:
    """Quantize [..., K] with a scale for each row."""
    if use_triton("fp8", x):
        return _quantize_rows_triton(x.contiguous())
    wide = x.float()
    scales = wide.abs().amax(-1, keepdim=True).clamp_min(_TINY) / FP8_MAX  # [..., 1]
    return Fp8Rows((wide / scales).clamp(-FP8_MAX, FP8_MAX).to(_FP8), scales)


def add_rms_norm_fp8(
    x: Tensor, branch: Tensor | None, weight: Tensor, *, eps: float, scale: Tensor | None = None
) -> tuple[Tensor, Fp8Rows]:
    """Return x + branch · scale [..., C] and its RMS norm in fp8; see `add_rms_norm`."""
    if use_triton("fp8", x, weight):
        return _add_rms_norm_triton(x, branch, weight, eps, scale)
    total, _ = add_rms_norm(x, branch, weight, eps=eps, scale=scale)
    return total, quantize_rows(add_rms_norm(total.float(), None, weight.float(), eps=eps)[1])


def linear_fp8(x: Fp8Rows, weight: Fp8Rows, bias: Tensor | None, *, dtype: torch.dtype) -> Tensor:
    """Return x @ weightᵀ + bias in `dtype`: [..., K], [F, K] -> [..., F]."""
    if not x.values.is_cuda:
        return F.linear(x.dequantize(), weight.dequantize(), None if bias is None else bias.float()).to(dtype)
    out = F.scaled_mm(
        x.values.flatten(0, -2),  # [M, K]
        weight.values.t(),
        x.scales.reshape(-1, 1),
        F.ScalingType.RowWise,
        weight.scales.reshape(1, -1),
        F.ScalingType.RowWise,
        bias=bias,
        output_dtype=dtype,
        use_fast_accum=True,
    )
    return out.view(*x.values.shape[:-1], -1)


def gated_linear_bound(norm: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the largest |silu(gate) · up| after an RMS norm, by channel: [K], [2F, K], [2F] -> [F].

    Rows after an RMS norm have a length of at most √K before they are scaled by `norm`, so that no product with a row
    of the weight exceeds √K times the length of that row; |silu(x)| is at most |x|. The bound is many times what values
    usually are, which the 4 exponent bits of e4m3 have room for.
    """
    lengths: Tensor = torch.linalg.vector_norm(weight.float() * norm.float(), dim=1)
    bound = lengths * math.sqrt(weight.shape[1])  # [2F]
    if bias is not None:
        bound = bound + bias.float().abs()
    return (bound[0::2] * bound[1::2]).clamp_min(_TINY)


def gated_linear_fp8(x: Fp8Rows, weight: Fp8Rows, bias: Tensor | None, scale: Tensor, *, dtype: torch.dtype) -> Fp8Rows:
    """Return silu(gate) · up · scale in fp8, where the columns of x @ weightᵀ + bias alternate between gate and up.

    Args:
        x: Tokens [..., K].
        weight: Alternating rows of gate and up [2F, K].
        bias: [2F], likewise, or None.
        scale: Brings each channel into the range of fp8 [F]: 448 / `gated_linear_bound`. The next weight divides by it.
        dtype: Data type of intermediate results.

    Returns:
        [..., F], with scales of 1.
    """
    shape = x.values.shape[:-1]
    ones = x.scales.new_ones(*shape, 1)
    if use_triton("fp8", x.values, dtypes=(_FP8,)) and suits_fused_kernel(x.values, weight.values, _DEPTH):
        rows = x.values.flatten(0, -2)  # [M, K]
        hidden = launch_gated_linear(rows, weight.values, bias, (x.scales, weight.scales, scale), depth=_DEPTH)
        return Fp8Rows(hidden.view(*shape, -1), ones)
    both = linear_fp8(x, weight, bias, dtype=dtype).float()  # [..., 2F]
    hidden = F.silu(both[..., 0::2]) * both[..., 1::2] * scale
    return Fp8Rows(hidden.clamp(-FP8_MAX, FP8_MAX).to(_FP8), ones)


# ---------------------------------------------------------------------------------------------------------- Triton


def _empty_rows(x: Tensor) -> Fp8Rows:
    values = torch.empty(x.shape, device=x.device, dtype=_FP8)
    return Fp8Rows(values, torch.empty(*x.shape[:-1], 1, device=x.device, dtype=torch.float32))


def _quantize_rows_triton(x: Tensor) -> Fp8Rows:
    out, channels = _empty_rows(x), x.shape[-1]
    padded = triton.next_power_of_2(channels)
    _quantize_kernel[(x.numel() // channels,)](
        x, *out, channels, padded=padded, num_warps=4 if padded <= 1024 else 8
    )  # fmt: skip
    return out


def _add_rms_norm_triton(
    x: Tensor, branch: Tensor | None, weight: Tensor, eps: float, scale: Tensor | None
) -> tuple[Tensor, Fp8Rows]:
    x = x.contiguous()
    branch = None if branch is None else branch.contiguous()
    total, out, channels = x if branch is None else torch.empty_like(x), _empty_rows(x), x.shape[-1]
    padded = triton.next_power_of_2(channels)
    _add_rms_norm_kernel[(x.numel() // channels,)](
        x, branch, scale, weight, total, *out, channels,
        eps=eps, has_scale=scale is not None, has_branch=branch is not None, padded=padded,
        num_warps=4 if padded <= 1024 else 8,
    )  # fmt: skip
    return total, out


@triton_jit
def _store_quantized(values_ptr, scales_ptr, row, x, c, inside, channels):  # type: ignore[no-untyped-def]
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-12) / 448.0
    quantized = tl.clamp(x / scale, -448.0, 448.0).to(values_ptr.dtype.element_ty)
    tl.store(values_ptr + row * channels + c, quantized, mask=inside)
    tl.store(scales_ptr + row, scale)


@triton_jit
def _quantize_kernel(x_ptr, values_ptr, scales_ptr, channels, padded: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, padded)
    inside = c < channels
    x = tl.load(x_ptr + row * channels + c, mask=inside, other=0.0).to(tl.float32)
    _store_quantized(values_ptr, scales_ptr, row, x, c, inside, channels)


@triton_jit
def _add_rms_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr, branch_ptr, scale_ptr, weight_ptr, total_ptr, values_ptr, scales_ptr, channels,
    eps: tl.constexpr, has_scale: tl.constexpr, has_branch: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, padded)
    inside = c < channels
    normed = rms_norm_row(
        x_ptr, branch_ptr, scale_ptr, weight_ptr, total_ptr, row * channels, c, inside, channels,
        eps, has_branch, has_scale,
    )  # fmt: skip
    _store_quantized(values_ptr, scales_ptr, row, normed, c, inside, channels)
