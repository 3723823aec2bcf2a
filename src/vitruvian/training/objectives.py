"""What training minimizes: the weighted losses of several tasks over one encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian.errors import ConfigError
from vitruvian.human import GROUPS
from vitruvian.losses.dense import cross_entropy, dice_loss
from vitruvian.losses.detection import draw_people, people_loss
from vitruvian.losses.heatmap import MSE_WEIGHT, heatmap_peaks
from vitruvian.losses.pointmap import aligned_distance, depth_steps
from vitruvian.models.sapiens2.modeling import PART_LOSS_WEIGHTS
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.tensor_cache import cached_tensors, constant
from vitruvian.training.config import ModelConfig, TrainConfig
from vitruvian.training.datasets.augmentation import SHARPEN, degrade_crops, photometric
from vitruvian.training.datasets.compose import Crops, Scenes, crop_scenes, halve_crops, halve_scenes
from vitruvian.training.datasets.labels import TrainBatch, keypoint_targets, normalize, to_model_axes
from vitruvian.training.datasets.stream import StreamBatch
from vitruvian.training.synthetic.camera_effects import add_noise_and_jpeg
from vitruvian.training.synthetic.render import VISIBLE
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.task_models import head_strides


class FolderObjective(nn.Module):
    """The weighted sum of the losses of all tasks, for batches of a folder.

    Args:
        model: The tasks over one encoder.
        weights: Weight of each task's loss.
    """

    def __init__(self, model: Sapiens2MultiTask, weights: Mapping[str, float]) -> None:
        super().__init__()
        self.model, self.weights = model, dict(weights)

    def forward(self, batch: TrainBatch, generator: torch.Generator | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its terms, named ``task/term``; `generator` is not used."""
        outputs = self.model(batch.pixel_values, labels=batch.labels)
        terms: dict[str, Tensor] = {}
        for task, output in outputs.items():
            terms[f"{task}/loss"] = output.loss
            terms |= {f"{task}/{name}": value for name, value in (output.loss_terms or {}).items()}
        return torch.stack([self.weights[task] * output.loss for task, output in outputs.items()]).sum(), terms


def make_objective(config: TrainConfig, model: Sapiens2MultiTask) -> nn.Module:
    """Return the objective for the batches of a configuration."""
    weights = _task_weights(config.model)
    if config.data.stream.pack is None:
        return FolderObjective(model, weights)
    dense = {stride for task, stride in head_strides(model).items() if task not in ("pose", "people")}
    if len(dense) > 1 or dense - {1, 2}:
        raise ConfigError(
            f"model.heads: expected dense heads of one size, full or half, for a stream, got 1/{sorted(dense)}."
        )
    if config.model.pretrained is None:
        _scale_heads(model)
    sigma = config.data.heatmap_sigma
    return StreamObjective(
        model,
        weights=weights,
        sigma=2.0 if sigma is None else sigma,
        half_size=dense == {2},
        at_once=config.data.stream.at_once,
    )


def _task_weights(config: ModelConfig) -> dict[str, float]:
    """Return the weights of the losses: the configured ones, or defaults that bring several tasks to one scale."""
    if len(config.tasks) == 1:
        return dict.fromkeys(config.tasks, 1.0) | config.loss_weights
    defaults = {task: TASK_WEIGHTS[task] for task in config.tasks}
    if config.loss_recipe and "pose" in defaults:  # the recipe has this factor already
        defaults["pose"] /= MSE_WEIGHT
    return defaults | config.loss_weights


# Rare parts have larger weights, as in the published recipe, but less so.
_PART_WEIGHTS = (0.45, *(weight**0.3 for weight in PART_LOSS_WEIGHTS[1:]))
TASK_WEIGHTS = {
    "pose": 400.0,
    "pose_peaks": 0.2,
    "seg": 1.5,
    "normal": 0.2,
    "pointmap": 0.35,
    "depth_steps": 4.0,
    "points": 5.0,
    "matting": 0.5,
    "albedo": 0.3,
    "people": 0.5,
    "scene_seg": 0.4,
    "scene_matting": 0.25,
    "crowd_seg": 0.5,
    "crowd_matting": 0.25,
}
_ALTERNATING = ("normal", "pointmap", "matting", "albedo")  # tasks of which a step may train some
_DEPENDENT_TERMS = {
    "matting": ("scene_matting", "crowd_matting"),
    "pointmap": ("depth_steps", "points"),
}  # terms that go with them


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


@cached_tensors
def _point_weights(device: torch.device) -> Tensor:
    """Return the weight of each keypoint [308]."""
    weights = torch.ones(sum(len(ids) for ids in GROUPS.values()))
    for group, weight in _GROUP_WEIGHTS.items():
        weights[list(GROUPS[group])] = weight  # type: ignore[index]
    return weights.to(device)


class StreamObjective(nn.Module):
    """The weighted sum of the losses of several tasks over crops and whole images of a stream.

    Args:
        model: The tasks over one encoder.
        weights: Weight of each task's loss, of ``pose_peaks``, ``depth_steps`` and ``points`` beside them, of
            ``scene_seg`` and ``scene_matting``: the same tasks in whole images, and of ``crowd_seg`` and
            ``crowd_matting``: in crops of those; 0 leaves one out.
        sigma: Sigma of keypoints in heatmap pixels.
        half_size: Whether dense heads predict at half the size of the image.
        at_once: How many of normals, pointmaps, mattes and albedo a step trains, drawn at random; None for all. Their
            weights grow accordingly, so that the expected sum stays the same.
    """

    def __init__(
        self,
        model: Sapiens2MultiTask,
        *,
        weights: Mapping[str, float] | None = None,
        sigma: float = 2.0,
        half_size: bool = True,
        at_once: int | None = None,
    ) -> None:
        super().__init__()
        self.at_once = at_once
        self.model, self.weights = model, {**TASK_WEIGHTS, **(weights or {})}
        self.sigma, self.half_size = sigma, half_size

    def forward(self, batch: StreamBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its terms by name."""
        weights = self._step_weights(generator)
        terms = self._crop_losses(batch.crops, weights, generator)
        if batch.scenes is not None:
            terms |= self._scene_losses(batch.scenes, weights, generator)
        total = torch.stack([weights[name] * value for name, value in terms.items()]).sum()
        return total, {name: value.detach() for name, value in terms.items()}

    def _step_weights(self, generator: torch.Generator) -> dict[str, float]:
        """Return the weights of a step: 0 for the tasks that it does not train."""
        weights = dict(self.weights)
        alternating = [task for task in _ALTERNATING if task in self.model.tasks and weights[task] > 0]
        if self.at_once is None or self.at_once >= len(alternating):
            return weights
        order = torch.randperm(len(alternating), generator=generator, device=generator.device).tolist()
        share = len(alternating) / self.at_once
        for position, number in enumerate(order):
            task = alternating[number]
            for name in (task, *_DEPENDENT_TERMS.get(task, ())):
                weights[name] *= share if position < self.at_once else 0.0
        return weights

    def _crop_losses(self, crops: Crops, weights: Mapping[str, float], generator: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of the tasks with a weight on crops of people."""
        size_hw = (crops.image.shape[-2], crops.image.shape[-1])
        rng = Rng(generator, crops.image.device)
        if self.half_size:
            crops = halve_crops(crops, rng)
        tasks = [task for task in self.model.tasks if task != "people" and weights[task] > 0]
        labels: dict[str, dict[str, Any]] = {}
        if "pose" in tasks:
            maps, counts = keypoint_targets(crops.keypoints, size_hw=size_hw, stride=4, sigma=self.sigma)
            counts = counts * torch.where(crops.keypoints[..., 2] < VISIBLE, _HIDDEN_WEIGHT, 1.0)
            labels["pose"] = {"labels": maps, "label_weights": counts * _point_weights(maps.device)}
        labels["normal"] = {"labels": to_model_axes(crops.normals)}
        labels["pointmap"] = {"labels": crops.points, "label_intrinsics": crops.intrinsics}
        labels["matting"] = {"labels": torch.cat([crops.foreground, crops.alpha], dim=1)}
        labels["albedo"] = {"labels": crops.albedo, "label_mask": crops.alpha > 0.5}
        pixels = normalize(degrade_crops(crops.image, rng))
        outputs: Any = self.model(pixels, tasks=tasks, labels={t: v for t, v in labels.items() if t in tasks})
        losses = {task: outputs[task].loss for task in tasks if task != "seg"}
        if "seg" in tasks:
            losses["seg"] = _parts_loss(outputs["seg"].logits, crops.parts)
        if "pose" in tasks and weights["pose_peaks"] > 0:
            losses["pose_peaks"] = heatmap_peaks(outputs["pose"].heatmaps, *labels["pose"].values())
        if "pointmap" in tasks:
            points, depth = outputs["pointmap"].pointmaps, crops.points[:, 2:]
            known = (depth > 0).float()
            if weights["depth_steps"] > 0:
                losses["depth_steps"] = depth_steps(points[:, 2:], depth, known)
            if weights["points"] > 0:
                losses["points"] = aligned_distance(points, crops.points, known, crops.height)
        return losses

    def _scene_losses(
        self, scenes: Scenes, weights: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the losses of people, parts and mattes in whole images, and of the last two in crops of them."""
        rng = Rng(generator, scenes.image.device)
        degraded = add_noise_and_jpeg(scenes.image, rng=rng, sharpen=SHARPEN)
        scenes = replace(scenes, image=photometric(degraded, rng))
        size_hw = (max(scenes.image.shape[-2:]), min(scenes.image.shape[-2:]))  # crops are upright
        whole = {"people": "people", "seg": "scene_seg", "matting": "scene_matting"}
        losses = self._image_losses(scenes, whole, weights, rng)
        crowd = {"seg": "crowd_seg", "matting": "crowd_matting"}
        if any(task in self.model.tasks and weights[name] > 0 for task, name in crowd.items()):
            losses |= self._image_losses(crop_scenes(scenes, rng=rng, size_hw=size_hw), crowd, weights, rng)
        return losses

    def _image_losses(
        self, scenes: Scenes, names: Mapping[str, str], weights: Mapping[str, float], rng: Rng
    ) -> dict[str, Tensor]:
        """Return the losses of the tasks among `names` with a weight, under those names."""
        tasks = [task for task, name in names.items() if task in self.model.tasks and weights[name] > 0]
        pixels = normalize(scenes.image)
        if self.half_size:
            scenes = halve_scenes(scenes, rng)
        matte = torch.cat([scenes.foreground, scenes.alpha], dim=1)
        outputs: Any = self.model(
            pixels, tasks=tasks, labels={"matting": {"labels": matte}} if "matting" in tasks else {}
        )
        losses: dict[str, Tensor] = {}
        if "matting" in tasks:
            losses[names["matting"]] = outputs["matting"].loss
        if "seg" in tasks:
            losses[names["seg"]] = _parts_loss(outputs["seg"].logits, scenes.parts)
        if "people" in tasks:
            logits, sides = outputs["people"].logits, outputs["people"].sides
            grid_hw = (logits.shape[-2], logits.shape[-1])
            target = draw_people(
                scenes.boxes_xyxy, scenes.present, scenes.ignored, grid_hw=grid_hw, stride=pixels.shape[-1] / grid_hw[1]
            )
            losses[names["people"]] = people_loss(logits, sides, target).total
        return losses


@torch.no_grad()
def _scale_heads(model: Sapiens2MultiTask, *, scale: float = 0.05, people: float = -4.0) -> None:
    """Scale the last layers of new heads, so that no task dominates at first; `people` is the bias of its logits."""
    for task in model.tasks:
        predictor = model.task_model(task).decode_head.predictor
        predictor.weight.mul_(scale)
        if task == "people" and predictor.bias is not None:
            predictor.bias[0] = people


def _parts_loss(logits: Tensor, parts: Tensor) -> Tensor:
    """Cross-entropy with class weights, and Dice: `segmentation_loss` without checks, which would synchronize."""
    logits = logits.float()
    return cross_entropy(logits, parts, class_weights=constant(_PART_WEIGHTS, logits.device)) + dice_loss(logits, parts)
