"""Poses: 308 keypoints of each person, with Sapiens2.

people in boxes ─ cut out ─▶ crops [3, 1024, 768] ─ model ─▶ heatmaps ─ decode ─▶ keypoints in source pixels
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitruvian.auto import AutoModelForPoseEstimation
from vitruvian.errors import InputError
from vitruvian.human import FLIP_PAIRS, KEYPOINT_NAMES
from vitruvian.models.sapiens2.modeling import Sapiens2ForPoseEstimation
from vitruvian.pipelines.base import PeopleOptions, TaskPipeline, people_in
from vitruvian.pipelines.memory import to_device
from vitruvian.pipelines.people import whole_picture
from vitruvian.pipelines.runner import Prepared, Unit
from vitruvian.pipelines.sources import Frame
from vitruvian.processor import as_tensor
from vitruvian.results import People, Pose

NO_FINDER = "no boxes or finder given; looked at the whole picture"


@dataclass(frozen=True, kw_only=True)
class PoseOptions(PeopleOptions):
    """Options of poses.

    Args:
        flip: Look at each person mirrored too and average; twice the work for slightly steadier points.
        kernel_size: Size of the Gaussian that smooths heatmaps before points are refined.
    """

    flip: bool = False
    kernel_size: int = 11


class PosePipeline(TaskPipeline[Pose, PoseOptions]):
    """Keypoints of the people in boxes, of those that a finder finds, or of one person who fills the picture."""

    task = "pose"
    checkpoints = ("facebook/sapiens2-pose-0.4b", "facebook/sapiens2-pose-1b")
    auto = AutoModelForPoseEstimation
    accepts = (Sapiens2ForPoseEstimation,)
    options_class = PoseOptions
    nobody = "none"
    finds_people = True

    @property
    def unit_hw(self) -> tuple[int, int]:
        """Height and width of a crop."""
        found: tuple[int, int] = self.processor.size_hw
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the keypoints."""
        labels: dict[int, str] = self.model.config.id2label
        return KEYPOINT_NAMES if len(labels) == len(KEYPOINT_NAMES) else tuple(labels.values())

    def prepare(self, frame: Frame, people: People | None, options: PoseOptions) -> Prepared:
        """Cut people out."""
        found = people_in(frame, people, options)
        if found is None:
            found = whole_picture(frame.size_hw, note=None if options.people == "whole" else NO_FINDER)
        boxes = torch.from_numpy(found.boxes_xyxy.copy())  # [P, 4]
        boxes[:, 2:] -= boxes[:, :2]
        pixels = as_tensor(frame.picture).permute(2, 0, 1)  # [3, H, W]
        crops = self.processor.prepare_pictures([pixels], [boxes]) if len(boxes) else []  # [P, 3, h, w]
        return Prepared(frame, [Unit(crop, box) for crop, box in zip(crops, boxes, strict=True)], found)

    def forward(self, units: list[Unit], options: PoseOptions) -> list[tuple[Tensor, Tensor]]:
        """Return keypoints [J, 2] in source pixels and scores [J] of each person."""
        crops = to_device([unit.pixels for unit in units], self.device)  # [B, 3, h, w]
        heatmaps = self.model(crops, return_dict=True).heatmaps.float()  # [B, J, h/4, w/4]
        if options.flip:
            mirrored = self.model(crops.flip(-1), flip_pairs=self.flip_pairs(), return_dict=True).heatmaps
            heatmaps = (heatmaps + mirrored.float()) / 2
        # Decoded here: points are a thousandth of the heatmaps, which need not wait for their picture's other people.
        found = self.processor.post_process_pose_estimation(
            SimpleNamespace(heatmaps=heatmaps),
            boxes=[unit.note[None].numpy() for unit in units],
            kernel_size=options.kernel_size,
        )
        return [(person["keypoints"], person["scores"]) for (person,) in found]

    def flip_pairs(self) -> Tensor:
        """Pairs of keypoints that trade places in a mirrored picture [P, 2]."""
        pairs = self.model.config.flip_pairs
        if pairs is None and len(self.names) != len(KEYPOINT_NAMES):
            raise InputError("flip: the model's configuration has no flip_pairs. Leave flip out.")
        return torch.tensor(FLIP_PAIRS if pairs is None else pairs, device=self.device)

    def decode(self, prepared: Prepared, outputs: list[Any], options: PoseOptions) -> Any:
        """Put the people together: [P, J, 2] and [P, J]."""
        if not outputs:
            return torch.zeros(0, len(self.names), 2), torch.zeros(0, len(self.names))
        return torch.stack([xy for xy, _ in outputs]), torch.stack([scores for _, scores in outputs])

    def finish(self, prepared: Prepared, decoded: Any, options: PoseOptions) -> Pose:
        """Build the result."""
        points, scores = decoded
        return Pose(
            **self.about(prepared.frame, options, prepared.note),
            keypoints=points.numpy().astype(np.float32),
            scores=scores.numpy().astype(np.float32),
            names=self.names,
        )
