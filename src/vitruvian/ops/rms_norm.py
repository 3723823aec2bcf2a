"""RMS norm, alone and of a residual sum."""

from __future__ import annotations

import torch
from torch import Tensor

from vitruvian.ops.dispatch import triton_jit, use_triton
from vitruvian.ops.triton_import import tl, triton


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Scale each row of [..., C] to unit root mean square, then by `weight` [C]. Statistics are in float32."""
    if use_triton("rms_norm", x, weight):
        return _rms_norm_triton(x, None, weight, eps, None)[1]
    return _rms_norm_torch(x, weight, eps)


def add_rms_norm(
    x: Tensor, branch: Tensor | None, weight: Tensor, *, eps: float, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return x + branch · scale and its RMS norm, both [..., C]; without a branch, x and its norm.

    Args:
        x: Residual stream [..., C].
        branch: Output of the last block [..., C].
        weight: Weight of the norm [C].
        eps: Epsilon of the norm.
        scale: Layer scale of the branch [C].
    """
    if branch is None:
        return x, rms_norm(x, weight, eps=eps)
    if use_triton("rms_norm", x, branch, weight):
        return _rms_norm_triton(x, branch, weight, eps, scale)
    total = x + (branch if scale is None else branch * scale)
    return total, _rms_norm_torch(total, weight, eps)


def _rms_norm_torch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


# ---------------------------------------------------------------------------------------------------------- Triton


def _rms_norm_triton(
    x: Tensor, branch: Tensor | None, weight: Tensor, eps: float, scale: Tensor | None
) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    branch = None if branch is None else branch.contiguous()
    channels = x.shape[-1]
    total, out = x if branch is None else torch.empty_like(x), torch.empty_like(x)
    padded = triton.next_power_of_2(channels)
    _rms_norm_kernel[(x.numel() // channels,)](
        x, branch, scale, weight, total, out, channels, eps=eps,
        has_branch=branch is not None, has_scale=scale is not None, padded=padded,
        num_warps=4 if padded <= 1024 else 8,
    )  # fmt: skip
    return total, out


@triton_jit
def rms_norm_row(  # type: ignore[no-untyped-def]
    x_ptr, branch_ptr, scale_ptr, weight_ptr, total_ptr, row, channel, inside, channels,
    eps: tl.constexpr, has_branch: tl.constexpr, has_scale: tl.constexpr,
):  # fmt: skip
    """Write x + branch · scale of the row that starts at element `row`, and return its RMS norm in float32."""
    x = tl.load(x_ptr + row + channel, mask=inside, other=0.0).to(tl.float32)
    if has_branch:
        branch = tl.load(branch_ptr + row + channel, mask=inside, other=0.0).to(tl.float32)
        if has_scale:
            branch = branch * tl.load(scale_ptr + channel, mask=inside, other=0.0).to(tl.float32)
        total = (x + branch).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row + channel, total, mask=inside)
        x = total.to(tl.float32)  # the norm is of the rounded sum, as in the torch version
    inv_rms = tl.rsqrt(tl.sum(x * x, 0) / channels + eps)
    return x * inv_rms * tl.load(weight_ptr + channel, mask=inside, other=0.0).to(tl.float32)


@triton_jit
def _rms_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr, branch_ptr, scale_ptr, weight_ptr, total_ptr, out_ptr, channels, eps: tl.constexpr,
    has_branch: tl.constexpr, has_scale: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * channels
    channel = tl.arange(0, padded)
    inside = channel < channels
    normed = rms_norm_row(
        x_ptr, branch_ptr, scale_ptr, weight_ptr, total_ptr, row, channel, inside, channels, eps, has_branch, has_scale
    )
    tl.store(out_ptr + row + channel, normed.to(out_ptr.dtype.element_ty), mask=inside)
