"""People detector with Sapiens2: the built-in model, or any Sapiens2 with a detection head.

    image ── resize to a long side of 384 ── model ──▶ centers and sides ── decode_people ──▶ boxes in source pixels
    crop around each box ── the same encoder, head of body parts ──▶ share of person pixels in the box ──▶ score

Images much longer than wide (or the other way round) are processed a second time, in tiles: in the whole image, people
are too small to detect.

The detection head sees an image once, at low resolution, and takes some objects for people. If the checkpoint also has
a head for body parts, boxes are confirmed with it: the score of a box is the geometric mean of the score of its center
and of the share of its pixels that belong to a person, relative to the share that people usually have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vitruvian.devices import Device, DType, placement
from vitruvian.errors import InputError
from vitruvian.hub import BUILTIN, is_builtin
from vitruvian.images import resize
from vitruvian.images.data_format import pixels_of
from vitruvian.images.nms import box_nms
from vitruvian.images.types import RgbImage, SizeHW
from vitruvian.models.sapiens2.modeling import Sapiens2ForSemanticSegmentation
from vitruvian.models.sapiens2.multitask_checkpoint import local_heads
from vitruvian.models.sapiens2.people_detection import Sapiens2ForPeopleDetection, decode_people
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.pipelines.regions import Region, plan_tiles
from vitruvian.results.base import People

_THRESHOLD = 0.5
_CENTER_THRESHOLD = 0.3  # boxes whose center has a lower score are not confirmed; the default without confirmation
_PERSON_SHARE = 0.5  # share of a box that its person covers, typically
_CONTEXT = 1.5  # size of the crop that confirms a box, relative to the box
_LONG_SIDE = 384  # long side of training images
_NMS_IOU = 0.55
_ELONGATED = 2.0  # aspect ratio from which tiles are used
_TILE_ASPECT = 4 / 3
_EDGE_MARGIN = 0.01  # share of a tile's side: boxes that end so close to an inner edge may be cut


class Sapiens2Detector:
    """Detects people with a Sapiens2 model.

    Args:
        model: The model.
        processor: Its image processor, for the normalization of pixels.
        parts: A model of body parts that confirms boxes.
        threshold: Lowest score of a person; by default 0.5, without `parts` 0.3.
        name: Its name in results.
    """

    def __init__(
        self,
        model: Sapiens2ForPeopleDetection,
        processor: Sapiens2ImageProcessor,
        *,
        parts: Sapiens2ForSemanticSegmentation | None = None,
        threshold: float | None = None,
        name: str = BUILTIN,
    ) -> None:
        if threshold is None:
            threshold = _THRESHOLD if parts is not None else _CENTER_THRESHOLD
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold: expected a score from 0 to 1, got {threshold}.")
        self.model, self.processor, self.threshold, self.name = model.eval(), processor, threshold, name
        self.parts = None if parts is None else parts.eval()

    @classmethod
    def open(cls, source: str | Path, *, device: Device, dtype: DType, **options: Any) -> Self:
        """Load the built-in model, or a multi-task checkpoint with a detection head."""
        model = Sapiens2ForPeopleDetection.from_pretrained(source, strict=True, dtype=dtype, **placement(device))
        name = str(source) if source == BUILTIN else Path(source).name
        if is_builtin(source) or "seg" in local_heads(source):
            parts = Sapiens2ForSemanticSegmentation.from_pretrained(source, dtype=model.dtype, device=model.device)
            parts.model = model.model  # one encoder for both
            options = {"parts": parts, **options}
        return cls(model, Sapiens2ImageProcessor.from_pretrained(source), name=name, **options)

    def detect(self, image: RgbImage, /) -> People:
        """Return the people in an image [H, W, 3], by score."""
        pixels = pixels_of(image)  # [3, H, W]
        boxes, scores = self._detect(pixels)
        for tile in _extra_tiles((image.shape[0], image.shape[1])):
            tile_boxes, tile_scores = self._detect_in_tile(pixels, tile)
            boxes, scores = torch.cat([boxes, tile_boxes]), torch.cat([scores, tile_scores])
        selected = box_nms(boxes, scores, _NMS_IOU)
        boxes, scores = boxes[selected], scores[selected]
        if self.parts is not None:
            scores = self._confirm(pixels, boxes, scores)
        order = scores.argsort(descending=True, stable=True)
        order = order[scores[order] >= self.threshold]
        return People(
            boxes_xyxy=boxes[order].cpu().numpy().astype(np.float32).reshape(-1, 4),
            scores=scores[order].cpu().numpy().astype(np.float32),
            detector=self.name,
        )

    @torch.inference_mode()
    def _detect(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes [n, 4] and scores [n] of people in [3, H, W] uint8."""
        size_hw = (pixels.shape[1], pixels.shape[2])
        out = self.model(self._prepare(pixels), return_dict=True)
        lowest = self.threshold if self.parts is None else min(self.threshold, _CENTER_THRESHOLD)
        return decode_people(out.logits, out.sides, size_hw=size_hw, threshold=lowest, overlap=_NMS_IOU)[0]

    @torch.inference_mode()
    def _confirm(self, pixels: Tensor, boxes: Tensor, scores: Tensor) -> Tensor:
        """Return the scores [n] of boxes [n, 4] with the share of person pixels; low ones are unchanged."""
        confirmed = scores.clone()
        for row in (scores >= _CENTER_THRESHOLD).nonzero().flatten().tolist():
            share = self._person_share(pixels, boxes[row].tolist())
            confirmed[row] = (scores[row] * min(1.0, share / _PERSON_SHARE)).sqrt()
        return confirmed

    def _person_share(self, pixels: Tensor, box_xyxy: Sequence[float]) -> float:
        """Return the share of the pixels of a box that belong to a person, by the parts in a crop around it."""
        assert self.parts is not None
        x1, y1, x2, y2 = box_xyxy
        columns = _around(x1, x2, pixels.shape[2])
        rows = _around(y1, y2, pixels.shape[1])
        crop = pixels[:, rows.start : rows.stop, columns.start : columns.stop]
        person = 1 - self.parts(self._prepare(crop), return_dict=True).logits[0].float().softmax(0)[0]  # [h, w]
        inside_y = _scaled(y1 - rows.start, y2 - rows.start, person.shape[0] / len(rows))
        inside_x = _scaled(x1 - columns.start, x2 - columns.start, person.shape[1] / len(columns))
        return float(person[inside_y, inside_x].mean())

    def _prepare(self, pixels: Tensor) -> Tensor:
        """Resize and normalize an image, uint8 [3, H, W] -> [1, 3, h, w]."""
        weight = next(self.model.parameters())
        small = resize(pixels.to(weight.device), self._input_hw((pixels.shape[1], pixels.shape[2])), mode="bilinear")
        return self.processor.normalize_pixels(small)[None].to(weight.dtype)

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

    def _input_hw(self, size_hw: SizeHW) -> SizeHW:
        """Return the size to resize an image to: whole patches, in nearly its aspect ratio."""
        scale = _LONG_SIDE / max(size_hw)
        height, width = (
            max(step, round(side * scale / step) * step)
            for side, step in zip(size_hw, self.model.config.token_hw, strict=True)
        )
        return height, width


def _around(start: float, end: float, limit: int) -> range:
    """Return the pixels of a side of the crop around a box, inside of an image."""
    margin = (end - start) * (_CONTEXT - 1) / 2
    first = min(max(0, math.floor(start - margin)), limit - 1)
    return range(first, min(limit, max(first + 1, math.ceil(end + margin))))


def _scaled(start: float, end: float, scale: float) -> slice:
    """Return the cells of a map that an interval covers, at least one."""
    first = max(0, math.floor(start * scale))
    return slice(first, max(first + 1, math.ceil(end * scale)))


def _extra_tiles(size_hw: SizeHW) -> list[Region]:
    """Return the tiles to process in addition to the whole image if it is elongated."""
    short, long = min(size_hw), max(size_hw)
    if long < _ELONGATED * short:
        return []
    tile_long = min(long, round(short * _TILE_ASPECT))
    tile_hw = (short, tile_long) if size_hw[1] == long else (tile_long, short)
    return plan_tiles(size_hw, tile_hw, overlap=0.5)
