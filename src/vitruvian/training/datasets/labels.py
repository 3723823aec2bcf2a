"""Images at the size that a model reads, with their ground truth, and the labels of each task.

    LabeledImages (image, maps, camera, keypoints, boxes) ── make_batch ──▶ TrainBatch ──▶ model

Heatmaps, masks and targets are computed here, on the device. Letters: B images, M the most people in one image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.losses.detection import PeopleTarget, draw_people
from vitruvian.losses.heatmap import draw_heatmaps
from vitruvian.models.sapiens2.configuration import CANONICAL_FOCAL, NORMAL_AXES
from vitruvian.tensor_cache import constant
from vitruvian.training.synthetic.camera import points_from_depth
from vitruvian.training.tensor_batch import TensorBatch

IGNORED_PART = 255
_IMAGE_MEAN = (0.485, 0.456, 0.406)
_IMAGE_STD = (0.229, 0.224, 0.225)
_STRIDES = {"pose": 4, "people": 8}
_SIGMA, _SIGMA_ROWS = 6.0, 256  # the published sigma of keypoints, and the heatmap rows it is for


@dataclass(frozen=True)
class LabeledImages(TensorBatch):
    """B images of one size. Maps that no task needs may be None. Zero where there is no person."""

    image: Tensor  # [B, 3, H, W] float32 0..1, sRGB
    valid: Tensor  # [B, 1, H, W] bool: inside the source image
    intrinsics: Tensor  # [B, 3, 3] pixels
    keypoints: Tensor  # [B, 308, 3] of the subject: x, y, and 0 unknown, 1 hidden, 2 visible
    boxes_xyxy: Tensor  # [B, M, 4] of all people, the subject first; zero where there are fewer
    stature: Tensor  # [B] metres, of the subject; 0: unknown
    area: Tensor  # [B] pixels of the subject's mask
    alpha: Tensor | None = None  # [B, 1, H, W]
    foreground: Tensor | None = None  # [B, 3, H, W] sRGB × alpha
    albedo: Tensor | None = None  # [B, 3, H, W] sRGB
    normals: Tensor | None = None  # [B, 3, H, W] unit, camera axes
    depth: Tensor | None = None  # [B, 1, H, W] metres
    parts: Tensor | None = None  # [B, 1, H, W] int64

    def __len__(self) -> int:
        """Return the number of images B."""
        return len(self.image)

    def require(self, name: str) -> Tensor:
        """Return a map, or raise `InputError` where it is None."""
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise InputError(f"images: expected {name} for this task, got none. Read it with the images.")
        return value

    @property
    def points(self) -> Tensor:
        """Metric points [B, 3, H, W] in camera axes."""
        return points_from_depth(self.require("depth")[:, 0], self.intrinsics)

    @property
    def scales(self) -> Tensor:
        """Canonical over actual focal length, [B, 1]."""
        return CANONICAL_FOCAL * self.image.shape[-2] / self.intrinsics[:, 0, 0, None]

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """Concatenate batches of one image size; rows with fewer people are padded with empty boxes."""
        most = max(batch.boxes_xyxy.shape[1] for batch in batches)
        padded = [F.pad(batch.boxes_xyxy, (0, 0, 0, most - batch.boxes_xyxy.shape[1])) for batch in batches]
        return super().cat([replace(batch, boxes_xyxy=boxes) for batch, boxes in zip(batches, padded, strict=True)])


@dataclass(frozen=True)
class TrainBatch:
    """What a model is called with: images, and for each task the arguments of its loss."""

    pixel_values: Tensor  # [B, 3, H, W], normalized
    labels: dict[str, dict[str, Any]]

    def __len__(self) -> int:
        """Return the number of images B."""
        return len(self.pixel_values)


def make_batch(
    images: LabeledImages,
    tasks: Sequence[str],
    *,
    strides: Mapping[str, int] | None = None,
    heatmap_sigma: float | None = None,
) -> TrainBatch:
    """Normalize images and compute the labels of tasks, on the device that holds the images.

    `strides` are input pixels per output pixel of a task: by default 4 for pose, 8 for people and 1 for the others.
    """
    known = _STRIDES | dict(strides or {})
    labels = {task: _task_labels(images, task, stride=known.get(task, 1), sigma=heatmap_sigma) for task in tasks}
    return TrainBatch(pixel_values=normalize(images.image), labels=labels)


def _task_labels(images: LabeledImages, task: str, *, stride: int, sigma: float | None = None) -> dict[str, Any]:
    """Return the arguments of a task's loss."""
    if task == "pose":
        size_hw = (images.image.shape[-2], images.image.shape[-1])
        heatmaps, weights = keypoint_targets(images.keypoints, size_hw=size_hw, stride=stride, sigma=sigma)
        return {"labels": heatmaps, "label_weights": weights}
    if task == "people":
        return {"labels": _people_targets(images, stride=stride)}
    scales = images.scales
    images = _downsample(images, stride)
    if task == "seg":
        return {"labels": torch.where(images.valid, images.require("parts").long(), IGNORED_PART)[:, 0]}
    if task == "normal":
        return {"labels": to_model_axes(images.require("normals")), "label_mask": images.valid}
    if task == "albedo":
        return {"labels": images.require("albedo"), "label_mask": images.valid & (images.require("parts") > 0)}
    if task == "matting":
        matte = torch.cat([images.require("foreground"), images.require("alpha")], dim=1)
        return {"labels": matte, "label_mask": images.valid}
    if task == "pointmap":
        points = images.points
        mask = points[:, 2:] > 0
        return {"labels": points, "label_scales": scales, "label_intrinsics": images.intrinsics, "label_mask": mask}
    raise InputError(f"task: expected pose, seg, normal, pointmap, matting, albedo or people, got {task!r}.")


def _downsample(images: LabeledImages, stride: int) -> LabeledImages:
    """Reduce maps by `stride`: colors are averaged, other maps take the pixel in the middle of each cell."""
    if stride == 1:
        return images
    half = stride // 2
    maps: dict[str, Tensor] = {}
    for name in ("image", "alpha", "foreground", "valid", "albedo", "normals", "depth", "parts"):
        value: Tensor | None = getattr(images, name)
        if value is not None:
            averaged = name in ("image", "alpha", "foreground")
            maps[name] = F.avg_pool2d(value, stride) if averaged else value[..., half::stride, half::stride]
    # Pixel centers are integers: cell u holds the pixels around stride · (u + 1/2) − 1/2.
    camera = images.intrinsics.clone()
    camera[:, :2] /= stride
    camera[:, :2, 2] += 0.5 / stride - 0.5
    points = images.keypoints.clone()
    points[..., :2] = (points[..., :2] + 0.5) / stride - 0.5
    area, boxes = images.area / stride**2, images.boxes_xyxy / stride
    return replace(images, intrinsics=camera, keypoints=points, area=area, boxes_xyxy=boxes, **maps)


def keypoint_targets(
    keypoints: Tensor, *, size_hw: tuple[int, int], stride: int = 4, sigma: float | None = None
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


def _people_targets(images: LabeledImages, *, stride: int = 8) -> PeopleTarget:
    """Draw the boxes of people on a grid of cells of `stride` pixels."""
    H, W = images.image.shape[-2:]
    boxes = images.boxes_xyxy
    present = ((boxes[..., 2:] - boxes[..., :2]) > 0).all(-1)  # [B, M]
    return draw_people(boxes, present, torch.zeros_like(present), grid_hw=(H // stride, W // stride), stride=stride)


def to_model_axes(normals: Tensor) -> Tensor:
    """Convert normals [B, 3, H, W] from the camera's axes to those that Sapiens2 predicts, or back."""
    return normals * constant(NORMAL_AXES, normals.device)[:, None, None]


def normalize(image: Tensor) -> Tensor:
    """Normalize images [B, 3, H, W] in 0..1 by the mean and standard deviation of ImageNet."""
    mean, std = (constant(values, image.device)[:, None, None] for values in (_IMAGE_MEAN, _IMAGE_STD))
    return (image - mean) / std
