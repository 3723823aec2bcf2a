"""What lies between matrix products, joined: each function takes its kernel where that can run, else plain torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.kernels.available import takes_kernel


def norm_rotate(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    q_heads: int,
    k_heads: int,
    eps: float,
    q_scale: float,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Normalise and rotate queries and keys, heads first.

    Args:
        qkv: Queries, keys and values of all heads [B, N, A + 2G, D].
        q_weight: Weight of the queries' RMS norm [D], or None for no norm.
        k_weight: Weight of the keys' RMS norm [D].
        cos: Cosines [N, D/2] in float32, 1 for tokens without a position.
        sin: Sines [N, D/2], 0 for such tokens.
        q_heads: A.
        k_heads: G.
        eps: Epsilon of the norms.
        q_scale: Factor on the queries.
        dtype: Of the result, where it is not that of the input.

    Returns:
        [B, A + G, N, D].
    """
    if takes_kernel(qkv):
        from vitruvian.kernels import fused_triton

        return fused_triton.norm_rotate(
            qkv, q_weight, k_weight, cos, sin, q_heads=q_heads, k_heads=k_heads, eps=eps, q_scale=q_scale, dtype=dtype
        )
    parts = []
    for first, last, weight, scale in ((0, q_heads, q_weight, q_scale), (q_heads, q_heads + k_heads, k_weight, 1.0)):
        x = qkv[:, :, first:last].float()
        if weight is not None:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()
        left, right = x.chunk(2, dim=-1)
        c, s = cos[:, None], sin[:, None]  # [N, 1, D/2]
        turned = torch.cat((left * c - right * s, right * c + left * s), dim=-1)  # [B, N, heads, D]
        parts.append((turned * scale).to(dtype or qkv.dtype))
    return torch.cat(parts, dim=2).transpose(1, 2)  # [B, A + G, N, D]


def add_norm_(x: Tensor, branch: Tensor | None, scale: Tensor | None, weight: Tensor, *, eps: float) -> Tensor:
    """Add a branch, scaled by channel, to [..., C] in place, and return the RMS norm of the sum."""
    if takes_kernel(x, weight):
        from vitruvian.kernels import fused_triton

        return fused_triton.add_norm_(x, branch, scale, weight, eps=eps)
    if branch is not None:
        x += branch if scale is None else branch * scale
    wide = x.float()  # rounded before the weight is multiplied in, as plain models do
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def add_layer_norm_(x: Tensor, branch: Tensor | None, norm: nn.LayerNorm) -> Tensor:
    """Add a branch to [..., C] in place, and return the layer norm of the sum."""
    if takes_kernel(x, norm.weight, name="layer_norm", wide=True):
        from vitruvian.kernels import layer_norm_triton

        given = None if branch is None else branch.contiguous()
        return layer_norm_triton.layer_norm(x, given, norm.weight, norm.bias, None, eps=norm.eps, keeps_sum=True)[0]
    if branch is not None:
        x += branch
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def norm_of_sum(x: Tensor, branch: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return the layer norm of x + branch, both [..., C]."""
    if takes_kernel(x, norm.weight, name="layer_norm", wide=True):
        from vitruvian.kernels import layer_norm_triton

        return layer_norm_triton.layer_norm(
            x.contiguous(), branch.contiguous(), norm.weight, norm.bias, None, eps=norm.eps, keeps_sum=False
        )[0]
    return F.layer_norm(x + branch, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def norm_and_place(x: Tensor, branch: Tensor, norm: nn.LayerNorm, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return the layer norm of x + branch, both [B, N, C], and the same with positions [N, C] added."""
    if takes_kernel(x, norm.weight, places, name="layer_norm", wide=True):
        from vitruvian.kernels import layer_norm_triton

        normed, placed = layer_norm_triton.layer_norm(
            x.contiguous(), branch.contiguous(), norm.weight, norm.bias, places.contiguous(),
            eps=norm.eps, keeps_sum=False,
        )  # fmt: skip
        assert placed is not None
        return normed, placed
    normed = F.layer_norm(x + branch, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return normed, normed + places


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return silu(gate) · up, where x @ weightᵀ + bias holds gate and up in turns.

    Args:
        x: [..., K].
        weight: [2F, K], rows of gate and up alternating.
        bias: [2F], likewise, or None.

    Returns:
        [..., F].
    """
    if takes_kernel(x, weight):
        from vitruvian.kernels import fused_triton, gated_linear_triton

        flat = x.reshape(-1, x.shape[-1])  # [M, K]
        if takes_hopper_gate(flat, weight):
            from vitruvian.kernels import gated_hopper

            out = gated_hopper.gated_linear(flat, weight, bias)  # [M, F]
        elif gated_linear_triton.fits(flat, weight):
            out = gated_linear_triton.gated_linear(flat, weight, bias)  # [M, F]
        else:
            out = fused_triton.silu_gate(F.linear(flat, weight, bias))  # [M, F]
        return out.view(*x.shape[:-1], -1)
    both = F.linear(x, weight, bias)  # [..., 2F]
    return F.silu(both[..., 0::2]) * both[..., 1::2]


def takes_hopper_gate(x: Tensor, weight: Tensor) -> bool:
    """Tell whether the kernel for Hopper chips takes a product of these."""
    if not takes_kernel(x, weight, name="gated_hopper"):
        return False
    from vitruvian.kernels import gated_hopper

    return gated_hopper.fits(x, weight)


def instance_norm_silu(x: Tensor, bias: Tensor | None = None, *, eps: float = 1e-5, shuffles: bool = False) -> Tensor:
    """Add a bias [C] to maps [B, C, H, W], normalise over each picture's pixels and apply SiLU; the maps may be gone.

    With `shuffles`, the 4·C' channels come phase by phase, (0, 0), (0, 1), (1, 0), (1, 1), and become [B, C', 2H, 2W].
    """
    if takes_kernel(x) and x.is_contiguous(memory_format=torch.channels_last):
        from vitruvian.kernels import instance_norm_triton

        return instance_norm_triton.norm_silu(x, bias, eps=eps, shuffles=shuffles)
    if bias is not None:
        x = x + bias[:, None, None]
    if shuffles:
        B, C, H, W = x.shape
        x = x.view(B, 2, 2, C // 4, H, W).permute(0, 3, 4, 1, 5, 2).reshape(B, C // 4, 2 * H, 2 * W)
    return F.silu(F.instance_norm(x, eps=eps))


def norm_silu_shuffled(x: Tensor, bias: Tensor | None, *, eps: float = 1e-5) -> Tensor:
    """Add a bias [4·C'] to maps [B, 4·C', H, W], shuffle their pixels to [B, C', 2H, 2W], normalise, apply SiLU."""
    order = torch.arange(x.shape[1], device=x.device).view(-1, 4).t().flatten()  # phase by phase
    phases = x.permute(0, 2, 3, 1)[..., order].permute(0, 3, 1, 2)  # channels last
    return instance_norm_silu(phases, None if bias is None else bias[order], eps=eps, shuffles=True)


def fill_planes_(out: Tensor, values: Tensor) -> Tensor:
    """Fill the planes of [B, K, H, W] with one value [K] each."""
    if takes_kernel(out, values, name="planes") and out.is_contiguous():
        from vitruvian.kernels import fused_triton

        return fused_triton.fill_planes_(out, values)
    return out.copy_(values[:, None, None])
