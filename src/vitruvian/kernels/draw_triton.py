"""From the cells of an image to masks in one kernel: both upscalings, their norm and activations, the mask vectors.

The upscaled image, sixteen times the cells, never leaves the registers: a program reads its cells and writes pixels.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

SLOTS = 16  # columns of the last product; the kinds of masks are fewer
# Two warps, so that Triton takes the matrix instructions of one warp and not the asynchronous ones of four: what it
# makes of the latter for small products in a row ends in illegal memory accesses on Hopper chips, although the
# addresses in its PTX are right (Triton 3.6; issues 10486 and 11366 of triton-lang/triton).
ROWS, WARPS = 32, 2


@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))


@triton.jit
def _draw(
    cells_ptr, up1_ptr, finer_ptr, weight_ptr, shift_ptr, up2_ptr, finest_ptr, vectors_ptr, out_ptr,
    prompts, height, width,
    channels: tl.constexpr, middle: tl.constexpr, small: tl.constexpr, kinds: tl.constexpr, slots: tl.constexpr,
    rows: tl.constexpr, eps: tl.constexpr,
):  # fmt: skip
    one = tl.program_id(1).to(tl.int64)
    count = height * width
    m = tl.program_id(0) * rows + tl.arange(0, rows)
    here = m < count
    c = tl.arange(0, channels)
    j = tl.arange(0, middle)
    k = tl.arange(0, small)
    kind = tl.arange(0, slots)
    cells = tl.load(cells_ptr + (one * count + m)[:, None] * channels + c[None, :], mask=here[:, None], other=0.0)
    vectors = tl.load(
        vectors_ptr + (one * kinds + kind)[None, :] * small + k[:, None], mask=(kind < kinds)[None, :], other=0.0
    )
    weight = tl.load(weight_ptr + j).to(tl.float32)
    shift = tl.load(shift_ptr + j).to(tl.float32)
    picture = (one // prompts) * count + m
    pixel = (m // width) * (4 * width * 4) + (m % width) * 4  # of the cell's first pixel
    for quarter in tl.range(0, 4, num_stages=1):
        up1 = tl.load(up1_ptr + quarter * (channels * middle) + c[:, None] * middle + j[None, :])
        finer = finer_ptr + (picture * 4 + quarter)[:, None] * middle + j[None, :]
        x = tl.dot(cells, up1) + tl.load(finer, mask=here[:, None], other=0.0).to(tl.float32)
        mean = tl.sum(x, 1) / middle
        gap = x - mean[:, None]
        spread = tl.rsqrt(tl.sum(gap * gap, 1) / middle + eps)
        x = _gelu(gap * spread[:, None] * weight[None, :] + shift[None, :]).to(cells.dtype)
        for eighth in tl.static_range(4):
            up2 = tl.load(up2_ptr + eighth * (middle * small) + j[:, None] * small + k[None, :])
            finest = finest_ptr + (picture * 16 + quarter * 4 + eighth)[:, None] * small + k[None, :]
            y = _gelu(tl.dot(x, up2) + tl.load(finest, mask=here[:, None], other=0.0).to(tl.float32))
            masks = tl.dot(y.to(cells.dtype), vectors)  # [rows, slots]
            step = (2 * (quarter // 2) + eighth // 2) * (4 * width) + 2 * (quarter % 2) + eighth % 2
            at = (one * kinds + kind)[None, :] * (16 * count) + (pixel + step)[:, None]
            tl.store(out_ptr + at, masks.to(out_ptr.dtype.element_ty), mask=here[:, None] & (kind < kinds)[None, :])


def draw(
    cells: Tensor, up1: Tensor, finer: Tensor, weight: Tensor, shift: Tensor, up2: Tensor, finest: Tensor,
    vectors: Tensor, *, grid_hw: tuple[int, int], eps: float,
) -> Tensor:  # fmt: skip
    """Draw masks [B, P, K, 4h, 4w] from cells [B, P, M, C]; see `kernels.draw`."""
    (B, P, _, C), K = cells.shape, vectors.shape[2]
    height, width = grid_hw
    out = torch.empty(B, P, K, 4 * height, 4 * width, device=cells.device, dtype=cells.dtype)
    launch: Any = _draw[(triton.cdiv(height * width, ROWS), B * P)]
    launch(
        cells, up1, finer, weight, shift, up2, finest, vectors, out, P, height, width,
        channels=C, middle=up1.shape[-1], small=up2.shape[-1], kinds=K, slots=SLOTS, rows=ROWS, eps=eps,
        num_warps=WARPS,
    )  # fmt: skip
    return out


def fits(channels: int, middle: int, small: int, kinds: int) -> bool:
    """Tell whether the kernel takes these sizes."""
    return all(n in (16, 32, 64, 128, 256) for n in (channels, middle, small)) and kinds <= SLOTS
