"""Loss of person detection: a heatmap of box centers, and the distances from there to the sides of the boxes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.images.types import SizeHW
from vitruvian.losses.terms import LossTerms, safe_divisor, weighted_mean

_FOCAL_POWER, _NEAR_POWER = 2.0, 4.0
_SIGMA = 0.09  # of the Gaussian of a center, relative to the sides of the box
_BOX_THRESHOLD = 0.5  # cells with at least this target also learn the box
_BOX_WEIGHT = 2.0


@dataclass(frozen=True)
class PeopleTarget:
    """Targets on a grid of h x w cells."""

    center: Tensor  # [B, 1, h, w] 0..1, 1 at the cell of the center of a person
    sides: Tensor  # [B, 4, h, w] left, top, right, bottom: distance from the cell to the sides, in cells
    weight: Tensor  # [B, 1, h, w] weight of a cell; 0 inside of ignored boxes


def draw_people(
    boxes_xyxy: Tensor, present: Tensor, ignored: Tensor, *, grid_hw: SizeHW, stride: float
) -> PeopleTarget:
    """Draw targets for boxes [B, M, 4] in pixels; `present` and `ignored` [B, M] are bool.

    Where boxes overlap, a cell belongs to the person whose Gaussian is highest there.
    """
    h, w = grid_hw
    device = boxes_xyxy.device
    x = (torch.arange(w, device=device, dtype=torch.float32) + 0.5) * stride  # [w]
    y = (torch.arange(h, device=device, dtype=torch.float32) + 0.5) * stride  # [h]
    left, top, right, bottom = boxes_xyxy.float().unbind(-1)  # [B, M] each
    sigma_x = ((right - left) * _SIGMA).clamp_min(0.5 * stride)
    sigma_y = ((bottom - top) * _SIGMA).clamp_min(0.5 * stride)
    # Relative to the cell of the center, so that one cell of each person is 1.
    center_x = (((left + right) / 2 / stride).floor().clamp(0, w - 1) + 0.5) * stride
    center_y = (((top + bottom) / 2 / stride).floor().clamp(0, h - 1) + 0.5) * stride
    across = (-0.5 * ((x - center_x[..., None]) / sigma_x[..., None]).square()).exp()  # [B, M, w]
    down = (-0.5 * ((y - center_y[..., None]) / sigma_y[..., None]).square()).exp()  # [B, M, h]
    heatmaps = down[..., :, None] * across[..., None, :] * present[..., None, None]  # [B, M, h, w]
    highest, owner = heatmaps.max(dim=1)  # [B, h, w]
    box = boxes_xyxy.float().gather(1, owner.flatten(1)[..., None].expand(-1, -1, 4)).view(*owner.shape, 4)
    sides = torch.stack(
        [x - box[..., 0], y[:, None] - box[..., 1], box[..., 2] - x, box[..., 3] - y[:, None]], dim=1
    )  # [B, 4, h, w]
    inside_x = (x > left[..., None]) & (x < right[..., None])  # [B, M, w]
    inside_y = (y > top[..., None]) & (y < bottom[..., None])  # [B, M, h]
    unknown = (inside_y[..., :, None] & inside_x[..., None, :] & ignored[..., None, None]).any(dim=1)  # [B, h, w]
    weight = (~unknown | (highest > _BOX_THRESHOLD)).float()
    return PeopleTarget(highest[:, None], sides / stride, weight[:, None])


def people_loss(logits: Tensor, sides: Tensor, target: PeopleTarget) -> LossTerms:
    """Focal loss of centers and generalized IoU of boxes.

    Terms:
        center: ``−(1 − p)² log p`` where the target is 1, ``−(1 − t)⁴ p² log(1 − p)`` elsewhere, over the number of
            people.
        box: ``1 − GIoU`` of the boxes at cells with a target of at least one half, weighted by it.

    Args:
        logits: Centers [B, 1, h, w].
        sides: Positive distances to the four sides in cells [B, 4, h, w].
        target: The target of `draw_people`.
    """
    logits, sides = logits.float(), sides.float()
    peak = target.center > 0.999
    probability = logits.sigmoid()
    hit = -((1 - probability) ** _FOCAL_POWER) * F.logsigmoid(logits)
    miss = -((1 - target.center) ** _NEAR_POWER) * probability**_FOCAL_POWER * F.logsigmoid(-logits)
    center = (torch.where(peak, hit, miss) * target.weight).sum() / safe_divisor((peak * target.weight).sum())
    weight = torch.where(target.center >= _BOX_THRESHOLD, target.center, 0.0) * target.weight  # [B, 1, h, w]
    inside = (target.sides > 0).all(dim=1, keepdim=True)
    box = weighted_mean(1 - _generalized_iou(sides, target.sides.clamp_min(1e-3)), weight * inside)
    return LossTerms(total=center + _BOX_WEIGHT * box, terms={"center": center, "box": box})


def _generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the GIoU of boxes, as distances to their sides from one point: [B, 4, h, w] -> [B, 1, h, w]."""
    area_a = (a[:, 0] + a[:, 2]) * (a[:, 1] + a[:, 3])
    area_b = (b[:, 0] + b[:, 2]) * (b[:, 1] + b[:, 3])
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    common = (low[:, 0] + low[:, 2]).clamp_min(0) * (low[:, 1] + low[:, 3]).clamp_min(0)
    around = (high[:, 0] + high[:, 2]) * (high[:, 1] + high[:, 3])
    union = area_a + area_b - common
    return (common / safe_divisor(union) - (around - union) / safe_divisor(around)).unsqueeze(1)
