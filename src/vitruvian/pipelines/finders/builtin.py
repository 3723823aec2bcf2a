"""People from the small model inside the package, or from any Sapiens2 with a head that finds people.

    picture ── shrunk to a long side of 384 ── model ──▶ middles and sides ── decode_people ──▶ boxes in source pixels

Pictures much longer than high (or the other way round) are looked at a second time, piece by piece: at once, people in
them are too small to see.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.hub import BUILTIN
from vitruvian.images import resize
from vitruvian.images.nms import box_nms
from vitruvian.models.sapiens2.people import Sapiens2ForPeopleDetection, decode_people
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.pipelines.crops import Window
from vitruvian.pipelines.tiles import plan_tiles
from vitruvian.processor import as_tensor
from vitruvian.results.base import People, Picture

THRESHOLD = 0.3  # on photographs, four of five boxes are right and three of five large people are found; set on them
LONG_SIDE = 384  # what the model was trained on
OVERLAP = 0.55  # IoU above which two boxes are one person
LONG_PICTURE = 2.0  # sides in this proportion, or beyond, are looked at piece by piece too
PIECE = 4 / 3  # long side of a piece over its short one
CUT = 0.01  # of a piece's side: boxes that end so near to an inner edge of it may be cut


class BuiltinFinder:
    """Finds people with a Sapiens2 model.

    Args:
        model: The model.
        processor: Its image processor; says how pixels are normalised.
        threshold: Lowest score of a person.
        long_side: Pixels of the picture's long side as the model sees it.
        pieces: Whether to look at pieces of the picture too; by default where it is long and narrow.
        name: What results call it.
    """

    def __init__(
        self,
        model: Sapiens2ForPeopleDetection,
        processor: Sapiens2ImageProcessor,
        *,
        threshold: float = THRESHOLD,
        long_side: int = LONG_SIDE,
        pieces: bool | None = None,
        name: str = BUILTIN,
    ) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold: expected a score from 0 to 1, got {threshold}.")
        if long_side < max(model.config.token_hw):
            raise InputError(f"long_side: expected at least {max(model.config.token_hw)} pixels, got {long_side}.")
        self.model, self.processor = model.eval(), processor
        self.threshold, self.long_side, self.pieces = threshold, long_side, pieces
        self.name = name

    @classmethod
    def open(
        cls,
        source: str | Path = BUILTIN,
        *,
        device: Any = None,
        dtype: Any = None,
        threshold: float = THRESHOLD,
        long_side: int = LONG_SIDE,
        pieces: bool | None = None,
    ) -> Self:
        """Open the model inside the package, or a packed folder that has people among its tasks."""
        where = {"device_map": "auto"} if device is None else {"device": device}
        model = Sapiens2ForPeopleDetection.from_pretrained(source, dtype=dtype, **where)
        processor = Sapiens2ImageProcessor.from_pretrained(source)
        name = source if source == BUILTIN else Path(source).name
        return cls(model, processor, threshold=threshold, long_side=long_side, pieces=pieces, name=str(name))

    def find(self, picture: Picture) -> People:
        """Return the people in a picture [H, W, 3], best first."""
        pixels = as_tensor(picture).permute(2, 0, 1)  # [3, H, W]
        boxes, scores = self.look(pixels)
        for window in self.windows((picture.shape[0], picture.shape[1])):
            more, sure = self.look_at(pixels, window)
            boxes, scores = torch.cat([boxes, more]), torch.cat([scores, sure])
        kept = box_nms(boxes, scores, OVERLAP)
        found = boxes[kept].cpu().numpy().astype(np.float32).reshape(-1, 4)  # [P, 4]
        return People(boxes_xyxy=found, scores=scores[kept].cpu().numpy().astype(np.float32), finder=self.name)

    @torch.inference_mode()
    def look(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes [n, 4] and scores [n] of people in [3, H, W] uint8."""
        weight = next(self.model.parameters())
        size_hw = (pixels.shape[1], pixels.shape[2])
        small = resize(pixels.to(weight.device), self.input_hw(size_hw), mode="bilinear")
        prepared = self.processor.finish_pixels(small)[None].to(weight.dtype)  # [1, 3, h, w]
        out = self.model(prepared, return_dict=True)
        return decode_people(out.logits, out.sides, size_hw=size_hw, threshold=self.threshold, overlap=OVERLAP)[0]

    def look_at(self, pixels: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        """Return boxes and scores of people in a window, but for those that an edge within the picture may cut."""
        top, left, height, width = (int(number) for number in window)
        boxes, scores = self.look(pixels[:, top : top + height, left : left + width])
        H, W = pixels.shape[1:]
        near_x, near_y = CUT * width, CUT * height
        whole = torch.ones_like(scores, dtype=torch.bool)
        for edge, inner in (
            (boxes[:, 0] > near_x, left > 0),
            (boxes[:, 1] > near_y, top > 0),
            (boxes[:, 2] < width - near_x, left + width < W),
            (boxes[:, 3] < height - near_y, top + height < H),
        ):
            whole &= edge | (not inner)
        return boxes[whole] + boxes.new_tensor([left, top, left, top]), scores[whole]

    def windows(self, size_hw: tuple[int, int]) -> list[Window]:
        """Return the pieces of a picture that are looked at on their own."""
        short, long = min(size_hw), max(size_hw)
        wanted = long >= LONG_PICTURE * short if self.pieces is None else self.pieces
        if not wanted:
            return []
        if long < LONG_PICTURE * short:  # not long: four pieces, and what lies between
            side_hw = (-(-size_hw[0] * 5 // 8), -(-size_hw[1] * 5 // 8))
        else:
            reach = min(long, round(short * PIECE))
            side_hw = (short, reach) if size_hw[1] == long else (reach, short)
        found = plan_tiles(size_hw, side_hw, overlap=0.5 if long >= LONG_PICTURE * short else 0.25)
        return found if len(found) > 1 else []

    def input_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        """Return the size at which a picture is looked at: whole patches, in nearly the picture's proportions."""
        scale = self.long_side / max(size_hw)
        height, width = (
            max(step, round(side * scale / step) * step)
            for side, step in zip(size_hw, self.model.config.token_hw, strict=True)
        )
        return height, width
