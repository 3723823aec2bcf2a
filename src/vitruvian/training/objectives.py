"""What training minimizes: the weighted losses of several tasks over one encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian.human import GROUPS
from vitruvian.losses.dense import cross_entropy, dice_loss
from vitruvian.losses.heatmap import MSE_WEIGHT, heatmap_peaks
from vitruvian.losses.pointmap import aligned_distance, depth_steps
from vitruvian.models.sapiens2.modeling import PART_LOSS_WEIGHTS
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.tensor_cache import cached_tensors, constant
from vitruvian.training.config import ModelConfig, TrainConfig
from vitruvian.training.datasets.labels import LabeledImages, downsample, normalize, task_labels
from vitruvian.training.synthetic.render import VISIBLE
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.task_models import head_strides, run_tasks

# Weights that bring the losses of several tasks to one scale, by the names under which they are logged: of tasks, of
# further terms of theirs, and of tasks in whole images ("scene") and in crops of those ("crowd").
TASK_WEIGHTS = {
    "pose": 400.0,
    "pose_peaks": 0.2,
    "parts": 1.5,
    "normals": 0.2,
    "pointmap": 0.35,
    "depth_steps": 4.0,
    "points": 5.0,
    "matte": 0.5,
    "albedo": 0.3,
    "people": 0.5,
    "scene_parts": 0.4,
    "scene_matte": 0.25,
    "crowd_parts": 0.5,
    "crowd_matte": 0.25,
}
_ALTERNATING = ("normals", "pointmap", "matte", "albedo")  # tasks of which a step may train some
_DEPENDENT_TERMS = {"matte": ("scene_matte", "crowd_matte"), "pointmap": ("depth_steps", "points")}
# Rare parts have larger weights, as in the published recipe, but less so.
_PART_WEIGHTS = (0.45, *(weight**0.3 for weight in PART_LOSS_WEIGHTS[1:]))
_HEAD_SCALE, _PEOPLE_BIAS = 0.05, -4.0  # of the last layers of new heads, and of the logits of people
_HIDDEN_WEIGHT = 0.6  # of a hidden keypoint, relative to a visible one
# Most of the 308 points are in the face, which would dominate without weights.
_GROUP_WEIGHTS = {
    "body": 4.0,
    "feet": 4.0,
    "left_hand": 1.5,
    "right_hand": 1.5,
    "face": 0.5,
    "irises": 0.5,
    "ears": 0.5,
}


def make_objective(config: TrainConfig, model: Sapiens2MultiTask) -> Objective:
    """Return the objective of a configuration."""
    if not config.model.loss_recipe and config.model.pretrained is None:
        _scale_heads(model)
    return Objective(
        model,
        weights=_task_weights(config.model),
        loss_recipe=config.model.loss_recipe,
        sigma=config.data.heatmap_sigma,
        tasks_per_step=config.data.stream.tasks_per_step,
    )


def _task_weights(config: ModelConfig) -> dict[str, float]:
    """Return the weights of the losses: the configured ones, or defaults."""
    if len(config.tasks) == 1:
        return TASK_WEIGHTS | dict.fromkeys(config.tasks, 1.0) | config.loss_weights
    defaults = dict(TASK_WEIGHTS)
    if config.loss_recipe:  # the recipe has this factor already
        defaults["pose"] /= MSE_WEIGHT
    return defaults | config.loss_weights


@torch.no_grad()
def _scale_heads(model: Sapiens2MultiTask) -> None:
    """Scale the last layers of new heads, so that no task dominates at first, and set the bias of people's logits."""
    for task in model.tasks:
        predictor = model.task_model(task).decode_head.predictor
        predictor.weight.mul_(_HEAD_SCALE)
        if task == "people" and predictor.bias is not None:
            predictor.bias[0] = _PEOPLE_BIAS


class Objective(nn.Module):
    """The weighted sum of the losses of several tasks.

    A batch is a mapping of views to images: a view trains every task whose ground truth its images have. A loss has
    the name of its task, or ``VIEW_TASK`` if a weight of that name exists.

    Args:
        model: The tasks over one encoder.
        weights: Weights of losses where they differ from `TASK_WEIGHTS`; 0 leaves one out.
        loss_recipe: Whether losses are those of the published recipe. Otherwise they are those of the built-in model:
            keypoints are weighted by group and visibility, and there are terms for the peaks of heatmaps, for
            differences of depth, and for points after alignment.
        sigma: Sigma of keypoints in heatmap pixels; see `keypoint_targets`.
        tasks_per_step: How many of normals, pointmap, matte and albedo a step trains, drawn at random; None for all.
            Their weights grow accordingly, so that the expected sum stays the same.
    """

    def __init__(
        self,
        model: Sapiens2MultiTask,
        *,
        weights: Mapping[str, float] | None = None,
        loss_recipe: bool = True,
        sigma: float | None = None,
        tasks_per_step: int | None = None,
    ) -> None:
        super().__init__()
        self.model, self.weights = model, {**TASK_WEIGHTS, **(weights or {})}
        self.loss_recipe, self.sigma, self.tasks_per_step = loss_recipe, sigma, tasks_per_step
        self.strides = head_strides(model)

    def forward(
        self, batch: Mapping[str, LabeledImages], generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its terms by name; parts of a term are called ``task/part``."""
        weights = self._step_weights(generator)
        losses: dict[str, Tensor] = {}
        parts: dict[str, Tensor] = {}
        for view, images in batch.items():
            self._add_losses(losses, parts, view, images, weights, Rng(generator, images.image.device))
        total = torch.stack([weights[name] * value for name, value in losses.items()]).sum()
        return total, {name: value.detach() for name, value in (losses | parts).items()}

    def _step_weights(self, generator: torch.Generator) -> dict[str, float]:
        """Return the weights of a step: 0 for the tasks that it does not train."""
        weights = dict(self.weights)
        alternating = [task for task in _ALTERNATING if task in self.strides and weights[task] > 0]
        if self.tasks_per_step is None or self.tasks_per_step >= len(alternating):
            return weights
        order = torch.randperm(len(alternating), generator=generator, device=generator.device).tolist()
        factor = len(alternating) / self.tasks_per_step
        for position, number in enumerate(order):
            task = alternating[number]
            for name in (task, *_DEPENDENT_TERMS.get(task, ())):
                weights[name] *= factor if position < self.tasks_per_step else 0.0
        return weights

    def _add_losses(
        self,
        losses: dict[str, Tensor],
        parts: dict[str, Tensor],
        view: str,
        images: LabeledImages,
        weights: Mapping[str, float],
        rng: Rng,
    ) -> None:
        """Add the losses of one view."""
        labels, names = self._labels(view, images, weights, rng)
        own_parts = None if self.loss_recipe else labels.get("parts")
        passed = {task: values for task, values in labels.items() if values is not own_parts}
        outputs = run_tasks(self.model, normalize(images.image), tasks=list(labels), labels=passed)
        for task, output in outputs.items():
            if output.loss is not None:
                losses[names[task]] = output.loss
                parts |= {f"{names[task]}/{name}": value for name, value in (output.loss_terms or {}).items()}
        if self.loss_recipe:
            return
        if own_parts is not None:
            losses[names["parts"]] = _parts_loss(outputs["parts"].logits, own_parts["labels"])
        if "pose" in outputs and weights["pose_peaks"] > 0:
            losses["pose_peaks"] = heatmap_peaks(outputs["pose"].heatmaps, *labels["pose"].values())
        if "pointmap" in outputs:
            predicted, points = outputs["pointmap"].pointmaps, labels["pointmap"]["labels"]
            known = (points[:, 2:] > 0).float()
            if weights["depth_steps"] > 0:
                losses["depth_steps"] = depth_steps(predicted[:, 2:], points[:, 2:], known)
            if weights["points"] > 0:
                stature_m = images.require("stature_m")
                known = known * (stature_m > 0)[:, None, None, None]
                losses["points"] = aligned_distance(predicted, points, known, stature_m)

    def _labels(
        self, view: str, images: LabeledImages, weights: Mapping[str, float], rng: Rng
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the labels of the tasks that a view trains, and the names of their losses."""
        labels: dict[str, dict[str, Any]] = {}
        names: dict[str, str] = {}
        sized = {1: images}
        for task, stride in self.strides.items():
            name = f"{view}_{task}" if f"{view}_{task}" in weights else task
            if weights[name] == 0 or not images.has_labels(task):
                continue
            size = 1 if task in ("pose", "people") else stride
            if size not in sized:
                sized[size] = downsample(images, size, rng)
            labels[task], names[task] = task_labels(sized[size], task, stride=stride, sigma=self.sigma), name
        if "pose" in labels and not self.loss_recipe:
            hidden = images.require("keypoints")[..., 2] < VISIBLE
            point_weights = torch.where(hidden, _HIDDEN_WEIGHT, 1.0) * _point_weights(hidden.device)
            labels["pose"]["label_weights"] = labels["pose"]["label_weights"] * point_weights
        return labels, names


@cached_tensors
def _point_weights(device: torch.device) -> Tensor:
    """Return the weight of each keypoint [308]."""
    weights = torch.ones(sum(len(ids) for ids in GROUPS.values()))
    for group, weight in _GROUP_WEIGHTS.items():
        weights[list(GROUPS[group])] = weight  # type: ignore[index]
    return weights.to(device)


def _parts_loss(logits: Tensor, parts: Tensor) -> Tensor:
    """Cross-entropy with class weights, and Dice: `segmentation_loss` without checks, which would synchronize."""
    logits = logits.float()
    weights = constant(_PART_WEIGHTS, logits.device)
    return cross_entropy(logits, parts, class_weights=weights) + dice_loss(logits, parts)
