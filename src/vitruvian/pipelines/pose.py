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
from vitruvian.models.sapiens2.modeling import Sapiens2ForPoseEstimation, flip_back
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.pipelines.base import PeopleOptions, TaskPipeline, people_in
from vitruvian.pipelines.memory import Later, read_here, to_device
from vitruvian.pipelines.people import whole_picture
from vitruvian.pipelines.runner import Prepared, Unit
from vitruvian.pipelines.sources import Frame
from vitruvian.results import People, Pose

Points = tuple[Tensor, ...]  # keypoints [B, J, 2] and scores [B, J]
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

    processor: Sapiens2ImageProcessor
    task = "pose"
    checkpoints = ("facebook/sapiens2-pose-0.4b", "facebook/sapiens2-pose-1b")
    auto = AutoModelForPoseEstimation
    accepts = (Sapiens2ForPoseEstimation,)
    options_class = PoseOptions
    nobody = "none"
    finds_people = True
    one_size = True

    @property
    def unit_hw(self) -> tuple[int, int]:
        """Height and width of a crop."""
        return self.processor.size_hw

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
        if not len(boxes):
            return Prepared(frame, [], found)

        def cut_out(pixels: Tensor) -> list[Tensor] | Tensor:
            return self.processor.prepare_pictures([pixels], [boxes], at_once=self.lane is not None)

        crops, arrival = self.on_device(frame, cut_out)  # [3, h, w] each
        return Prepared(frame, [Unit(crop, box, arrival) for crop, box in zip(crops, boxes, strict=True)], found)

    def forward(self, units: list[Unit], options: PoseOptions) -> list[tuple[Later[Points], int]]:
        """Return the keypoints of all these people, and which of them each unit is."""
        crops = to_device([unit.pixels for unit in units], self.device)  # [B, 3, h, w]
        heatmaps = self.model(crops, return_dict=True).heatmaps  # [B, J, h/4, w/4]
        # The same call without pairs, so that both share a recording.
        mirrored = self.model(crops.flip(-1), return_dict=True).heatmaps if options.flip else None
        boxes = [unit.note[None].numpy() for unit in units]
        found = Later(lambda: self.points(heatmaps, mirrored, boxes, options.kernel_size))
        if self.lane is None:
            # Decoded here: points are a thousandth of the heatmaps, which need not wait for their picture's others.
            found.get()
        return [(found, number) for number in range(len(units))]

    def points(self, heatmaps: Tensor, mirrored: Tensor | None, boxes: list[Any], kernel_size: int) -> Points:
        """Return keypoints [B, J, 2] in source pixels and scores [B, J] of people.

        Their heatmaps are [B, J, h/4, w/4], those of their mirrored pictures as the model gave them.
        """
        read_here([heatmaps, mirrored])
        heatmaps = heatmaps.float()
        if mirrored is not None:
            heatmaps = (heatmaps + flip_back(mirrored, self.flip_pairs()).float()) / 2
        people = self.processor.post_process_pose_estimation(
            SimpleNamespace(heatmaps=heatmaps), boxes=boxes, kernel_size=kernel_size
        )
        return tuple(torch.stack([one[name] for (one,) in people]) for name in ("keypoints", "scores"))

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
        people = [(found.get(), number) for found, number in outputs]
        return tuple(torch.stack([both[part][number] for both, number in people]) for part in (0, 1))

    def finish(self, prepared: Prepared, decoded: Any, options: PoseOptions) -> Pose:
        """Build the result."""
        points, scores = decoded
        return Pose(
            **self.about(prepared.frame, options, prepared.note),
            keypoints=points.numpy().astype(np.float32),
            scores=scores.numpy().astype(np.float32),
            names=self.names,
        )
