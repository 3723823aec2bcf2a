"""Pictures as a model sees them, with everything that is true of them, and the labels that each task learns from.

    Views (image, maps, camera, keypoints, boxes at the model's input size) ── make_batch ──▶ TrainBatch ──▶ model

Whatever makes views (a folder, a stream) shares the labels: heatmaps, masks and targets are made here, on the device.
Letters: B pictures, M the most people in one picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.data.synthetic.camera import points_from_depth
from vitruvian.errors import InputError
from vitruvian.losses.people import draw_people
from vitruvian.models.sapiens2.modeling import CANONICAL_FOCAL, NORMAL_AXES
from vitruvian.models.sapiens2.processing import draw_heatmaps
from vitruvian.ops.cache import constant

IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_STD = (0.229, 0.224, 0.225)
STRIDES = {"pose": 4, "people": 8}
SIGMA, SIGMA_ROWS = 6.0, 256  # the published width of keypoints, and the heatmap rows it is for
IGNORED_PART = 255


@dataclass(frozen=True)
class Views:
    """B pictures of one size. Maps that no task needs may be None. Zero where there is nobody."""

    image: Tensor  # [B, 3, H, W] float32 0..1, sRGB
    valid: Tensor  # [B, 1, H, W] bool: what lies inside the source picture
    intrinsics: Tensor  # [B, 3, 3] pixels of the view
    keypoints: Tensor  # [B, 308, 3] of the one person it is about: x, y, and 0 unknown, 1 hidden, 2 visible
    boxes_xyxy: Tensor  # [B, M, 4] of all people, the one person first; zero where there are fewer
    stature: Tensor  # [B] metres, of the one person; 0: not known
    area: Tensor  # [B] pixels of the view that the one person's mask has
    alpha: Tensor | None = None  # [B, 1, H, W]
    foreground: Tensor | None = None  # [B, 3, H, W] sRGB × alpha
    albedo: Tensor | None = None  # [B, 3, H, W] sRGB
    normals: Tensor | None = None  # [B, 3, H, W] unit, camera axes
    depth: Tensor | None = None  # [B, 1, H, W] metres
    parts: Tensor | None = None  # [B, 1, H, W] int64

    def __len__(self) -> int:
        """Number of pictures B."""
        return len(self.image)

    def to(self, device: torch.device | str) -> Self:
        """Return the same with every tensor on `device`."""
        moved: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in moved.items():
            moved[name] = None if value is None else value.to(device, non_blocking=True)
        return replace(self, **moved)

    def need(self, name: str) -> Tensor:
        """Return a map that must be there."""
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise InputError(f"views: expected {name} for this task, got none. Read it with the pictures.")
        return value

    @property
    def points(self) -> Tensor:
        """Metric points [B, 3, H, W] in camera axes."""
        return points_from_depth(self.need("depth")[:, 0], self.intrinsics)

    @property
    def scales(self) -> Tensor:
        """Canonical over actual focal length, [B, 1]."""
        return CANONICAL_FOCAL * self.image.shape[-2] / self.intrinsics[:, 0, 0, None]

    @classmethod
    def joined(cls, views: Sequence[Views]) -> Views:
        """Put views of one size one after the other; pictures with fewer people get empty boxes."""
        most = max(view.boxes_xyxy.shape[1] for view in views)
        boxes = [F.pad(v.boxes_xyxy, (0, 0, 0, most - v.boxes_xyxy.shape[1])) for v in views]
        rows: dict[str, Any] = {}
        for f in fields(cls):
            values = boxes if f.name == "boxes_xyxy" else [getattr(view, f.name) for view in views]
            rows[f.name] = None if values[0] is None else torch.cat(values)
        return cls(**rows)


@dataclass(frozen=True)
class TrainBatch:
    """What a model is called with: pictures, and for each task the arguments that make its loss."""

    pixel_values: Tensor  # [B, 3, H, W], normalised
    labels: dict[str, dict[str, Any]]

    def __len__(self) -> int:
        """Number of pictures B."""
        return len(self.pixel_values)


class Batches(Protocol):
    """Where batches come from: a function of their number alone, so that a run can go on exactly."""

    def batch(self, step: int) -> TrainBatch:
        """Return the batch of a number, counted from 0 over all processes and accumulated steps."""
        ...


def make_batch(
    views: Views,
    tasks: Sequence[str],
    *,
    strides: Mapping[str, int] | None = None,
    heatmap_sigma: float | None = None,
) -> TrainBatch:
    """Normalise pictures and draw the labels of tasks, on the device that holds the views.

    `strides` are pixels of the picture for one of a task's output: 4 for pose, 8 for people and 1 for the others where
    none is given.
    """
    known = STRIDES | dict(strides or {})
    labels = {task: task_labels(views, task, stride=known.get(task, 1), sigma=heatmap_sigma) for task in tasks}
    return TrainBatch(pixel_values=normalise(views.image), labels=labels)


def task_labels(views: Views, task: str, *, stride: int, sigma: float | None = None) -> dict[str, Any]:
    """Return what the forward of a task's model takes beside pictures."""
    if task == "pose":
        heatmaps, weights = keypoint_heatmaps(views, stride=stride, sigma=sigma)
        return {"labels": heatmaps, "label_weights": weights}
    if task == "people":
        return {"labels": people_targets(views, stride=stride)}
    scales = views.scales
    views = shrink(views, stride)
    if task == "seg":
        return {"labels": torch.where(views.valid, views.need("parts").long(), IGNORED_PART)[:, 0]}
    if task == "normal":
        return {"labels": in_model_axes(views.need("normals")), "label_mask": views.valid}
    if task == "albedo":
        return {"labels": views.need("albedo"), "label_mask": views.valid & (views.need("parts") > 0)}
    if task == "matting":
        return {"labels": torch.cat([views.need("foreground"), views.need("alpha")], dim=1), "label_mask": views.valid}
    if task == "pointmap":
        points = views.points
        mask = points[:, 2:] > 0
        return {"labels": points, "label_scales": scales, "label_intrinsics": views.intrinsics, "label_mask": mask}
    raise InputError(f"task: expected pose, seg, normal, pointmap, matting, albedo or people, got {task!r}.")


def shrink(views: Views, stride: int) -> Views:
    """Look at maps through cells of `stride` pixels a side: colours are averaged, the rest is that of the middle."""
    if stride == 1:
        return views
    half = stride // 2
    changed: dict[str, Any] = {"area": views.area / stride**2, "boxes_xyxy": views.boxes_xyxy / stride}
    for name in ("image", "alpha", "foreground"):
        value = getattr(views, name)
        changed[name] = None if value is None else F.avg_pool2d(value, stride)
    for name in ("valid", "albedo", "normals", "depth", "parts"):
        value = getattr(views, name)
        changed[name] = None if value is None else value[..., half::stride, half::stride]
    # Centres of pixels are whole numbers: cell u holds the pixels around stride · (u + 1/2) − 1/2.
    camera = views.intrinsics.clone()
    camera[:, :2] /= stride
    camera[:, :2, 2] += 0.5 / stride - 0.5
    points = views.keypoints.clone()
    points[..., :2] = (points[..., :2] + 0.5) / stride - 0.5
    return replace(views, intrinsics=camera, keypoints=points, **changed)


def keypoint_heatmaps(views: Views, *, stride: int = 4, sigma: float | None = None) -> tuple[Tensor, Tensor]:
    """Draw the keypoints that are known, hidden ones too: heatmaps [B, 308, H/4, W/4] and weights [B, 308]."""
    H, W = views.image.shape[-2:]
    size_hw = (H // stride, W // stride)
    width = SIGMA * size_hw[0] / SIGMA_ROWS if sigma is None else sigma
    # The middles of the corner pixels of both grids coincide, as decoding assumes.
    factor = views.keypoints.new_tensor([(size_hw[1] - 1) / (W - 1), (size_hw[0] - 1) / (H - 1)])
    xy = views.keypoints[..., :2] * factor  # [B, 308, 2]
    return draw_heatmaps(xy, views.keypoints[..., 2] > 0, size_hw=size_hw, sigma=max(width, 0.5))


def people_targets(views: Views, *, stride: int = 8) -> Any:
    """Draw where people are on a grid of cells of `stride` pixels."""
    H, W = views.image.shape[-2:]
    boxes = views.boxes_xyxy
    present = ((boxes[..., 2:] - boxes[..., :2]) > 0).all(-1)  # [B, M]
    return draw_people(boxes, present, torch.zeros_like(present), grid_hw=(H // stride, W // stride), stride=stride)


def in_model_axes(normals: Tensor) -> Tensor:
    """Turn normals [B, 3, H, W] from the camera's axes to those that Sapiens2 predicts, or back."""
    return normals * constant(NORMAL_AXES, normals.device)[:, None, None]


def normalise(image: Tensor) -> Tensor:
    """Pictures [B, 3, H, W] in 0..1 as models take them."""
    mean, std = (constant(tuple(v), image.device)[:, None, None] for v in (IMAGE_MEAN, IMAGE_STD))
    return (image - mean) / std


def read_losses(output: Any, weights: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss to descend and all its terms by name.

    `output` is what a model returned: one output with `loss` and `loss_terms`, or one for each task, which are added up
    with `weights` (1 where a task has none) and whose terms are named ``task/term``.
    """
    if not isinstance(output, dict):
        return output.loss, dict(output.loss_terms or {})
    total: Tensor | None = None
    terms: dict[str, Tensor] = {}
    for task, one in output.items():
        share = weights.get(task, 1.0) * one.loss
        total = share if total is None else total + share
        terms[f"{task}/loss"] = one.loss
        terms |= {f"{task}/{name}": value for name, value in (one.loss_terms or {}).items()}
    if total is None:
        raise InputError("labels: expected those of at least one task, got none.")
    return total, terms
