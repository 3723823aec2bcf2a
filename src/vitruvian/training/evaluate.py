"""Judge models on a set with the metrics of the field.

    PeopleFolder ──▶ views ──▶ outputs of each task ──▶ metrics ──▶ Report

Everything is measured in the pixels of the views, as the model sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.evaluation.boxes import BoxQuality
from vitruvian.evaluation.depth import DepthQuality, PointQuality
from vitruvian.evaluation.keypoints import box_length
from vitruvian.evaluation.matting import MattingQuality
from vitruvian.evaluation.normals import NormalQuality
from vitruvian.evaluation.pose import KeypointAccuracy, KeypointPrecision
from vitruvian.evaluation.report import Goal, Report
from vitruvian.evaluation.semantic import SemanticQuality
from vitruvian.evaluation.silhouette import SilhouetteQuality
from vitruvian.human import PART_NAMES, SIGMAS
from vitruvian.models.sapiens2.people import decode_people
from vitruvian.ops.heatmap_peaks import decode_heatmaps
from vitruvian.training.folder import PeopleFolder
from vitruvian.training.views import IGNORED_PART, Views, in_model_axes, normalise

LEAST_SCORE = 0.05  # of people found: average precision wants the doubtful ones too
# What a training run shows; a report holds the rest.
HEADLINES: Mapping[str, tuple[str, ...]] = {
    "pose": ("pck.pck@0.1", "pck.per_group.body@0.1", "pck.per_group.feet@0.1", "oks.ap"),
    "seg": ("parts.mean_iou", "parts.pixel_accuracy", "silhouette.mean_iou"),
    "normal": ("mean", "median", "within@11.25", "within@30"),
    "pointmap": ("depth.abs_rel", "depth.delta_1", "points.relative_distance"),
    "matting": ("matte.mse", "matte.sad", "silhouette.mean_iou"),
    "albedo": ("mae", "rmse"),
    "people": ("ap@0.5", "recall@0.5", "precision@0.5"),
}

Predict = Callable[[Tensor], Mapping[str, Any]]


class Judge(Protocol):
    """Adds up the outputs of one task, then says how good they are."""

    def update(self, output: Any, views: Views) -> None:
        """Add the output of a task for some views."""
        ...

    def compute(self) -> Any:
        """Return the scores of all views so far."""
        ...


@torch.no_grad()
def evaluate_folder(
    predict: Predict,
    people: PeopleFolder,
    *,
    tasks: list[str],
    batch_size: int = 16,
    pictures: int | None = None,
    device: torch.device | str = "cpu",
    precision: str = "float32",
    goals: tuple[Goal, ...] = (),
    title: str = "evaluation",
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Run tasks over a set and return their scores.

    Args:
        predict: Takes prepared pictures [B, 3, H, W], returns the output of each task.
        people: The set.
        tasks: What to judge.
        batch_size: Views at once.
        pictures: Look at the first so many views; None for all.
        device: Where the model is.
        precision: "float32" or "bfloat16".
        goals: What some of the numbers have to be.
        title: Title of the report.
        progress: Called with the number of views that are done, and all.
    """
    judges = {task: make_judge(task) for task in tasks}
    count = min(len(people), pictures or len(people))
    kind = torch.device(device).type
    for first in range(0, count, batch_size):
        last = min(first + batch_size, count)
        views = Views.joined([people.read(index) for index in range(first, last)]).to(device)
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            outputs = predict(normalise(views.image))
        for task, judge in judges.items():
            judge.update(outputs[task], views)
        if progress is not None:
            progress(last, count)
    report = Report(title, goals=goals)
    for task, judge in judges.items():
        report.add(task, judge.compute())
    return report


def headlines(report: Report) -> dict[str, float]:
    """The numbers of a report that a training run shows, as ``task/metric``."""
    found: dict[str, float] = {}
    for task in report.scores:
        numbers = report.numbers(task)
        found |= {f"{task}/{name}": numbers[name] for name in HEADLINES[task]}
    return found


def make_judge(task: str) -> Judge:
    """Return what judges a task."""
    judges: dict[str, Callable[[], Judge]] = {
        "pose": PoseJudge,
        "seg": PartsJudge,
        "normal": NormalJudge,
        "pointmap": PointmapJudge,
        "matting": MattingJudge,
        "albedo": AlbedoJudge,
        "people": PeopleJudge,
    }
    if task not in judges:
        raise InputError(f"task: expected one of {', '.join(judges)}, got {task!r}.")
    return judges[task]()


class PoseJudge:
    """PCK by the larger side of the person's box, and average precision by OKS with each person in its own view."""

    def __init__(self) -> None:
        self.accuracy = KeypointAccuracy("sapiens308")
        self.precision = KeypointPrecision(SIGMAS)

    def update(self, output: Any, views: Views) -> None:
        """Add heatmaps [B, 308, h, w]."""
        H, W = views.image.shape[-2:]
        xy, scores = decode_heatmaps(output.heatmaps)  # [B, 308, 2], [B, 308]
        h, w = output.heatmaps.shape[-2:]
        xy = (xy * xy.new_tensor([(W - 1) / (w - 1), (H - 1) / (h - 1)])).cpu()
        target, known = views.keypoints[..., :2].cpu(), views.keypoints[..., 2].cpu() > 0
        box = views.boxes_xyxy[:, 0].cpu()  # [B, 4], the person's
        self.accuracy.update(xy, target, reference=box_length(box), mask=known)
        for row in range(len(views)):
            if known[row].any():
                self.precision.update(
                    xy[row : row + 1],
                    scores[row : row + 1].float().mean(dim=1).cpu(),
                    target[row : row + 1],
                    target_visible=known[row : row + 1],
                    target_areas=views.area[row : row + 1].cpu(),
                )

    def compute(self) -> Any:
        """PCK and OKS-AP."""
        return {"pck": self.accuracy.compute(), "oks": self.precision.compute()}


class PartsJudge:
    """Intersection over union of the 29 parts, and of people against the rest."""

    def __init__(self) -> None:
        self.parts = SemanticQuality(len(PART_NAMES), ignore_index=IGNORED_PART)
        self.silhouette = SilhouetteQuality()

    def update(self, output: Any, views: Views) -> None:
        """Add logits [B, 29, h, w]."""
        found = fitted(output.logits, views).argmax(dim=1)  # [B, H, W]
        inside, truth = views.valid[:, 0], views.need("parts")[:, 0]
        self.parts.update(found, torch.where(inside, truth, IGNORED_PART))
        self.silhouette.update(found > 0, truth > 0, mask=inside)

    def compute(self) -> Any:
        """Mean IoU, accuracies and silhouettes."""
        return {"parts": self.parts.compute(), "silhouette": self.silhouette.compute()}


class NormalJudge:
    """Angles between normals."""

    def __init__(self) -> None:
        self.normals = NormalQuality()

    def update(self, output: Any, views: Views) -> None:
        """Add normals [B, 3, h, w]."""
        self.normals.update(fitted(output.normals, views), in_model_axes(views.need("normals")), mask=views.valid[:, 0])

    def compute(self) -> Any:
        """Mean and median angle, and shares under limits."""
        return self.normals.compute()


class PointmapJudge:
    """Metric depth as it is and after scaling, and points after scaling by the person's height."""

    def __init__(self) -> None:
        self.depth, self.scaled = DepthQuality(), DepthQuality(alignment="scale")
        self.points = PointQuality(alignment="scale")

    def update(self, output: Any, views: Views) -> None:
        """Add points [B, 3, h, w] of the canonical camera, and scales [B, 1]."""
        found = fitted(output.pointmaps, views)
        # A scale near zero would send points to infinity: a bad guess may be very wrong, but must stay a number.
        scales = views.scales if output.scales is None else output.scales.float().clamp_min(1e-2)
        found = found / scales[:, :, None, None]
        truth = views.points
        seen = truth[:, 2] > 0  # [B, H, W]
        for quality in (self.depth, self.scaled):
            quality.update(found[:, 2], truth[:, 2], mask=seen)
        measured = views.stature > 0
        if measured.any():
            self.points.update(
                found[measured], truth[measured], mask=seen[measured], length=views.stature[measured].cpu()
            )

    def compute(self) -> Any:
        """Errors of depth and of points."""
        return {
            "depth": self.depth.compute(),
            "scaled_depth": self.scaled.compute(),
            "points": self.points.compute(),
        }


class MattingJudge:
    """The errors of mattes over whole views, and silhouettes at half opacity."""

    def __init__(self) -> None:
        self.matte, self.silhouette = MattingQuality(), SilhouetteQuality()

    def update(self, output: Any, views: Views) -> None:
        """Add opacities [B, 1, h, w]."""
        found, truth = fitted(output.alphas, views).clamp(0, 1), views.need("alpha")
        self.matte.update(found, truth, mask=views.valid)
        self.silhouette.update(found, truth, mask=views.valid)

    def compute(self) -> Any:
        """SAD, MAD, MSE, Grad, Conn and silhouettes."""
        return {"matte": self.matte.compute(), "silhouette": self.silhouette.compute()}


class AlbedoJudge:
    """Mean errors of colours from 0 to 1 over the pixels of people."""

    def __init__(self) -> None:
        self.absolute, self.squared, self.count = 0.0, 0.0, 0

    def update(self, output: Any, views: Views) -> None:
        """Add albedo [B, 3, h, w]."""
        seen = (views.valid & (views.need("parts") > 0)).expand(-1, 3, -1, -1)
        error = (fitted(output.albedos, views).clamp(0, 1) - views.need("albedo"))[seen].double()
        self.absolute += float(error.abs().sum())
        self.squared += float(error.square().sum())
        self.count += error.numel()

    def compute(self) -> Any:
        """Mean absolute error, root of the mean squared error, and the latter in decibels."""
        if self.count == 0:
            return dict.fromkeys(("mae", "rmse", "psnr"), math.nan)
        square = self.squared / self.count
        psnr = -10 * math.log10(square) if square > 0 else math.inf
        return {"mae": self.absolute / self.count, "rmse": math.sqrt(square), "psnr": psnr}


class PeopleJudge:
    """Average precision, recall and precision of boxes."""

    def __init__(self) -> None:
        self.boxes = BoxQuality(min_score=LEAST_SCORE)

    def update(self, output: Any, views: Views) -> None:
        """Add maps of middles [B, 1, g, g'] and sides [B, 4, g, g']."""
        size_hw = (views.image.shape[-2], views.image.shape[-1])
        found = decode_people(output.logits, output.sides, size_hw=size_hw, threshold=LEAST_SCORE)
        for (boxes, scores), truth in zip(found, views.boxes_xyxy, strict=True):
            present = ((truth[:, 2:] - truth[:, :2]) > 0).all(dim=1)
            self.boxes.update(boxes.cpu(), scores.cpu(), truth[present].cpu(), size_hw=size_hw)

    def compute(self) -> Any:
        """Scores at each overlap."""
        return self.boxes.compute()


def fitted(maps: Tensor, views: Views) -> Tensor:
    """Bring maps [B, C, h, w] to the size of the views, in float32."""
    size_hw = views.image.shape[-2:]
    if maps.shape[-2:] == size_hw:
        return maps.float()
    return F.interpolate(maps.float(), size=size_hw, mode="bilinear", align_corners=False)
