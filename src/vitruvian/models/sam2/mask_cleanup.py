"""Clean-up of predicted masks: small holes and islands, and overlap of objects."""

from __future__ import annotations

import torch
from torch import Tensor

from vitruvian.images.connected_components import fill_holes, remove_islands

_CORRECTED_LOGIT = 10.0  # distance from the threshold of what changes, as in the original for images
_OVERLAP_LOGIT = -10.0  # highest logit of the other objects where masks overlap, as in the original


def fill_holes_and_remove_islands(masks: Tensor, max_hole_area: float, max_sprinkle_area: float) -> Tensor:
    """Fill holes, then remove islands of up to this many pixels in bool masks [..., H, W]; 0 keeps them."""
    if max_hole_area > 0:
        masks = fill_holes(masks, max_hole_area)
    return remove_islands(masks, max_sprinkle_area) if max_sprinkle_area > 0 else masks


def clean_logits(
    logits: Tensor,
    max_hole_area: float,
    max_sprinkle_area: float,
    *,
    threshold: float = 0.0,
    distance: float = _CORRECTED_LOGIT,
) -> Tensor:
    """Fill holes and remove islands in mask logits [..., H, W]: pixels that change get `threshold` ± `distance`."""
    if max_hole_area <= 0 and max_sprinkle_area <= 0:
        return logits
    before = logits > threshold
    after = fill_holes_and_remove_islands(before, max_hole_area, max_sprinkle_area)
    logits = logits.masked_fill(after & ~before, threshold + distance)
    return logits.masked_fill(before & ~after, threshold - distance)


def without_overlap(logits: Tensor, *, at_any_size: bool = False) -> Tensor:
    """Clamp the logits [P, K, H, W] of all objects but the highest at each pixel to at most -10.

    Masks, which are the pixels with logits above 0, then do not overlap, but may do so after bilinear resizing, which
    averages logits of neighbors. With `at_any_size` they do not overlap then either: the clamped logits are also at
    most minus the highest one, so that those of two objects add up to at most 0 before and after resizing.
    """
    if len(logits) == 1:
        return logits
    highest, owner = logits.max(dim=0, keepdim=True)  # [1, K, H, W]
    limit = (-highest).clamp(max=_OVERLAP_LOGIT) if at_any_size else torch.full_like(highest, _OVERLAP_LOGIT)
    index = torch.arange(len(logits), device=logits.device)[:, None, None, None]
    return torch.where(index == owner, logits, torch.minimum(logits, limit))
