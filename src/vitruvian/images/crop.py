"""Person crops: boxes of one picture → equal windows for a model, sampled as Sapiens2 was trained.

    window: the box ×1.25, its short side grown to the aspect ratio of the output
    output pixel u lies at u · window_w / (w − 1) + cx − window_w / 2, zeros outside the picture
    two taps an axis (bilinear) when shrinking, four (bicubic) when enlarging

A window is never turned, so sampling is separable: each axis is a short weighted sum of source rows or columns. Both
are done with `embedding_bag`, which is just that sum over rows of a table, on CPU and GPU alike; only the part of the
picture that a window touches is read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.errors import InputError

_CUBIC = -0.75  # the coefficient of torch's bicubic filter


def crop_params(boxes_xywh: Tensor, output_hw: tuple[int, int], padding: float = 1.25) -> tuple[Tensor, Tensor]:
    """Lay windows around boxes [N, 4]: their centres [N, 2] (x, y) and sizes [N, 2] (width, height) in pixels."""
    boxes = _check_boxes(boxes_xywh)
    height, width = _check_output(output_hw)
    if not padding > 0:
        raise InputError(f"padding: expected a positive factor, got {padding}. Use 1 for no padding.")
    center_xy = boxes[:, :2] + 0.5 * boxes[:, 2:]  # [N, 2]
    box_width, box_height = (boxes[:, 2:] * padding).unbind(-1)  # [N], [N]
    aspect = width / height
    size_wh = torch.stack(
        [torch.maximum(box_width, box_height * aspect), torch.maximum(box_height, box_width / aspect)], dim=-1
    )  # [N, 2]
    return center_xy, size_wh


def crop_boxes(pixels: Tensor, boxes_xywh: Tensor, output_hw: tuple[int, int], *, padding: float = 1.25) -> Tensor:
    """Cut windows around boxes out of a picture: [C, H, W] and [N, 4] -> float32 [N, C, h, w], in the picture's values.

    `pixels` is uint8 or floating point on any device; boxes may lie partly or wholly outside. No gradient flows back.
    """
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise InputError(f"pixels: expected one picture [C, H, W], got {list(pixels.shape)}. Crop one at a time.")
    height, width = _check_output(output_hw)
    center_xy, size_wh = crop_params(boxes_xywh.to(pixels.device), output_hw, padding)
    enlarged = ((width - 1) / size_wh[:, 0]).minimum((height - 1) / size_wh[:, 1]) >= 1  # [N]
    columns = _taps(center_xy[:, 0], size_wh[:, 0], enlarged, count=width, source=pixels.shape[2])
    rows = _taps(center_xy[:, 1], size_wh[:, 1], enlarged, count=height, source=pixels.shape[1])
    shape = (len(enlarged), len(pixels), height, width)
    crops = torch.empty(shape, dtype=torch.float32, device=pixels.device)  # [N, C, h, w]
    # A few long steps a crop: many short ones are slower where other processes want the same cores.
    for crop, row, column in zip(crops, rows, columns, strict=True):
        source = pixels.detach()[:, row.lines][:, :, column.lines].permute(2, 0, 1)  # [columns, C, rows]
        across = _weighted_sum(source.flatten(1), column)  # [w, C·rows]
        down = _weighted_sum(across.T, row.for_channels(len(pixels), lines=source.shape[2]))  # [C·h, w]
        crop.copy_(down.view_as(crop))  # [C, h, w]
    return crops


class _Taps(NamedTuple):
    """Where the outputs of one axis of one window look, and how much."""

    lines: slice | Tensor  # the source rows or columns that are needed
    indices: Tensor  # [n, taps] into `lines`
    weights: Tensor  # [n, taps], zero for taps outside the picture

    def for_channels(self, channels: int, *, lines: int) -> _Taps:
        """Repeat the taps for channels that lie one below the other, `lines` apart: [n, taps] -> [C·n, taps]."""
        starts = lines * torch.arange(channels, device=self.indices.device)[:, None, None]  # [C, 1, 1]
        return _Taps(self.lines, (self.indices + starts).flatten(0, 1), self.weights.repeat(channels, 1))


def _taps(center: Tensor, size: Tensor, enlarged: Tensor, *, count: int, source: int) -> list[_Taps]:
    """Lay `count` samples over the windows of one axis: centres [N], sizes [N], which of them are enlarged [N]."""
    if count == 1:
        positions = center[:, None]  # [N, 1]
    else:
        steps = torch.arange(count, dtype=torch.float32, device=center.device) / (count - 1)  # [n]
        positions = center[:, None] + (steps - 0.5) * size[:, None]  # [N, n]
    floors = positions.floor()
    fractions = positions - floors
    weights = torch.where(enlarged[:, None, None], _cubic_weights(fractions), _linear_weights(fractions))  # [N, n, 4]
    places = floors[..., None] + torch.arange(-1.0, 3.0, device=center.device)  # [N, n, 4]
    weights = weights * ((places >= 0) & (places <= source - 1))
    indices = places.clamp(0, source - 1).long()
    return [
        _needed_lines(index, weight) if cubic else _needed_lines(index[:, 1:3], weight[:, 1:3])
        for index, weight, cubic in zip(indices, weights, enlarged.tolist(), strict=True)
    ]


def _needed_lines(indices: Tensor, weights: Tensor) -> _Taps:
    """Read the whole span of [n, taps] where most of it is used, and single lines where a window shrinks far."""
    first, last = int(indices[0, 0]), int(indices[-1, -1])
    if last - first < indices.numel():
        return _Taps(slice(first, last + 1), indices - first, weights)
    lines, places = torch.unique(indices, return_inverse=True)
    return _Taps(lines, places, weights)


def _linear_weights(fraction: Tensor) -> Tensor:
    zero = torch.zeros_like(fraction)
    return torch.stack([zero, 1 - fraction, fraction, zero], dim=-1)  # [N, n, 4]


def _cubic_weights(fraction: Tensor) -> Tensor:
    """Weights of the four taps at distances 1 + t, t, 1 − t and 2 − t: [N, n] -> [N, n, 4]."""

    def near(t: Tensor) -> Tensor:
        return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1

    def far(t: Tensor) -> Tensor:
        return ((t - 5) * t + 8) * t * _CUBIC - 4 * _CUBIC

    return torch.stack([far(1 + fraction), near(fraction), near(1 - fraction), far(2 - fraction)], dim=-1)  # [N, n, 4]


def _weighted_sum(lines: Tensor, taps: _Taps) -> Tensor:
    """Sum lines [R, M] of any dtype as the taps say: -> float32 [n, M]."""
    table = torch.empty(lines.shape, dtype=torch.float32, device=lines.device).copy_(
        lines
    )  # turned and converted in one pass
    return F.embedding_bag(taps.indices, table, mode="sum", per_sample_weights=taps.weights)  # [n, M]


def _check_boxes(boxes_xywh: Tensor) -> Tensor:
    if boxes_xywh.ndim != 2 or boxes_xywh.shape[1] != 4:
        raise InputError(f"boxes_xywh: expected shape [N, 4], got {list(boxes_xywh.shape)}. Pass x, y, width, height.")
    boxes = boxes_xywh.to(torch.float32)
    bad = ~(boxes.isfinite().all(dim=1) & (boxes[:, 2:] > 0).all(dim=1))  # [N]
    if bool(bad.any()):
        first = int(bad.nonzero()[0, 0])
        raise InputError(
            f"boxes_xywh: expected finite boxes with positive width and height, got {boxes[first].tolist()} "
            f"at index {first}. Drop it, or check that boxes are x, y, width, height."
        )
    return boxes


def _check_output(output_hw: tuple[int, int]) -> tuple[int, int]:
    height, width = output_hw
    if height < 1 or width < 1:
        raise InputError(
            f"output_hw: expected a positive height and width, got {output_hw}. Pass the model's input size."
        )
    return height, width
