"""Poses: 308 keypoints of each person, with Sapiens2.

people in boxes ─ cut out ─▶ crops [3, 1024, 768] ─ model ─▶ heatmaps ─ decode ─▶ points of crops ─▶ in source pixels

Points are a thousandth of the heatmaps they come from: those of a batch are decoded together, and copied to the host
once, whichever pictures its people are from. Where a kernel decodes, that is recorded together with the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.auto import AutoModelForPoseEstimation
from vitruvian.errors import InputError
from vitruvian.human import FLIP_PAIRS, KEYPOINT_NAMES
from vitruvian.models.sapiens2.modeling import Sapiens2ForPoseEstimation, flip_back
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.ops.cache import constant
from vitruvian.ops.crop import crop_windows
from vitruvian.ops.cuda_graphs import no_capture
from vitruvian.ops.heatmap_peaks import decode_heatmaps, decodes_without_sync
from vitruvian.pipelines.base import PeopleOptions, TaskPipeline, people_in
from vitruvian.pipelines.memory import Later, OnHost, read_here, to_device, to_host
from vitruvian.pipelines.people import whole_picture
from vitruvian.pipelines.runner import Prepared, Unit
from vitruvian.pipelines.sources import Frame
from vitruvian.results import People, Pose

Found = tuple[Later[OnHost], int]  # points [B, J, 3] of a batch and the size of its heatmaps; and which row to take
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
        if not len(found):
            return Prepared(frame, [], found)
        boxes = xywh(found)  # [P, 4]

        def cut_out(pixels: Tensor) -> list[Tensor] | Tensor:
            return self.processor.prepare_pictures([pixels], [boxes], dtype=self.model.dtype)

        crops, arrival = self.on_device(frame, cut_out)  # [3, h, w] each
        return Prepared(frame, [Unit(crop, arrival=arrival) for crop in crops], found)

    def forward(self, units: list[Unit], options: PoseOptions) -> list[Found]:
        """Return the points of all these people, and which of them each unit is."""
        crops = to_device([unit.pixels for unit in units], self.device, self.model.dtype)  # [B, 3, h, w]
        pairs = self.flip_pairs() if options.flip else None
        if decodes_without_sync(crops, kernel_size=options.kernel_size):
            points, size_hw = self.model.run_captured(self.find_points, crops, pairs, options.kernel_size)
            found = Later(lambda: to_host((points, size_hw)))
            found.get()
        else:
            heatmaps = self.heatmaps(crops, pairs)

            def decoded() -> OnHost:
                read_here([heatmaps, pairs])  # in another queue of the device
                return to_host(self.points(*heatmaps, pairs, options.kernel_size))

            found = Later(decoded)
            if self.lane is None:
                found.get()  # heatmaps need not wait for their picture's others
        return [(found, number) for number in range(len(units))]

    def find_points(self, crops: Tensor, pairs: Tensor | None, kernel_size: int) -> tuple[Tensor, tuple[int, int]]:
        """Run the model and decode: crops [B, 3, h, w] -> what `points` gives."""
        with no_capture():  # this call is
            return self.points(*self.heatmaps(crops, pairs), pairs, kernel_size)

    def heatmaps(self, crops: Tensor, pairs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Run the model on crops and, where `pairs` are given, on their mirrored pictures: [B, J, h/4, w/4] each."""
        heatmaps = self.model(crops, return_dict=True).heatmaps
        # The same call without pairs, so that both share a recording.
        return heatmaps, None if pairs is None else self.model(crops.flip(-1), return_dict=True).heatmaps

    def points(
        self, heatmaps: Tensor, mirrored: Tensor | None, pairs: Tensor | None, kernel_size: int
    ) -> tuple[Tensor, tuple[int, int]]:
        """Return x and y in heatmap pixels, and the score, of people [B, J, 3]; and the size of their heatmaps.

        Heatmaps are [B, J, h/4, w/4], those of the mirrored pictures as the model gave them.
        """
        if mirrored is not None and pairs is not None:
            heatmaps = (heatmaps.float() + flip_back(mirrored, pairs).float()) / 2
        xy, scores = decode_heatmaps(heatmaps, kernel_size=kernel_size)  # [B, J, 2], [B, J]
        return torch.cat((xy, scores[..., None]), dim=-1), (heatmaps.shape[-2], heatmaps.shape[-1])

    def decodes_ahead(self, options: PoseOptions) -> bool:
        """Tell whether `forward` decodes: in a call of the device that nobody has to wait for."""
        if self.lane is None:
            return False
        like = torch.empty(0, self.unit_hw[1], dtype=self.model.dtype, device=self.device)
        return decodes_without_sync(like, kernel_size=options.kernel_size)

    def flip_pairs(self) -> Tensor:
        """Pairs of keypoints that trade places in a mirrored picture [P, 2]."""
        pairs = self.model.config.flip_pairs
        if pairs is None and len(self.names) != len(KEYPOINT_NAMES):
            raise InputError("flip: the model's configuration has no flip_pairs. Leave flip out.")
        flat = [number for pair in (FLIP_PAIRS if pairs is None else pairs) for number in pair]
        return constant(tuple(flat), self.device).view(-1, 2)

    def decode(self, prepared: Prepared, outputs: list[Any], options: PoseOptions) -> list[Found]:
        """Have people decoded, with the others of their batches."""
        for found, _ in outputs:
            found.get()
        return outputs

    def finish(self, prepared: Prepared, decoded: Any, options: PoseOptions) -> Pose:
        """Build the result."""
        points = np.zeros((len(decoded), len(self.names), 3), np.float32)  # [P, J, 3]
        last_xy: Any = (1, 1)
        for row, (found, number) in enumerate(decoded):
            batch, (height, width) = found.get().wait()
            points[row], last_xy = batch.numpy()[number], (width - 1, height - 1)
        return Pose(
            **self.about(prepared.frame, options, prepared.note),
            keypoints=self.in_source(points[..., :2], last_xy, prepared.note),
            scores=points[..., 2].copy(),
            names=self.names,
        )

    def in_source(self, xy: NDArray[np.float32], last_xy: tuple[int, int], people: People) -> NDArray[np.float32]:
        """Bring points [P, J, 2] from pixels of people's heatmaps, whose last is `last_xy`, to those of the picture."""
        center_xy, size_wh = crop_windows(xywh(people), self.processor.size_hw)  # [P, 2] each
        shares = xy / np.array(last_xy, np.float32) - np.float32(0.5)  # [P, J, 2]
        return (shares * size_wh[:, None] + center_xy[:, None]).astype(np.float32, copy=False)


def xywh(people: People) -> NDArray[np.float32]:
    """Return the boxes of people as x, y, width and height: [P, 4]."""
    boxes: NDArray[np.float32] = people.boxes_xyxy.copy()
    boxes[:, 2:] -= boxes[:, :2]
    return boxes
