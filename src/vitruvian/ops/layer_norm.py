"""Layer norm, also of a residual sum: the sum, its norm and, where the next layer wants them, positions, in one pass.

torch launches a block of threads for each row on CUDA, which takes far longer than reading the row where there are
millions of rows of a few channels. The Triton version norms several rows in a block.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.ops.dispatch import triton_jit, use_triton
from vitruvian.ops.triton_import import tl, triton

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return the layer norm of x [..., C]."""
    if use_triton("layer_norm", x, norm.weight, dtypes=_DTYPES):
        return _layer_norm_triton(x, None, norm)[0]
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def add_layer_norm(x: Tensor, branch: Tensor | None, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return x + branch and its layer norm, both [..., C]; without a branch, x and its norm. For pre-norm blocks."""
    if branch is None:
        return x, layer_norm(x, norm)
    if use_triton("layer_norm", x, branch, norm.weight, dtypes=_DTYPES):
        total = torch.empty_like(x, memory_format=torch.contiguous_format)
        return total, _layer_norm_triton(x, branch, norm, total=total)[0]
    total = x + branch
    return total, norm(total)


def layer_norm_of_sum(x: Tensor, branch: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return the layer norm of x + branch, both [..., C]. For post-norm blocks."""
    if use_triton("layer_norm", x, branch, norm.weight, dtypes=_DTYPES):
        return _layer_norm_triton(x, branch, norm)[0]
    out: Tensor = norm(x + branch)
    return out


def layer_norm_of_sum_and_positions(
    x: Tensor, branch: Tensor, norm: nn.LayerNorm, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the layer norm of x + branch, both [B, N, C], and the same with positions [N, C] added."""
    if use_triton("layer_norm", x, branch, norm.weight, positions, dtypes=_DTYPES):
        normed, with_positions = _layer_norm_triton(x, branch, norm, positions=positions)
        assert with_positions is not None
        return normed, with_positions
    normed = norm(x + branch)
    return normed, normed + positions


# ---------------------------------------------------------------------------------------------------------- Triton


def _layer_norm_triton(
    x: Tensor,
    branch: Tensor | None,
    norm: nn.LayerNorm,
    *,
    total: Tensor | None = None,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Norm x + branch [..., C]: the norm, and the norm plus positions [N, C], which repeat over rows.

    The sum is written into `total` where that is given.
    """
    x, branch = x.contiguous(), None if branch is None else branch.contiguous()
    positions = None if positions is None else positions.contiguous()
    channels = x.shape[-1]
    rows = x.numel() // channels
    out = torch.empty_like(x)
    with_positions = None if positions is None else torch.empty_like(x)
    padded = triton.next_power_of_2(channels)
    block_rows = max(1, 2048 // padded)
    _layer_norm_kernel[(triton.cdiv(rows, block_rows),)](
        x, branch, norm.weight, norm.bias, positions, total, out, with_positions,
        rows, 1 if positions is None else positions.numel() // channels,
        channels=channels, padded=padded, block_rows=block_rows, eps=norm.eps,
        has_branch=branch is not None, has_bias=norm.bias is not None,
        has_total=total is not None, has_positions=positions is not None,
        num_warps=4 if padded <= 2048 else 8,
    )  # fmt: skip
    return out, with_positions


@triton_jit
def _layer_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr, branch_ptr, weight_ptr, bias_ptr, positions_ptr, total_ptr, out_ptr, with_positions_ptr, rows, period,
    channels: tl.constexpr, padded: tl.constexpr, block_rows: tl.constexpr, eps: tl.constexpr,
    has_branch: tl.constexpr, has_bias: tl.constexpr, has_total: tl.constexpr, has_positions: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    channel = tl.arange(0, padded)
    inside = (row[:, None] < rows) & (channel[None, :] < channels)
    offset = row[:, None].to(tl.int64) * channels + channel[None, :]
    x = tl.load(x_ptr + offset, mask=inside, other=0.0).to(tl.float32)
    if has_branch:
        x += tl.load(branch_ptr + offset, mask=inside, other=0.0).to(tl.float32)
    total = x.to(out_ptr.dtype.element_ty)
    if has_total:
        tl.store(total_ptr + offset, total, mask=inside)
    x = total.to(tl.float32)  # the norm is of the rounded sum, as in the torch version
    mean = tl.sum(x, 1) / channels
    centered = tl.where(inside, x - mean[:, None], 0.0)
    inv_std = tl.rsqrt(tl.sum(centered * centered, 1) / channels + eps)
    weight = tl.load(weight_ptr + channel, mask=channel < channels, other=0.0).to(tl.float32)
    normed = centered * inv_std[:, None] * weight[None, :]
    if has_bias:
        normed += tl.load(bias_ptr + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]
    out = normed.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offset, out, mask=inside)
    if has_positions:
        position = (row % period)[:, None] * channels + channel[None, :]
        positions = tl.load(positions_ptr + position, mask=inside, other=0.0).to(tl.float32)
        tl.store(with_positions_ptr + offset, (out.to(tl.float32) + positions).to(out.dtype), mask=inside)
