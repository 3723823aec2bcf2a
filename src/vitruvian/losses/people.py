"""Finding people: a map of where their middles are, and the distances from there to the four sides of their boxes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.losses.terms import LossTerms, LossWeights, nonzero, weigh

FOCAL_POWER, NEAR_POWER = 2.0, 4.0
SPREAD = 0.09  # width of a middle's Gaussian, of the box's sides
SURE = 0.5  # cells whose target is at least this also learn the box


@dataclass(frozen=True)
class PeopleLossWeights(LossWeights):
    """Weights of the terms of `people_loss`."""

    middle: float = 1.0
    box: float = 2.0


@dataclass(frozen=True)
class PeopleTarget:
    """What to reach on a grid of h x w cells."""

    middle: Tensor  # [B, 1, h, w] 0..1, 1 at the cell that holds a person's middle
    sides: Tensor  # [B, 4, h, w] left, top, right, bottom: distance from the cell to the sides, in cells
    weight: Tensor  # [B, 1, h, w] how much a cell counts; 0 where it is not known who stands there


def draw_people(
    boxes_xyxy: Tensor, present: Tensor, ignored: Tensor, *, grid_hw: tuple[int, int], stride: float
) -> PeopleTarget:
    """Draw targets for boxes [B, M, 4] in pixels; `present` and `ignored` [B, M] bool say what each of them is.

    Where boxes overlap, a cell belongs to the person whose Gaussian is highest there.
    """
    h, w = grid_hw
    device = boxes_xyxy.device
    # The centre of pixel x is the point x, as keypoints have it; boxes end between pixels.
    x = (torch.arange(w, device=device, dtype=torch.float32) + 0.5) * stride  # [w]
    y = (torch.arange(h, device=device, dtype=torch.float32) + 0.5) * stride  # [h]
    left, top, right, bottom = boxes_xyxy.float().unbind(-1)  # [B, M] each
    spread_x = ((right - left) * SPREAD).clamp_min(0.5 * stride)
    spread_y = ((bottom - top) * SPREAD).clamp_min(0.5 * stride)
    # Measured from the cell that holds the middle, so that one cell of each person reaches 1.
    middle_x = (((left + right) / 2 / stride).floor().clamp(0, w - 1) + 0.5) * stride
    middle_y = (((top + bottom) / 2 / stride).floor().clamp(0, h - 1) + 0.5) * stride
    across = (-0.5 * ((x - middle_x[..., None]) / spread_x[..., None]).square()).exp()  # [B, M, w]
    down = (-0.5 * ((y - middle_y[..., None]) / spread_y[..., None]).square()).exp()  # [B, M, h]
    each = down[..., :, None] * across[..., None, :] * present[..., None, None]  # [B, M, h, w]
    highest, owner = each.max(dim=1)  # [B, h, w]
    mine = boxes_xyxy.float().gather(1, owner.flatten(1)[..., None].expand(-1, -1, 4)).view(*owner.shape, 4)
    sides = torch.stack(
        [x - mine[..., 0], y[:, None] - mine[..., 1], mine[..., 2] - x, mine[..., 3] - y[:, None]], dim=1
    )  # [B, 4, h, w]
    inside_x = (x > left[..., None]) & (x < right[..., None])  # [B, M, w]
    inside_y = (y > top[..., None]) & (y < bottom[..., None])  # [B, M, h]
    unknown = (inside_y[..., :, None] & inside_x[..., None, :] & ignored[..., None, None]).any(dim=1)  # [B, h, w]
    weight = (~unknown | (highest > SURE)).float()
    return PeopleTarget(highest[:, None], sides / stride, weight[:, None])


def people_loss(
    logits: Tensor, sides: Tensor, target: PeopleTarget, *, weights: PeopleLossWeights | None = None
) -> LossTerms:
    """Focal loss on middles and generalised IoU on boxes.

    Terms:
        middle: ``−(1 − p)² log p`` where the target is 1, ``−(1 − t)⁴ p² log(1 − p)`` elsewhere, over the number of
            people.
        box: ``1 − GIoU`` of the boxes at cells with a target of at least one half, weighted by it.

    Args:
        logits: Middles [B, 1, h, w].
        sides: Positive distances to the four sides in cells [B, 4, h, w].
        target: As `draw_people` draws it.
        weights: Weights of the terms.
    """
    logits, sides = logits.float(), sides.float()
    peak = target.middle > 0.999
    people = nonzero((peak * target.weight).sum())

    def middle() -> Tensor:
        chance = logits.sigmoid()
        hit = -((1 - chance) ** FOCAL_POWER) * F.logsigmoid(logits)
        miss = -((1 - target.middle) ** NEAR_POWER) * chance**FOCAL_POWER * F.logsigmoid(-logits)
        return (torch.where(peak, hit, miss) * target.weight).sum() / people

    def box() -> Tensor:
        sure = torch.where(target.middle >= SURE, target.middle, 0.0) * target.weight  # [B, 1, h, w]
        inside = (target.sides > 0).all(dim=1, keepdim=True)
        sure = sure * inside
        return (sure * (1 - _generalised_iou(sides, target.sides.clamp_min(1e-3)))).sum() / nonzero(sure.sum())

    return weigh(weights or PeopleLossWeights(), {"middle": middle, "box": box}, anchor=logits)


def _generalised_iou(a: Tensor, b: Tensor) -> Tensor:
    """GIoU of boxes given by distances to their sides from one point, [B, 4, h, w] -> [B, 1, h, w]."""
    area_a = (a[:, 0] + a[:, 2]) * (a[:, 1] + a[:, 3])
    area_b = (b[:, 0] + b[:, 2]) * (b[:, 1] + b[:, 3])
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    common = (low[:, 0] + low[:, 2]).clamp_min(0) * (low[:, 1] + low[:, 3]).clamp_min(0)
    around = (high[:, 0] + high[:, 2]) * (high[:, 1] + high[:, 3])
    union = area_a + area_b - common
    return (common / nonzero(union) - (around - union) / nonzero(around)).unsqueeze(1)
