"""Evaluate models on a dataset with the metrics of the field.

    PeopleFolder ──▶ crops ──▶ outputs of each task ──▶ metrics ──▶ ScoreReport

Everything is measured in the pixels of the crops, as the model reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vitruvian.errors import check_choice
from vitruvian.human import PART_NAMES, SIGMAS
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.models.sapiens2.people_detection import decode_people
from vitruvian.ops.heatmap_peaks import decode_heatmaps
from vitruvian.ops.interpolate import bilinear
from vitruvian.training.config import TrainConfig
from vitruvian.training.datasets.folder import PeopleFolder
from vitruvian.training.datasets.labels import IGNORED_PART, LabeledImages, normalize, to_model_axes
from vitruvian.training.evaluation.average_precision import BoxAP
from vitruvian.training.evaluation.geometry import AngularError, DepthError, PointError
from vitruvian.training.evaluation.iou import ForegroundIoU, MeanIoU
from vitruvian.training.evaluation.keypoints import PCK, KeypointAP, box_length
from vitruvian.training.evaluation.matting import MattingError
from vitruvian.training.evaluation.report import ScoreReport
from vitruvian.training.task_models import run_tasks

Output = Any  # the output of a task's model
Predict = Callable[[Tensor], Mapping[str, Output]]
Evaluate = Callable[[Any, int], Mapping[str, float]]  # of the model, after a number of steps
_MIN_SCORE = 0.05  # of detected people: average precision needs uncertain ones too
# The scores that a training run shows; a report holds all.
_MAIN_SCORES: Mapping[str, tuple[str, ...]] = {
    "pose": ("pck.pck@0.1", "pck.per_group.body@0.1", "pck.per_group.feet@0.1", "oks.ap"),
    "parts": ("classes.mean_iou", "classes.pixel_accuracy", "person_mask.mean_iou"),
    "normals": ("mean", "median", "within@11.25", "within@30"),
    "pointmap": ("depth.abs_rel", "depth.delta_1", "points.relative_distance"),
    "matte": ("alpha.mse", "alpha.sad", "person_mask.mean_iou"),
    "albedo": ("mae", "rmse"),
    "people": ("ap@0.5", "recall@0.5", "precision@0.5"),
}


@torch.no_grad()
def evaluate_folder(
    predict: Predict,
    people: PeopleFolder,
    *,
    tasks: list[str],
    batch_size: int = 16,
    images: int | None = None,
    device: torch.device | str = "cpu",
    precision: str = "float32",
    title: str = "evaluation",
    progress: Callable[[int, int], None] | None = None,
) -> ScoreReport:
    """Run tasks over a dataset and return their scores.

    Args:
        predict: Takes normalized images [B, 3, H, W], returns the output of each task.
        people: The dataset.
        tasks: Tasks to evaluate.
        batch_size: Crops per batch.
        images: Number of crops, from the first; None for all.
        device: Where the model is.
        precision: "float32" or "bfloat16".
        title: Title of the report.
        progress: Called with the number of crops that are done, and all.
    """
    for task in tasks:
        check_choice("task", task, _EVALUATORS)
    evaluators = {task: _EVALUATORS[task]() for task in tasks}
    count = min(len(people), images or len(people))
    for first in range(0, count, batch_size):
        last = min(first + batch_size, count)
        labeled = LabeledImages.cat([people.read(index) for index in range(first, last)]).to(device)
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            outputs = predict(normalize(labeled.image))
        for task, evaluator in evaluators.items():
            evaluator.update(outputs[task], labeled)
        if progress is not None:
            progress(last, count)
    report = ScoreReport(title)
    for task, evaluator in evaluators.items():
        report.add(task, evaluator.compute())
    return report


def _main_scores(report: ScoreReport) -> dict[str, float]:
    """Return the scores of a report that a training run shows, as ``task/metric``."""
    return {f"{task}/{name}": report.numbers(task)[name] for task in report.scores for name in _MAIN_SCORES[task]}


def make_validation(config: TrainConfig, device: torch.device) -> Evaluate:
    """Return a function that evaluates a model on the validation dataset of a configuration."""
    height, width = config.model.image_size
    tasks = config.model.tasks
    people = PeopleFolder(config.data.validation or "", size_hw=(height, width), tasks=tasks, view=config.data.view)

    def evaluate(model: Sapiens2MultiTask, step: int) -> Mapping[str, float]:
        report = evaluate_folder(
            lambda pixels: run_tasks(model, pixels, tasks=tasks),
            people,
            tasks=tasks,
            batch_size=config.evaluation.batch_size,
            images=config.evaluation.images,
            device=device,
            precision=config.precision,
        )
        return _main_scores(report)

    return evaluate


class _Evaluator:
    """The metrics of one task, as attributes. `update` adds the output of a task's model for some images."""

    def update(self, output: Output, images: LabeledImages) -> None:
        raise NotImplementedError

    def compute(self) -> object:
        """Return the scores of all images so far by the name of the metric; a single metric's without it."""
        scores = {name: metric.compute() for name, metric in vars(self).items()}
        return scores if len(scores) > 1 else scores.popitem()[1]


class _Pose(_Evaluator):
    """PCK relative to the larger side of the person's box, and OKS-AP with each person in its own crop."""

    def __init__(self) -> None:
        self.pck, self.oks = PCK("sapiens308"), KeypointAP(SIGMAS)

    def update(self, output: Output, images: LabeledImages) -> None:
        H, W = images.image.shape[-2:]
        xy, scores = decode_heatmaps(output.heatmaps)  # [B, 308, 2], [B, 308]
        h, w = output.heatmaps.shape[-2:]
        xy = (xy * xy.new_tensor([(W - 1) / (w - 1), (H - 1) / (h - 1)])).cpu()
        keypoints = images.require("keypoints").cpu()
        target, known = keypoints[..., :2], keypoints[..., 2] > 0
        self.pck.update(xy, target, reference=box_length(images.require("boxes_xyxy")[:, 0].cpu()), mask=known)
        for row in torch.split(known.any(dim=1).nonzero()[:, 0], 1):
            self.oks.update(
                xy[row],
                scores.float().mean(dim=1).cpu()[row],
                target[row],
                target_visible=known[row],
                target_areas=images.require("area").cpu()[row],
            )


class _Parts(_Evaluator):
    """Intersection over union of the 29 parts, and of people against the background."""

    def __init__(self) -> None:
        self.classes, self.person_mask = MeanIoU(len(PART_NAMES), ignore_index=IGNORED_PART), ForegroundIoU()

    def update(self, output: Output, images: LabeledImages) -> None:
        predicted = _resize(output.logits, images).argmax(dim=1)  # [B, H, W]
        inside, truth = images.require("valid")[:, 0], images.require("parts")[:, 0]
        self.classes.update(predicted, torch.where(inside, truth, IGNORED_PART))
        self.person_mask.update(predicted > 0, truth > 0, mask=inside)


class _Normals(_Evaluator):
    """Angles between normals."""

    def __init__(self) -> None:
        self.normals = AngularError()

    def update(self, output: Output, images: LabeledImages) -> None:
        target = to_model_axes(images.require("normals"))
        self.normals.update(_resize(output.normals, images), target, mask=images.require("valid")[:, 0])


class _Pointmap(_Evaluator):
    """Metric depth as predicted and after scaling, and scaled points relative to the person's height."""

    def __init__(self) -> None:
        self.depth, self.scaled_depth, self.points = DepthError(), DepthError(alignment="scale"), PointError()

    def update(self, output: Output, images: LabeledImages) -> None:
        predicted = _resize(output.pointmaps, images)
        # A scale near zero would send points to infinity, which metrics refuse.
        scales = images.scales if output.scales is None else output.scales.float().clamp_min(1e-2)
        predicted = predicted / scales[:, :, None, None]
        truth = images.points
        covered = truth[:, 2] > 0  # [B, H, W]
        for metric in (self.depth, self.scaled_depth):
            metric.update(predicted[:, 2], truth[:, 2], mask=covered)
        stature_m = images.require("stature_m")
        known = stature_m > 0
        if known.any():
            self.points.update(predicted[known], truth[known], mask=covered[known], length=stature_m[known].cpu())


class _Matte(_Evaluator):
    """Errors of mattes over whole crops, and person masks at half opacity."""

    def __init__(self) -> None:
        self.alpha, self.person_mask = MattingError(), ForegroundIoU()

    def update(self, output: Output, images: LabeledImages) -> None:
        predicted, truth = _resize(output.alphas, images).clamp(0, 1), images.require("alpha")
        self.alpha.update(predicted, truth, mask=images.valid)
        self.person_mask.update(predicted, truth, mask=images.valid)


class _Albedo(_Evaluator):
    """MAE, RMSE and PSNR of colors from 0 to 1 over the pixels of people."""

    def __init__(self) -> None:
        self.absolute, self.squared, self.count = 0.0, 0.0, 0

    def update(self, output: Output, images: LabeledImages) -> None:
        covered = (images.require("valid") & (images.require("parts") > 0)).expand(-1, 3, -1, -1)
        error = (_resize(output.albedos, images).clamp(0, 1) - images.require("albedo"))[covered].double()
        self.absolute += float(error.abs().sum())
        self.squared += float(error.square().sum())
        self.count += error.numel()

    def compute(self) -> dict[str, float]:
        if self.count == 0:
            return dict.fromkeys(("mae", "rmse", "psnr"), math.nan)
        mse = self.squared / self.count
        psnr = -10 * math.log10(mse) if mse > 0 else math.inf
        return {"mae": self.absolute / self.count, "rmse": math.sqrt(mse), "psnr": psnr}


class _People(_Evaluator):
    """Average precision, recall and precision of boxes."""

    def __init__(self) -> None:
        self.boxes = BoxAP(min_score=_MIN_SCORE)

    def update(self, output: Output, images: LabeledImages) -> None:
        detected = decode_people(output.logits, output.sides, size_hw=images.size_hw, threshold=_MIN_SCORE)
        for (boxes, scores), truth, present in zip(detected, images.require("boxes_xyxy"), images.present, strict=True):
            self.boxes.update(boxes.cpu(), scores.cpu(), truth[present].cpu(), size_hw=images.size_hw)


_EVALUATORS: dict[str, type[_Evaluator]] = {
    "pose": _Pose,
    "parts": _Parts,
    "normals": _Normals,
    "pointmap": _Pointmap,
    "matte": _Matte,
    "albedo": _Albedo,
    "people": _People,
}


def _resize(maps: Tensor, images: LabeledImages) -> Tensor:
    """Resize maps [B, C, h, w] to the size of the images, in float32."""
    return bilinear(maps.float(), images.size_hw)
