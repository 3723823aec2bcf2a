"""Poses with Sapiens2: 308 keypoints of each person.

boxes of people ─ crop ─▶ [3, 1024, 768] ─ model ─▶ heatmaps ─ decode ─▶ keypoints of crops ─▶ in source pixels

Keypoints are a thousandth of the size of their heatmaps: those of a batch are decoded together, and copied to the host
once, whichever images its people are from. If a Triton kernel decodes, it is part of the model's CUDA graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitruvian.cuda.graphs import no_capture
from vitruvian.cuda.streams import HostCopy, record_stream, stack_on_device
from vitruvian.errors import InputError
from vitruvian.human import FLIP_PAIRS, KEYPOINT_NAMES
from vitruvian.models.sapiens2.modeling import flip_back
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.ops.crop import crop_to_image_xy, crop_windows_numpy
from vitruvian.ops.heatmap_peaks import decode_heatmaps, decodes_without_sync
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.engine.steps import DecodeThread, ModelInput, Prepared
from vitruvian.pipelines.options import PoseOptions
from vitruvian.pipelines.people.detectors import whole_image
from vitruvian.pipelines.people.selection import people_to_crop
from vitruvian.pipelines.sources import Frame
from vitruvian.results import People, Pose
from vitruvian.tensor_cache import constant

T = TypeVar("T")


class _LazyValue(Generic[T]):
    """A value that the first thread to call `get` computes. Thread-safe."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute: Callable[[], T] | None = compute
        self._value: list[T] = []
        self._lock = threading.Lock()

    def get(self) -> T:
        """Return the value. If computing it raises, the next call tries again."""
        with self._lock:
            if self._compute is not None:
                self._value.append(self._compute())
                self._compute = None  # releases what the closure holds
            return self._value[0]


# x, y in heatmap pixels and score of each keypoint of a batch [B, J, 3], and the size of its heatmaps.
BatchKeypoints = tuple[Tensor, tuple[int, int]]
# The keypoints of a batch, and the row of one person.
PersonKeypoints = tuple[_LazyValue[HostCopy[BatchKeypoints]], int]


class PosePipeline(TaskPipeline[Pose, PoseOptions]):
    """Keypoints of the people in boxes, of detected people, or of one person who fills the image."""

    processor: Sapiens2ImageProcessor
    task = "pose"
    on_empty = "none"
    fixed_input_size = True
    forward_options = ("flip", "kernel_size")

    @property
    def keypoint_names(self) -> tuple[str, ...]:
        """Names of the keypoints."""
        return self.label_names(KEYPOINT_NAMES)

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Crop the people."""
        crops = people_to_crop(frame, people, self.options)
        if crops is None:
            crops = whole_image(frame.size_hw)
        if not len(crops):
            return Prepared(frame, [], crops)
        boxes = crops.boxes_xywh  # [P, 4]

        def make(pixels: Tensor, rows: slice) -> Sequence[Tensor] | Tensor:
            return self.processor.prepare_images([pixels], [boxes[rows]], dtype=self.model.dtype)

        return Prepared(frame, self.make_inputs(frame, len(boxes), make), crops)

    def forward(self, inputs: list[ModelInput]) -> list[PersonKeypoints]:
        """Run the model; return the keypoints of all people in the batch, and the row of each input."""
        crops = stack_on_device(
            [model_input.pixels for model_input in inputs], self.device, self.model.dtype
        )  # [B, 3, h, w]
        pairs = self._flip_pairs() if self.options.flip else None
        if decodes_without_sync(crops, kernel_size=self.options.kernel_size):
            # Decoding is part of the CUDA graph; the model alone is not captured.
            keypoints = self.model.run_captured(self._forward_and_decode, crops, pairs, self.options.kernel_size)
            copy = _LazyValue(lambda: HostCopy(keypoints))
            copy.get()
        else:
            heatmaps = self.model(crops, return_dict=True).heatmaps  # [B, J, h/4, w/4]
            # The same call for mirrored crops, so that both share a CUDA graph.
            mirrored = None if pairs is None else self.model(crops.flip(-1), return_dict=True).heatmaps

            def decode() -> HostCopy[BatchKeypoints]:
                record_stream([heatmaps, mirrored, pairs])
                return HostCopy(_decode(heatmaps, mirrored, pairs, self.options.kernel_size))

            copy = _LazyValue(decode)
            if self.upload_stream is None:
                copy.get()  # frees the heatmaps
        return [(copy, row) for row in range(len(inputs))]

    def _forward_and_decode(self, crops: Tensor, pairs: Tensor | None, kernel_size: int) -> BatchKeypoints:
        """Run the model and decode: crops [B, 3, h, w] -> keypoints."""
        with no_capture():
            heatmaps = self.model(crops, return_dict=True).heatmaps  # [B, J, h/4, w/4]
            mirrored = None if pairs is None else self.model(crops.flip(-1), return_dict=True).heatmaps
            return _decode(heatmaps, mirrored, pairs, kernel_size)

    def decode_thread(self) -> DecodeThread:
        """Return "worker" if a kernel decodes in `forward`, else as for other tasks."""
        if self.upload_stream is not None:
            example = torch.empty(0, self.input_hw[1], dtype=self.model.dtype, device=self.device)
            if decodes_without_sync(example, kernel_size=self.options.kernel_size):
                return "worker"
        return super().decode_thread()

    def _flip_pairs(self) -> Tensor:
        """Return the pairs of keypoints that swap in a mirrored image [P, 2]."""
        pairs = self.model.config.flip_pairs
        if pairs is None and len(self.keypoint_names) != len(KEYPOINT_NAMES):
            raise InputError("flip: the model's configuration has no flip_pairs. Leave flip out.")
        flat = [number for pair in (FLIP_PAIRS if pairs is None else pairs) for number in pair]
        return constant(tuple(flat), self.device).view(-1, 2)

    def decode(self, prepared: Prepared, outputs: list[PersonKeypoints]) -> list[PersonKeypoints]:
        """Decode the batches of an image's people, unless that is done."""
        for keypoints, _ in outputs:
            keypoints.get()
        return outputs

    def finish(self, prepared: Prepared, decoded: list[PersonKeypoints]) -> Pose:
        """Build the result."""
        names, people = self.keypoint_names, prepared.context
        keypoints = np.zeros((len(decoded), len(names), 3), np.float32)  # [P, J, 3]
        heatmap_hw = (2, 2)
        for person, (copy, row) in enumerate(decoded):
            batch, heatmap_hw = copy.get().wait()
            keypoints[person] = batch.numpy()[row]
        windows = crop_windows_numpy(people.boxes_xywh, self.processor.size_hw)
        return Pose(
            **self.result_fields(prepared.frame, people),
            keypoints=crop_to_image_xy(keypoints[..., :2], windows, heatmap_hw),
            scores=keypoints[..., 2].copy(),
            names=names,
        )


def _decode(heatmaps: Tensor, mirrored: Tensor | None, pairs: Tensor | None, kernel_size: int) -> BatchKeypoints:
    """Decode heatmaps [B, J, h, w], averaged with those of mirrored crops: keypoints [B, J, 3] and heatmap size."""
    if mirrored is not None and pairs is not None:
        heatmaps = (heatmaps.float() + flip_back(mirrored, pairs).float()) / 2
    xy, scores = decode_heatmaps(heatmaps, kernel_size=kernel_size)  # [B, J, 2], [B, J]
    return torch.cat((xy, scores[..., None]), dim=-1), (heatmaps.shape[-2], heatmaps.shape[-1])
