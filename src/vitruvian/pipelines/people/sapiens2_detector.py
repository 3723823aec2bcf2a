"""People detector with Sapiens2: the built-in model, or any Sapiens2 with a detection head.

    image ── resize to a long side of 384 ── model ──▶ centers and sides ── decode_people ──▶ boxes in source pixels

Images much longer than wide (or the other way round) are processed a second time, in tiles: in the whole image, people
are too small to detect.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.hub import BUILTIN, is_builtin
from vitruvian.images import resize
from vitruvian.images.data_format import pixels_of
from vitruvian.images.nms import box_nms
from vitruvian.images.types import RgbImage
from vitruvian.models.sapiens2.person_detection import Sapiens2ForPeopleDetection, decode_people
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.pipelines.people.detectors import Device, DType
from vitruvian.pipelines.regions import Region, plan_tiles
from vitruvian.results.base import People

_THRESHOLD = 0.3
# The built-in model is overconfident about small boxes. Logistic regression on its boxes in annotated photographs:
# logit(score) = 1.8 logit(center) + 1.4 log(side) + 2.5, where side is the square root of the box's share of the image.
_CALIBRATION = (1.8, 1.4, 2.5)
_LOWEST_CENTER = 0.05  # score of centers from which boxes are calibrated
_LONG_SIDE = 384  # of training images
_NMS_IOU = 0.55
_ELONGATED = 2.0  # aspect ratio from which tiles are used
_TILE_ASPECT = 4 / 3
_EDGE_MARGIN = 0.01  # share of a tile's side: boxes that end so close to an inner edge may be cut


class Sapiens2Detector:
    """Detects people with a Sapiens2 model.

    Args:
        model: The model.
        processor: Its image processor, for the normalization of pixels.
        threshold: Lowest score of a person.
        calibration: Factors of the logit and of the log size of a box, and a constant, that make scores probabilities
            (see `_CALIBRATION`); by default scores are those of the model.
        name: Its name in results.
    """

    def __init__(
        self,
        model: Sapiens2ForPeopleDetection,
        processor: Sapiens2ImageProcessor,
        *,
        threshold: float = _THRESHOLD,
        calibration: tuple[float, float, float] | None = None,
        name: str = BUILTIN,
    ) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold: expected a score from 0 to 1, got {threshold}.")
        self.model, self.processor, self.threshold, self.name = model.eval(), processor, threshold, name
        self.calibration = calibration

    @classmethod
    def open(cls, source: str | Path, *, device: Device, dtype: DType, **options: Any) -> Self:
        """Load the built-in model, or a multi-task checkpoint with a detection head."""
        model = Sapiens2ForPeopleDetection.from_pretrained(
            source, strict=True, dtype=dtype, device=device, device_map="auto" if device is None else None
        )
        name = str(source) if source == BUILTIN else Path(source).name
        if is_builtin(source):
            options = {"calibration": _CALIBRATION, **options}
        return cls(model, Sapiens2ImageProcessor.from_pretrained(source), name=name, **options)

    def detect(self, image: RgbImage, /) -> People:
        """Return the people in an image [H, W, 3], by score."""
        pixels = pixels_of(image)  # [3, H, W]
        boxes, scores = self._detect(pixels)
        for tile in _extra_tiles((image.shape[0], image.shape[1])):
            tile_boxes, tile_scores = self._detect_in_tile(pixels, tile)
            boxes, scores = torch.cat([boxes, tile_boxes]), torch.cat([scores, tile_scores])
        selected = box_nms(boxes, scores, _NMS_IOU)
        return People(
            boxes_xyxy=boxes[selected].cpu().numpy().astype(np.float32).reshape(-1, 4),
            scores=scores[selected].cpu().numpy().astype(np.float32),
            detector=self.name,
        )

    @torch.inference_mode()
    def _detect(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes [n, 4] and scores [n] of people in [3, H, W] uint8."""
        weight = next(self.model.parameters())
        size_hw = (pixels.shape[1], pixels.shape[2])
        small = resize(pixels.to(weight.device), self._input_hw(size_hw), mode="bilinear")
        prepared = self.processor.normalize_pixels(small)[None].to(weight.dtype)  # [1, 3, h, w]
        out = self.model(prepared, return_dict=True)
        lowest = self.threshold if self.calibration is None else min(self.threshold, _LOWEST_CENTER)
        boxes, scores = decode_people(out.logits, out.sides, size_hw=size_hw, threshold=lowest, overlap=_NMS_IOU)[0]
        if self.calibration is not None:
            scores = _calibrate(boxes, scores, size_hw, self.calibration)
        confident = scores >= self.threshold
        return boxes[confident], scores[confident]

    def _detect_in_tile(self, pixels: Tensor, tile: Region) -> tuple[Tensor, Tensor]:
        """Return boxes and scores of people in a tile, without those that an edge inside the image may cut."""
        top, left, height, width = (int(number) for number in tile)
        boxes, scores = self._detect(tile.crop(pixels))
        margin = boxes.new_tensor([width, height]) * _EDGE_MARGIN  # [2]
        ends = boxes.new_tensor([width, height]) - margin  # [2]
        at_start = boxes.new_tensor([left == 0, top == 0], dtype=torch.bool)  # [2], edges of the image
        at_end = boxes.new_tensor([left + width == pixels.shape[2], top + height == pixels.shape[1]], dtype=torch.bool)
        uncut = ((boxes[:, :2] > margin) | at_start).all(1) & ((boxes[:, 2:] < ends) | at_end).all(1)  # [n]
        return boxes[uncut] + boxes.new_tensor([left, top, left, top]), scores[uncut]

    def _input_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        """Return the size to resize an image to: whole patches, in nearly its aspect ratio."""
        scale = _LONG_SIDE / max(size_hw)
        height, width = (
            max(step, round(side * scale / step) * step)
            for side, step in zip(size_hw, self.model.config.token_hw, strict=True)
        )
        return height, width


def _calibrate(
    boxes: Tensor, scores: Tensor, size_hw: tuple[int, int], calibration: tuple[float, float, float]
) -> Tensor:
    """Return probabilities [n] that boxes [n, 4] with these scores [n] are people."""
    slope, size_slope, constant = calibration
    share = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1) / (size_hw[0] * size_hw[1])  # [n]
    log_side = share.clamp(min=1e-8).log() / 2
    return torch.sigmoid(slope * scores.logit(eps=1e-6) + size_slope * log_side + constant)


def _extra_tiles(size_hw: tuple[int, int]) -> list[Region]:
    """Return the tiles to process in addition to the whole image if it is elongated."""
    short, long = min(size_hw), max(size_hw)
    if long < _ELONGATED * short:
        return []
    tile_long = min(long, round(short * _TILE_ASPECT))
    tile_hw = (short, tile_long) if size_hw[1] == long else (tile_long, short)
    return plan_tiles(size_hw, tile_hw, overlap=0.5)
