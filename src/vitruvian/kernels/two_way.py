"""The two attentions between a prompt's few tokens and its image, for inference."""

from __future__ import annotations

from torch import Tensor, unflatten
from torch.nn import functional as F

from vitruvian.kernels.available import takes_kernel


def look(folded: Tensor, image: Tensor, places: Tensor, *, heads: int) -> Tensor:
    """Let tokens look at the cells of an image, whose projections are folded into them.

    Args:
        folded: Scaled queries times the weight of the keys [B, P, A·N, C].
        image: Cells [B, P | 1, M, C], the values.
        places: Positions of the cells [M, C]; cells with their positions are the keys.
        heads: A.

    Returns:
        What each token sees of the cells [B, P, A·N, C], not projected yet.
    """
    if takes_kernel(folded, image, name="two_way"):
        from vitruvian.kernels import two_way_triton

        if two_way_triton.fits(heads, folded.shape[2] // heads, folded.shape[3]):
            return two_way_triton.look(folded.contiguous(), image, places.contiguous())
    scores = folded @ (image + places).transpose(-2, -1)  # [B, P, A·N, M]
    return scores.softmax(dim=-1) @ image


def answer(
    image: Tensor,
    places: Tensor,
    folded: Tensor,
    bias: Tensor,
    spoken: Tensor,
    weight: Tensor,
    shift: Tensor,
    *,
    heads: int,
    eps: float,
) -> Tensor:
    """Let the cells of an image look at tokens, add what they see and norm the sum.

    Args:
        image: Cells [B, P | 1, M, C].
        places: Positions of the cells [M, C].
        folded: Scaled keys of the tokens times the weight of the queries [B, P, A·N, C].
        bias: What the bias of the queries adds to the scores of each [B, P, A·N].
        spoken: What each token says, projected [B, P, A·N, C].
        weight: Weight of the norm [C].
        shift: Its bias [C].
        heads: A.
        eps: Epsilon of the norm.

    Returns:
        [B, P, M, C].
    """
    if takes_kernel(image, folded, spoken, name="two_way"):
        from vitruvian.kernels import two_way_triton

        if two_way_triton.fits(heads, folded.shape[2] // heads, folded.shape[3]):
            return two_way_triton.answer(
                image, places.contiguous(), folded.contiguous(), bias.contiguous(), spoken.contiguous(), weight, shift,
                heads=heads, eps=eps,
            )  # fmt: skip
    scores = (image + places) @ folded.transpose(-2, -1) + bias[:, :, None]  # [B, P, M, A·N]
    weights = unflatten(scores, -1, (heads, -1)).softmax(dim=-1).flatten(3)  # [B, P, M, A·N]
    return F.layer_norm(image + weights @ spoken, image.shape[-1:], weight, shift, eps)
