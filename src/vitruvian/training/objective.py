"""What training several tasks at once minimises: one weighted sum over crops of people and whole pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian.data.synthetic.chance import Chance
from vitruvian.data.synthetic.compose import Crops, halved
from vitruvian.data.synthetic.degrade import developed
from vitruvian.data.synthetic.scenes import Scenes, crop_scenes, halved_scenes
from vitruvian.data.synthetic.truth import VISIBLE
from vitruvian.human import GROUPS
from vitruvian.losses.dense import cross_entropy, dice_loss
from vitruvian.losses.heatmap import heatmap_peaks
from vitruvian.losses.people import draw_people, people_loss
from vitruvian.losses.pointmap import aligned_distance, depth_steps
from vitruvian.models.sapiens2.modeling import PART_LOSS_WEIGHTS
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.models.sapiens2.processing import draw_heatmaps
from vitruvian.ops.cache import cached_tensors, constant
from vitruvian.training.synthetic import SHARP, StreamBatch, as_taken, photometric
from vitruvian.training.views import in_model_axes, normalise

# Rare parts count more, as in the published recipe, but less so, or they would take too much from their neighbours.
PART_WEIGHTS = (0.45, *(weight**0.3 for weight in PART_LOSS_WEIGHTS[1:]))
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
TURNS = ("normal", "pointmap", "matting", "albedo")  # tasks that can wait for their turn
COMPANIONS = {
    "matting": ("scene_matting", "crowd_matting"),
    "pointmap": ("depth_steps", "points"),
}  # what waits with them
HIDDEN_WEIGHT = 0.6  # a keypoint that is not seen counts less than one that is
# Most of the 308 points are in the face: without weights, little would be left for the rest of the body.
GROUP_WEIGHTS = {"body": 4.0, "feet": 4.0, "left_hand": 1.5, "right_hand": 1.5, "face": 0.5, "irises": 0.5, "ears": 0.5}


def heatmaps(keypoints: Tensor, *, size_hw: tuple[int, int], stride: int, sigma: float) -> tuple[Tensor, Tensor]:
    """Draw keypoints [n, J, 3] of pictures: heatmaps [n, J, h, w] and weights [n, J]."""
    H, W = size_hw
    h, w = H // stride, W // stride
    # The middles of the corner pixels of both grids coincide, as decoding assumes.
    xy = keypoints[..., :2] * constant(((w - 1) / (W - 1), (h - 1) / (H - 1)), keypoints.device)
    state = keypoints[..., 2]
    maps, counts = draw_heatmaps(xy, state > 0, size_hw=(h, w), sigma=sigma)
    return maps, torch.where(state < VISIBLE, HIDDEN_WEIGHT, 1.0) * counts


@cached_tensors
def point_weights(device: torch.device) -> Tensor:
    """How much each keypoint counts [308]."""
    weights = torch.ones(sum(len(ids) for ids in GROUPS.values()))
    for group, weight in GROUP_WEIGHTS.items():
        weights[list(GROUPS[group])] = weight  # type: ignore[index]
    return weights.to(device)


class MultiTaskObjective(nn.Module):
    """A model for several tasks with its loss.

    Args:
        model: The tasks over one encoder.
        weights: Weight of each task's loss, of ``pose_peaks``, ``depth_steps`` and ``points`` beside them, of
            ``scene_seg`` and ``scene_matting``: the same tasks in whole pictures, and of ``crowd_seg`` and
            ``crowd_matting``: in crops of those; 0 leaves one out.
        sigma: Width of keypoints' Gaussians in heatmap pixels.
        halves: Whether dense heads predict at half the size of the picture.
        at_once: How many of normals, pointmaps, mattes and albedo a step trains, drawn by lot; None for all. Their
            losses count as much more as they come up less, so that the sum stays what it was on average.
    """

    def __init__(
        self,
        model: Sapiens2MultiTask,
        *,
        weights: Mapping[str, float] | None = None,
        sigma: float = 2.0,
        halves: bool = True,
        at_once: int | None = None,
    ) -> None:
        super().__init__()
        self.at_once = at_once
        self.model, self.weights = model, {**TASK_WEIGHTS, **(weights or {})}
        self.sigma, self.halves = sigma, halves

    def forward(self, batch: StreamBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its parts by name."""
        weights = self.drawn_weights(generator)
        terms = self.crop_losses(batch.crops, weights, generator)
        if batch.scenes is not None:
            terms |= self.scene_losses(batch.scenes, weights, generator)
        total = torch.stack([weights[name] * value for name, value in terms.items()]).sum()
        return total, {name: value.detach() for name, value in terms.items()}

    def drawn_weights(self, generator: torch.Generator) -> dict[str, float]:
        """Weights of a step: those of tasks that wait are 0."""
        weights = dict(self.weights)
        taking_turns = [task for task in TURNS if task in self.model.tasks and weights[task] > 0]
        if self.at_once is None or self.at_once >= len(taking_turns):
            return weights
        order = torch.randperm(len(taking_turns), generator=generator, device=generator.device).tolist()
        share = len(taking_turns) / self.at_once
        for place, number in enumerate(order):
            task = taking_turns[number]
            for name in (task, *COMPANIONS.get(task, ())):
                weights[name] *= share if place < self.at_once else 0.0
        return weights

    def crop_losses(self, crops: Crops, weights: Mapping[str, float], generator: torch.Generator) -> dict[str, Tensor]:
        """Losses of the tasks that have a weight on crops of people."""
        size_hw = (crops.image.shape[-2], crops.image.shape[-1])
        chance = Chance(generator, crops.image.device)
        if self.halves:
            crops = halved(crops, chance)
        tasks = [task for task in self.model.tasks if task != "people" and weights[task] > 0]
        labels: dict[str, dict[str, Any]] = {}
        if "pose" in tasks:
            maps, counts = heatmaps(crops.keypoints, size_hw=size_hw, stride=4, sigma=self.sigma)
            labels["pose"] = {"labels": maps, "label_weights": counts * point_weights(maps.device)}
        labels["normal"] = {"labels": in_model_axes(crops.normals)}
        labels["pointmap"] = {"labels": crops.points, "label_intrinsics": crops.intrinsics}
        labels["matting"] = {"labels": torch.cat([crops.foreground, crops.alpha], dim=1)}
        labels["albedo"] = {"labels": crops.albedo, "label_mask": crops.alpha > 0.5}
        pixels = normalise(as_taken(crops.image, chance))
        outputs: Any = self.model(pixels, tasks=tasks, labels={t: v for t, v in labels.items() if t in tasks})
        found = {task: outputs[task].loss for task in tasks if task != "seg"}
        if "seg" in tasks:
            found["seg"] = parts_loss(outputs["seg"].logits, crops.parts)
        if "pose" in tasks and weights["pose_peaks"] > 0:
            found["pose_peaks"] = heatmap_peaks(outputs["pose"].heatmaps, *labels["pose"].values())
        if "pointmap" in tasks:
            points, depth = outputs["pointmap"].pointmaps, crops.points[:, 2:]
            known = (depth > 0).float()
            if weights["depth_steps"] > 0:
                found["depth_steps"] = depth_steps(points[:, 2:], depth, known)
            if weights["points"] > 0:
                found["points"] = aligned_distance(points, crops.points, known, crops.height)
        return found

    def scene_losses(
        self, scenes: Scenes, weights: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Losses of finding people, parts and mattes in whole pictures, and of the last two in crops of them."""
        chance = Chance(generator, scenes.image.device)
        filed = developed(scenes.image, chance=chance, sharp=SHARP)
        scenes = replace(scenes, image=photometric(filed, chance))
        size_hw = (max(scenes.image.shape[-2:]), min(scenes.image.shape[-2:]))  # crops stand upright
        whole = {"people": "people", "seg": "scene_seg", "matting": "scene_matting"}
        found = self.some_losses(scenes, whole, weights, chance)
        crowd = {"seg": "crowd_seg", "matting": "crowd_matting"}
        if any(task in self.model.tasks and weights[name] > 0 for task, name in crowd.items()):
            found |= self.some_losses(crop_scenes(scenes, chance=chance, size_hw=size_hw), crowd, weights, chance)
        return found

    def some_losses(
        self, scenes: Scenes, names: Mapping[str, str], weights: Mapping[str, float], chance: Chance
    ) -> dict[str, Tensor]:
        """Losses of the tasks among `names` that have a weight, under those names."""
        tasks = [task for task, name in names.items() if task in self.model.tasks and weights[name] > 0]
        pixels = normalise(scenes.image)
        if self.halves:
            scenes = halved_scenes(scenes, chance)
        matte = torch.cat([scenes.foreground, scenes.alpha], dim=1)
        outputs: Any = self.model(
            pixels, tasks=tasks, labels={"matting": {"labels": matte}} if "matting" in tasks else {}
        )
        found: dict[str, Tensor] = {}
        if "matting" in tasks:
            found[names["matting"]] = outputs["matting"].loss
        if "seg" in tasks:
            found[names["seg"]] = parts_loss(outputs["seg"].logits, scenes.parts)
        if "people" in tasks:
            logits, sides = outputs["people"].logits, outputs["people"].sides
            grid_hw = (logits.shape[-2], logits.shape[-1])
            target = draw_people(
                scenes.boxes_xyxy,
                scenes.present,
                scenes.ignored,
                grid_hw=grid_hw,
                stride=pixels.shape[-1] / grid_hw[1],
            )
            found[names["people"]] = people_loss(logits, sides, target).total
        return found


@torch.no_grad()
def start_calmly(model: Sapiens2MultiTask, *, share: float = 0.05, people: float = -4.0) -> None:
    """Let fresh heads predict almost nothing at first, so that no task drowns the others in the first steps.

    `share` is what remains of the last layers' weights; `people` is the first logit of finding somebody anywhere.
    """
    for task in model.tasks:
        predictor = model.task_model(task).decode_head.predictor
        predictor.weight.mul_(share)
        if task == "people" and predictor.bias is not None:
            predictor.bias[0] = people


def parts_loss(logits: Tensor, parts: Tensor) -> Tensor:
    """Cross-entropy with mild class weights, and Dice: those of `segmentation_loss`, for labels that are known to fit.

    (To check them would wait for the device.)
    """
    logits = logits.float()
    return cross_entropy(logits, parts, class_weights=constant(PART_WEIGHTS, logits.device)) + dice_loss(logits, parts)
