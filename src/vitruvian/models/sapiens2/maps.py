"""Maps that models give, at the size of pictures again."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from vitruvian.images import fit_inside_hw


def cut_padding(one: Tensor, source_hw: tuple[int, int], size_hw: tuple[int, int]) -> Tensor:
    """Return the part of a map [C, H, W] that shows the picture, given how it was fitted into `size_hw`.

    A map of another size than the input is cut in proportion; where the borders of the picture fall between its pixels,
    it is brought to the input's size first.
    """
    inner = fit_inside_hw(source_hw, size_hw)
    starts = [(whole - side) // 2 for side, whole in zip(inner, size_hw, strict=True)]
    borders = zip((*starts, *map(sum, zip(starts, inner, strict=True))), one.shape[-2:] * 2, size_hw * 2, strict=True)
    if any(border * actual % whole for border, actual, whole in borders):
        one = stretch(one, size_hw)
    spans = []
    for start, side, whole, actual in zip(starts, inner, size_hw, one.shape[-2:], strict=True):
        spans.append(slice(start * actual // whole, (start + side) * actual // whole))
    return one[:, spans[0], spans[1]]


def stretch(one: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """Resize a map [C, H, W] bilinearly, as it is where the size is right."""
    if tuple(one.shape[-2:]) == tuple(size_hw):
        return one
    return F.interpolate(one[None], size=size_hw, mode="bilinear", align_corners=False)[0]
