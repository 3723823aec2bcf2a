"""Instance norm + SiLU on channels-last maps that needs less memory: in place, and with weights as they are.

A pixel shuffle reads channels 4·c + phase. Where a convolution's weights keep that order, no second copy of them, phase
by phase, is needed: what each program has read changes its order between threads, and is written phase by phase.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitruvian.kernels.instance_norm_triton import _apply, _merge, _partial

PHASES = 4


@triton.jit
def _apply_shuffled(
    x_ptr, bias_ptr, mean_ptr, spread_ptr, out_ptr, pixels, channels, across,
    rows: tl.constexpr, width: tl.constexpr, has_bias: tl.constexpr,
):  # fmt: skip
    picture = tl.program_id(2)
    kept = channels // 4
    c = tl.program_id(1) * width + tl.arange(0, width)
    at = tl.program_id(0) * rows + tl.arange(0, rows)
    place = x_ptr + picture.to(tl.int64) * pixels * channels
    place += at[:, None].to(tl.int64) * channels + c[None, :]
    x = tl.load(place, mask=(at[:, None] < pixels) & (c[None, :] < channels), other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + picture * kept + c // 4, mask=c < channels, other=0.0)
    spread = tl.load(spread_ptr + picture * kept + c // 4, mask=c < channels, other=0.0)
    if has_bias:
        mean -= tl.load(bias_ptr + c, mask=c < channels, other=0.0).to(tl.float32)
    x = (x - mean[None, :]) * spread[None, :]
    x = (x * tl.sigmoid(x)).to(out_ptr.dtype.element_ty)
    # From channels in turns to phases in a row: neighbours in memory are then those of one pixel.
    x = tl.reshape(tl.permute(tl.reshape(x, (rows, width // 4, 4)), (0, 2, 1)), (rows, width))
    i = tl.arange(0, width)
    phase, own = i // (width // 4), tl.program_id(1) * (width // 4) + i % (width // 4)
    row = (at // across)[:, None] * 2 + (phase // 2)[None, :]
    column = (at % across)[:, None] * 2 + (phase % 2)[None, :]
    target = (row * (2 * across) + column).to(tl.int64) * kept + own[None, :]
    target += picture.to(tl.int64) * pixels * channels
    tl.store(out_ptr + target, x, mask=(at[:, None] < pixels) & (own[None, :] < kept))


def norm_silu_(x: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Normalise channels-last maps [B, C, H, W] over each picture's pixels and apply SiLU, in place."""
    (B, C, H, W), width = x.shape, lanes(x)
    mean, spread = moments(x, None, eps=eps, phases=1)
    launch: Any = _apply[(triton.cdiv(H * W, 8192 // width), triton.cdiv(C, width), B)]
    launch(
        x, None, mean, spread, x, H * W, C, W,
        rows=8192 // width, width=width, has_bias=False, shuffles=False, num_warps=4,
    )  # fmt: skip
    return x


def norm_silu_shuffled(x: Tensor, bias: Tensor | None, *, eps: float = 1e-5) -> Tensor:
    """Add a bias [4·C'] to channels-last maps [B, 4·C', H, W], shuffle their pixels to [B, C', 2H, 2W], normalise over
    each picture's pixels and apply SiLU."""
    (B, C, H, W), width = x.shape, lanes(x)
    mean, spread = moments(x, bias, eps=eps, phases=PHASES)
    shape = (B, C // PHASES, 2 * H, 2 * W)
    out = torch.empty(shape, device=x.device, dtype=x.dtype, memory_format=torch.channels_last)
    launch: Any = _apply_shuffled[(triton.cdiv(H * W, 4096 // width), triton.cdiv(C, width), B)]
    launch(
        x, bias, mean, spread, out, H * W, C, W,
        rows=4096 // width, width=width, has_bias=bias is not None, num_warps=4,
    )  # fmt: skip
    return out


def moments(x: Tensor, bias: Tensor | None, *, eps: float, phases: int) -> tuple[Tensor, Tensor]:
    """Return the mean of maps [B, C, H, W] and the factor that norms them [B, C / phases] in float32."""
    (B, C, H, W), width = x.shape, lanes(x)
    pixels, kept = H * W, C // phases
    chunk = 1024 if B * pixels * C > 2**26 else 256  # small maps need more chunks to fill the device
    parts = triton.cdiv(pixels, chunk)
    found = torch.empty(2, B, parts, C, device=x.device, dtype=torch.float32)
    launch: Any = _partial[(parts, triton.cdiv(C, width), B)]
    launch(
        x, bias, found[0], found[1], pixels, C, chunk,
        rows=4096 // width, width=width, has_bias=bias is not None, num_warps=4,
    )  # fmt: skip
    if phases > 1:
        found = found.unflatten(-1, (kept, phases)).transpose(-1, -2).contiguous()  # [2, B, parts, phases, C']
    mean, spread = torch.empty(2, B, kept, device=x.device, dtype=torch.float32)
    launch = _merge[(triton.cdiv(kept, 16), B)]
    launch(
        found[0], found[1], mean, spread, parts, chunk, pixels, kept,
        eps=eps, phases=phases, rows=64, width=16, num_warps=4,
    )  # fmt: skip
    return mean, spread


def lanes(x: Tensor) -> int:
    """Channels of a program."""
    return int(max(4, min(128, triton.next_power_of_2(x.shape[1]))))
