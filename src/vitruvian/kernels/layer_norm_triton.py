"""Layer norm of a sum: the residual, the norm and, where the next layer wants it, positions added, in one pass."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _layer_norm(
    x_ptr, branch_ptr, weight_ptr, bias_ptr, places_ptr, out_ptr, placed_ptr, count, period,
    channels: tl.constexpr, padded: tl.constexpr, rows: tl.constexpr, eps: tl.constexpr,
    has_branch: tl.constexpr, keeps_sum: tl.constexpr, has_places: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * rows + tl.arange(0, rows)
    c = tl.arange(0, padded)
    inside = (r[:, None] < count) & (c[None, :] < channels)
    at = r[:, None].to(tl.int64) * channels + c[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if has_branch:
        x += tl.load(branch_ptr + at, mask=inside, other=0.0).to(tl.float32)
        total = x.to(out_ptr.dtype.element_ty)
        if keeps_sum:
            tl.store(x_ptr + at, total, mask=inside)
        x = total.to(tl.float32)
    mean = tl.sum(x, 1) / channels
    gap = tl.where(inside, x - mean[:, None], 0.0)
    spread = tl.rsqrt(tl.sum(gap * gap, 1) / channels + eps)
    weight = tl.load(weight_ptr + c, mask=c < channels, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + c, mask=c < channels, other=0.0).to(tl.float32)
    out = (gap * spread[:, None] * weight[None, :] + bias[None, :]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, out, mask=inside)
    if has_places:
        place = (r % period)[:, None] * channels + c[None, :]
        places = tl.load(places_ptr + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(placed_ptr + at, (out.to(tl.float32) + places).to(out_ptr.dtype.element_ty), mask=inside)


def layer_norm(
    x: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, places: Tensor | None,
    *, eps: float, keeps_sum: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Norm x + branch, both contiguous [..., C]: the norm, and the norm plus places [N, C] for rows that repeat them.

    With `keeps_sum`, x becomes the sum.
    """
    channels = x.shape[-1]
    count = x.numel() // channels
    out = torch.empty_like(x)
    placed = None if places is None else torch.empty_like(x)
    padded = triton.next_power_of_2(channels)
    rows = max(1, min(16, 2048 // padded))
    launch: Any = _layer_norm[(triton.cdiv(count, rows),)]
    launch(
        x, branch, weight, bias, places, out, placed, count, 1 if places is None else places.numel() // channels,
        channels=channels, padded=padded, rows=rows, eps=eps,
        has_branch=branch is not None, keeps_sum=keeps_sum, has_places=places is not None,
        num_warps=4 if padded <= 2048 else 8,
    )  # fmt: skip
    return out, placed
