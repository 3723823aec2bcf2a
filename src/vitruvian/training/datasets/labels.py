"""Images at the size that a model reads, with their ground truth, and the labels of each task.

    LabeledImages ── downsample ──▶ LabeledImages at the size of a head ── task_labels ──▶ arguments of a task's loss

All of it runs on the device of the images. Letters: B images, M the most people in one image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError, check_choice
from vitruvian.images.types import SizeHW
from vitruvian.losses.detection import draw_people
from vitruvian.losses.heatmap import draw_heatmaps
from vitruvian.models.sapiens2.configuration import CANONICAL_FOCAL, NORMAL_AXES
from vitruvian.ops.pixel_normalization import IMAGENET_MEAN, IMAGENET_STD
from vitruvian.tensor_cache import constant
from vitruvian.training.synthetic.camera import points_from_depth
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.tensor_batch import TensorBatch

IGNORED_PART = 255
# The ground truth that a task needs.
LABEL_FIELDS: dict[str, tuple[str, ...]] = {
    "pose": ("keypoints",),
    "parts": ("parts",),
    "normals": ("normals",),
    "pointmap": ("depth",),
    "matte": ("foreground", "alpha"),
    "albedo": ("albedo", "parts"),
    "people": ("boxes_xyxy",),
}
_SIGMA, _SIGMA_ROWS = 6.0, 256  # the published sigma of keypoints, and the heatmap rows it is for
_MIN_COVERED = 0.6  # fraction of a cell with a known surface from which the cell has one


@dataclass(frozen=True)
class LabeledImages(TensorBatch):
    """B images of one size with what is known about them; maps are zero where there is no person."""

    image: Tensor  # [B, 3, H, W] float32 0..1, sRGB
    valid: Tensor | None = None  # [B, 1, H, W] bool: pixels that count; None: all
    intrinsics: Tensor | None = None  # [B, 3, 3] pixels
    keypoints: Tensor | None = None  # [B, 308, 3] of the subject: x, y, and 0 unknown, 1 hidden, 2 visible
    boxes_xyxy: Tensor | None = None  # [B, M, 4] of all people, the subject first; zero where there are fewer
    ignored: Tensor | None = None  # [B, M] bool: people of whom too little is visible to be a target; None: none
    stature_m: Tensor | None = None  # [B] height of the subject at rest; 0: unknown
    area: Tensor | None = None  # [B] pixels of the subject's mask
    alpha: Tensor | None = None  # [B, 1, H, W]
    foreground: Tensor | None = None  # [B, 3, H, W] sRGB × alpha
    albedo: Tensor | None = None  # [B, 3, H, W] sRGB
    normals: Tensor | None = None  # [B, 3, H, W] unit, camera axes
    depth: Tensor | None = None  # [B, 1, H, W] meters
    parts: Tensor | None = None  # [B, 1, H, W] int64

    def has_labels(self, task: str) -> bool:
        """Return whether the ground truth of a task is known."""
        return all(getattr(self, name) is not None for name in LABEL_FIELDS[task])

    def require(self, name: str) -> Tensor:
        """Return a field, or raise `InputError` if it is None."""
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise InputError(f"images: {name} is needed for this task, but was not read.")
        return value

    @property
    def size_hw(self) -> SizeHW:
        """Height and width of the images."""
        return self.image.shape[-2], self.image.shape[-1]

    @property
    def points(self) -> Tensor:
        """Metric points [B, 3, H, W] in camera axes."""
        return points_from_depth(self.require("depth")[:, 0], self.require("intrinsics"))

    @property
    def scales(self) -> Tensor:
        """Canonical over actual focal length, [B, 1]."""
        return CANONICAL_FOCAL * self.size_hw[0] / self.require("intrinsics")[:, 0, 0, None]

    @property
    def present(self) -> Tensor:
        """The boxes that are targets, [B, M] bool."""
        boxes = self.require("boxes_xyxy")
        there = (boxes[..., 2:] > boxes[..., :2]).all(dim=-1)
        return there if self.ignored is None else there & ~self.ignored

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """Concatenate batches of one image size; rows with fewer people are padded with empty boxes."""
        boxes = [batch.boxes_xyxy for batch in batches if batch.boxes_xyxy is not None]
        if boxes and batches[0].ignored is None:
            count = max(rows.shape[1] for rows in boxes)
            padded = (F.pad(rows, (0, 0, 0, count - rows.shape[1])) for rows in boxes)
            batches = [replace(batch, boxes_xyxy=rows) for batch, rows in zip(batches, padded, strict=True)]
        return super().cat(batches)


def downsample(images: LabeledImages, stride: int, rng: Rng) -> LabeledImages:
    """Return ground truth for heads that predict one value for `stride` × `stride` pixels; the image stays.

    Colors are averaged, inverse depth and normals over the part of a cell where they are known. Parts take one pixel
    of each cell, at a random position that all cells share.
    """
    if stride == 1:
        return images
    row, column = divmod(rng.seed() % stride**2, stride)
    maps = {name: getattr(images, name) for name in ("alpha", "foreground", "albedo", "parts", "valid")}
    for name, value in maps.items():
        if value is not None:
            averaged = name not in ("parts", "valid")
            maps[name] = F.avg_pool2d(value, stride) if averaged else value[..., row::stride, column::stride]
    if images.depth is not None and images.normals is not None and images.intrinsics is not None:
        known = images.depth > 0
        share = F.avg_pool2d(known.float(), stride)
        covered = share > _MIN_COVERED
        inverse = F.avg_pool2d(torch.where(known, 1 / images.depth.clamp_min(1e-3), 0.0), stride)
        maps["depth"] = torch.where(covered, share.clamp_min(0.1) / inverse.clamp_min(1e-5), 0.0)
        maps["normals"] = F.normalize(F.avg_pool2d(images.normals, stride), dim=1) * covered
        # Pixel centers are integers: cell u holds the pixels around stride · (u + 1/2) − 1/2.
        maps["intrinsics"] = images.intrinsics.clone()
        maps["intrinsics"][:, :2] /= stride
        maps["intrinsics"][:, :2, 2] += 0.5 / stride - 0.5
    return replace(images, **maps)


def task_labels(images: LabeledImages, task: str, *, stride: int, sigma: float | None = None) -> dict[str, Any]:
    """Return the arguments of a task's loss.

    Args:
        images: Ground truth; of dense tasks at the size of the head, see `downsample`.
        task: The task.
        stride: Input pixels per output pixel of the head.
        sigma: Sigma of keypoints in heatmap pixels.
    """
    check_choice("task", task, LABEL_FIELDS)
    if task == "pose":
        maps, weights = keypoint_targets(
            images.require("keypoints"), size_hw=images.size_hw, stride=stride, sigma=sigma
        )
        return {"labels": maps, "label_weights": weights}
    if task == "people":
        (H, W), ignored = images.size_hw, images.ignored
        ignored = torch.zeros_like(images.present) if ignored is None else ignored
        grid_hw = (H // stride, W // stride)
        boxes = images.require("boxes_xyxy")
        return {"labels": draw_people(boxes, images.present, ignored, grid_hw=grid_hw, stride=stride)}
    if task == "parts":
        parts = images.require("parts")
        return {"labels": (parts if images.valid is None else torch.where(images.valid, parts, IGNORED_PART))[:, 0]}
    if task == "normals":
        return {"labels": to_model_axes(images.require("normals")), "label_mask": images.valid}
    if task == "pointmap":
        return {"labels": images.points, "label_intrinsics": images.intrinsics}
    if task == "albedo":
        covered = images.require("parts") > 0
        mask = covered if images.valid is None else covered & images.valid
        return {"labels": images.require("albedo"), "label_mask": mask}
    matte = torch.cat([images.require("foreground"), images.require("alpha")], dim=1)
    return {"labels": matte, "label_mask": images.valid}


def keypoint_targets(
    keypoints: Tensor, *, size_hw: SizeHW, stride: int = 4, sigma: float | None = None
) -> tuple[Tensor, Tensor]:
    """Draw known keypoints [B, J, 3], also hidden ones: heatmaps [B, J, h, w] and weights [B, J], 0 for unknown ones.

    `size_hw` is the size of the images.
    """
    H, W = size_hw
    h, w = H // stride, W // stride
    width = _SIGMA * h / _SIGMA_ROWS if sigma is None else sigma
    # The centers of the corner pixels of both grids coincide, as decoding assumes.
    xy = keypoints[..., :2] * constant(((w - 1) / (W - 1), (h - 1) / (H - 1)), keypoints.device)
    return draw_heatmaps(xy, keypoints[..., 2] > 0, size_hw=(h, w), sigma=max(width, 0.5))


def to_model_axes(normals: Tensor) -> Tensor:
    """Convert normals [B, 3, H, W] from the camera's axes to those that Sapiens2 predicts, or back."""
    return normals * constant(NORMAL_AXES, normals.device)[:, None, None]


def normalize(image: Tensor) -> Tensor:
    """Normalize images [B, 3, H, W] in 0..1 by the mean and standard deviation of ImageNet."""
    mean, std = (constant(values, image.device)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (image - mean) / std
