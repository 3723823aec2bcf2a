"""SAM 2's masks from the cells of an image, for inference."""

from __future__ import annotations

from torch import Tensor, unflatten
from torch.nn import functional as F

from vitruvian.kernels.available import takes_kernel


def draw(
    cells: Tensor,
    up1: Tensor,
    finer: Tensor,
    weight: Tensor,
    shift: Tensor,
    up2: Tensor,
    finest: Tensor,
    vectors: Tensor,
    *,
    grid_hw: tuple[int, int],
    eps: float,
) -> Tensor:
    """Upscale cells fourfold, with finer levels added, and score every pixel for every mask vector.

    A cell has four quarters and each of these four parts, row by row.

    Args:
        cells: [B, P, M, C], M = h·w.
        up1: First upscaling, a matrix for each quarter [4, C, C'].
        finer: Added to its result [B, M·4, C'], the quarters of a cell next to each other.
        weight: Weight of the norm after it [C'].
        shift: Bias of the norm [C'].
        up2: Second upscaling [4, C', C''].
        finest: Added to its result [B, M·16, C''], in the same order.
        vectors: [B, P, K, C''].
        grid_hw: h and w.
        eps: Epsilon of the norm.

    Returns:
        Masks [B, P, K, 4h, 4w].
    """
    sizes = (cells.shape[-1], up1.shape[-1], up2.shape[-1], vectors.shape[2])
    if takes_kernel(cells, vectors, name="draw"):
        from vitruvian.kernels import draw_triton

        if draw_triton.fits(*sizes):
            return draw_triton.draw(
                cells.contiguous(), up1.contiguous(), finer.contiguous(), weight, shift, up2.contiguous(),
                finest.contiguous(), vectors.contiguous(), grid_hw=grid_hw, eps=eps,
            )  # fmt: skip
    x = F.linear(cells, up1.transpose(1, 2).flatten(0, 1))  # [B, P, M, 4·C']
    x = unflatten(x, -1, (4, -1)).flatten(2, 3) + finer[:, None]  # [B, P, M·4, C']
    x = F.gelu(F.layer_norm(x, weight.shape, weight, shift, eps))
    x = F.linear(x, up2.transpose(1, 2).flatten(0, 1))  # [B, P, M·4, 4·C'']
    x = F.gelu(unflatten(x, -1, (4, -1)).flatten(2, 3) + finest[:, None])  # [B, P, M·16, C'']
    masks = unflatten(vectors @ x.transpose(2, 3), -1, (*grid_hw, 2, 2, 2, 2))  # [B, P, K, h, w, y, x, y', x']
    return masks.permute(0, 1, 2, 3, 5, 7, 4, 6, 8).flatten(6).flatten(3, 5)  # [B, P, K, 4h, 4w]
