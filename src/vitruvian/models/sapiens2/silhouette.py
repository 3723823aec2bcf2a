"""Where a person is, by what their box says: somebody reaches all four sides of it.

    logits of a crop ─▶ does the silhouette fill the box? ─▶ yes: as they are
                                                          ─▶ no: background counts less in the box, until it does

A small model is timid with photographs: where it has not seen the like, it says background. Where a silhouette ends
short of its box, all parts together are weighed against background instead of the likeliest of them, people are
expected in the middle of a box more than in its corners, and the level at which a pixel counts as theirs sinks as far
as it takes. Which part is likeliest stays, as does everything outside the box.

Boxes have to be tight, as annotations are. Five percent too large, and it does more harm than good.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitruvian.images import crop_params

# How likely a place in a box shows the person, as a logarithm of odds: a parabola that was fitted to synthetic people,
# at its top, and what it loses to the left or right and to the top or bottom. The model knows most of it: half counts.
MIDDLE, ACROSS, DOWN = 1.4, 3.0, 1.3
COUNTS = 0.5
SIDE = 0.03  # depth of the strip along a side of a box, in heights or widths of the box
REACHED = 0.01  # share of such a strip that is theirs where a person reaches the side: nearly all synthetic people do
TIMID = 6.0  # the most by which the level sinks


def fill_boxes(logits: Tensor, places: Tensor) -> Tensor:
    """Return logits [N, K, h, w] of crops whose silhouettes fill the boxes of people; class 0 is background.

    Args:
        logits: Of one crop for each person.
        places: Where in its crop the person's box lies, as shares of the crop's width and height: left, top, right,
            bottom [N, 4] on the CPU.
    """
    found = logits.clone()
    h, w = logits.shape[-2:]
    for one, (left, top, right, bottom) in zip(found, places.tolist(), strict=True):
        box = one[:, span(top, bottom, h), span(left, right, w)]  # [K, r, c], a view
        background, parts = box[0], box[1:]
        best = parts.amax(0)
        margin = parts.logsumexp(0) - background + expected_margin(background)
        filled = reached_level(best - background) > 0
        level = reached_level(margin).clamp(-TIMID, 0.0)
        box[0] = torch.where(filled, background, best - margin + level)
    return found


def expected_margin(box: Tensor) -> Tensor:
    """How much likelier a person is than background at each place of a box [h, w], so far as it counts."""
    down, across = (
        (torch.arange(side, device=box.device, dtype=box.dtype) + 0.5) * (2 / side) - 1 for side in box.shape
    )  # -1..1
    return COUNTS * (MIDDLE - DOWN * down.square()[:, None] - ACROSS * across.square())


def reached_level(margin: Tensor) -> Tensor:
    """The highest level above which a map of a box [r, c] reaches all of its sides."""
    deep, wide = (max(1, round(SIDE * side)) for side in margin.shape)
    strips = (margin[:deep], margin[-deep:], margin[:, :wide], margin[:, -wide:])
    reached = [strip.flatten().float().quantile(1 - REACHED) for strip in strips]
    return torch.stack(reached).amin().to(margin.dtype)


def span(start: float, stop: float, side: int) -> slice:
    """The pixels between two shares of a side, at least one."""
    first = min(max(round(start * side), 0), side - 1)
    return slice(first, max(first + 1, min(round(stop * side), side)))


def places_in_crops(boxes_xywh: Tensor, input_hw: tuple[int, int]) -> Tensor:
    """Where boxes [N, 4] lie in the crops that were cut by them: left, top, right, bottom as shares, [N, 4]."""
    _, size_wh = crop_params(boxes_xywh, input_hw)
    share = boxes_xywh[:, 2:] / size_wh  # [N, 2]: a crop has its box in the middle
    return torch.cat(((1 - share) / 2, (1 + share) / 2), dim=1)
