"""What lies between matrix products, joined: each function takes its kernel where that can run, else plain torch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.kernels.available import takes_kernel


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
