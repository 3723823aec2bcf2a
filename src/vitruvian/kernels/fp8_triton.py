"""Kernels around matrix products of 8-bit floating-point numbers; see `kernels.fp8`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vitruvian.kernels.gated_linear_triton import processors

ROWS, COLUMNS, DEPTH = 128, 256, 128  # of a tile


@triton.jit
def _store_rounded(values_ptr, scales_ptr, row, x, c, inside, channels):
    # The same rounding as `fp8.round_rows`: the largest value of a row becomes 448.
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-12) / 448.0
    rounded = tl.clamp(x / scale, -448.0, 448.0).to(values_ptr.dtype.element_ty)
    tl.store(values_ptr + row * channels + c, rounded, mask=inside)
    tl.store(scales_ptr + row, scale)


@triton.jit
def _round(x_ptr, values_ptr, scales_ptr, channels, padded: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, padded)
    inside = c < channels
    x = tl.load(x_ptr + row * channels + c, mask=inside, other=0.0).to(tl.float32)
    _store_rounded(values_ptr, scales_ptr, row, x, c, inside, channels)


@triton.jit
def _add_norm(
    x_ptr, y_ptr, scale_ptr, weight_ptr, values_ptr, scales_ptr, channels,
    eps: tl.constexpr, has_scale: tl.constexpr, has_branch: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, padded)
    inside = c < channels
    x = tl.load(x_ptr + row * channels + c, mask=inside, other=0.0).to(tl.float32)
    if has_branch:
        y = tl.load(y_ptr + row * channels + c, mask=inside, other=0.0).to(tl.float32)
        if has_scale:
            y = y * tl.load(scale_ptr + c, mask=inside, other=0.0).to(tl.float32)
        x = (x + y).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + row * channels + c, x, mask=inside)
        x = x.to(tl.float32)
    spread = tl.rsqrt(tl.sum(x * x, 0) / channels + eps)
    weight = tl.load(weight_ptr + c, mask=inside, other=0.0).to(tl.float32)
    _store_rounded(values_ptr, scales_ptr, row, x * spread * weight, c, inside, channels)


@triton.jit
def _silu(x):
    # x · sigmoid(x) by way of tanh, for which one instruction will do; it is off by 5e-4, far less than 8 bits are.
    half = 0.5 * x
    return half + half * tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [half], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _gated(
    x_desc, w_desc, out_desc, x_scale_ptr, w_scale_ptr, bias_ptr, fit_ptr, M, F2, K,
    rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr, group: tl.constexpr, programs: tl.constexpr,
    has_bias: tl.constexpr,
):  # fmt: skip
    down = tl.cdiv(M, rows)
    across = tl.cdiv(F2, columns)
    for tile in tl.range(tl.program_id(0), down * across, programs, flatten=True):
        # Neighbouring tiles share rows and columns, which then lie in the cache.
        first = tile // (group * across) * group
        size = min(down - first, group)
        i = first + (tile % (group * across)) % size
        j = (tile % (group * across)) // size
        total = tl.zeros([rows, columns], tl.float32)
        for k in tl.range(0, K // depth, num_stages=3):
            x = x_desc.load([i * rows, k * depth])
            w = w_desc.load([j * columns, k * depth])
            total = tl.dot(x, w.T, total)
        m = i * rows + tl.arange(0, rows)
        n = j * columns + tl.arange(0, columns)
        total *= tl.load(x_scale_ptr + m, mask=m < M, other=0.0)[:, None]
        total *= tl.load(w_scale_ptr + n)[None, :]
        if has_bias:
            total += tl.load(bias_ptr + n).to(tl.float32)[None, :]
        gate, up = tl.split(tl.reshape(total, (rows, columns // 2, 2)))
        f = j * (columns // 2) + tl.arange(0, columns // 2)
        hidden = _silu(gate) * up * tl.load(fit_ptr + f)[None, :]
        out_desc.store([i * rows, j * (columns // 2)], tl.clamp(hidden, -448.0, 448.0).to(out_desc.dtype))


def _empty_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    values = torch.empty(x.shape, device=x.device, dtype=torch.float8_e4m3fn)
    return values, torch.empty(*x.shape[:-1], 1, device=x.device, dtype=torch.float32)


def _warps(padded: int) -> int:
    return 4 if padded <= 1024 else 8


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round the rows of contiguous [..., K] to 8 bits: values, and scales [..., 1]."""
    values, scales = _empty_rows(x)
    channels = x.shape[-1]
    padded = triton.next_power_of_2(channels)
    launch: Any = _round[(x.numel() // channels,)]
    launch(x, values, scales, channels, padded=padded, num_warps=_warps(padded))
    return values, scales


def add_norm_rows_(
    x: Tensor, y: Tensor | None, scale: Tensor | None, weight: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """Add a (scaled) branch to contiguous [..., C] in place; return the RMS norm of the sum in 8 bits."""
    values, scales = _empty_rows(x)
    channels = x.shape[-1]
    padded = triton.next_power_of_2(channels)
    launch: Any = _add_norm[(x.numel() // channels,)]
    launch(
        x, y, scale, weight, values, scales, channels,
        eps=eps, has_scale=scale is not None, has_branch=y is not None, padded=padded, num_warps=_warps(padded),
    )  # fmt: skip
    return values, scales


def gated_linear(
    x: Tensor, x_scales: Tensor, weight: Tensor, w_scales: Tensor, bias: Tensor | None, fit: Tensor
) -> Tensor:
    """Return silu(gate) · up · fit of x @ weightᵀ + bias, whose columns alternate: [M, K], [2F, K] -> [M, F]."""
    (M, K), F2 = x.shape, weight.shape[0]
    out = torch.empty(M, F2 // 2, device=x.device, dtype=x.dtype)
    programs = min(processors(x.device), triton.cdiv(M, ROWS) * triton.cdiv(F2, COLUMNS))
    launch: Any = _gated[(programs,)]
    launch(
        TensorDescriptor.from_tensor(x, [ROWS, DEPTH]),
        TensorDescriptor.from_tensor(weight, [COLUMNS, DEPTH]),
        TensorDescriptor.from_tensor(out, [ROWS, COLUMNS // 2]),
        x_scales, w_scales, bias, fit, M, F2, K,
        rows=ROWS, columns=COLUMNS, depth=DEPTH, group=16, programs=programs, has_bias=bias is not None, num_warps=8,
    )  # fmt: skip
    return out


def fits(x: Tensor, weight: Tensor) -> bool:
    """Tell whether `gated_linear` takes these sizes on this device."""
    return (
        torch.cuda.get_device_capability(x.device) >= (9, 0)
        and x.shape[-1] % DEPTH == 0
        and weight.shape[0] % COLUMNS == 0
    )
