"""People from a Mask2Former or MaskFormer of ours that was trained on COCO.

    picture ── processor, model ──▶ queries ── those that say person ──▶ masks ── tight boxes ──▶ People

Only the masks of people are looked at, at no more than a megapixel, and specks far from the body do not count.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vitruvian.auto import AutoImageProcessor, AutoModelForUniversalSegmentation
from vitruvian.errors import InputError
from vitruvian.images.components import label_regions
from vitruvian.images.nms import mask_boxes
from vitruvian.model import Model
from vitruvian.models.mask_classification.postprocessing import QueryLogits
from vitruvian.models.mask_classification.processing import MaskProcessor
from vitruvian.models.mask_classification.segments import SmallMask, instance_masks
from vitruvian.processor import as_tensor
from vitruvian.results.base import People, Picture

MOST_PIXELS = 1 << 20
SMALLEST_PART = 0.05  # of a person's pixels: separate parts below this are specks


class SegmenterFinder:
    """Finds people with a Mask2Former or MaskFormer.

    Args:
        model: The model; one of its labels must be ``person``.
        processor: Its image processor.
        threshold: Lowest score of a person: class score × mean probability of the mask.
        min_visible: Share of their mask that people must keep against better ones, or they are the same person.
        name: What results call it.
    """

    def __init__(
        self,
        model: Model,
        processor: MaskProcessor,
        *,
        threshold: float = 0.5,
        min_visible: float = 0.5,
        name: str | None = None,
    ) -> None:
        labels = {str(text).lower(): number for number, text in (model.config.id2label or {}).items()}
        if "person" not in labels:
            raise InputError(
                f"{name or type(model).__name__}: expected a model with the label person, got {list(labels)[:8]}. "
                "Use a checkpoint trained on COCO."
            )
        self.model, self.processor = model, processor
        self.person = labels["person"]
        self.threshold, self.min_visible = threshold, min_visible
        self.name = name or type(model).__name__

    @classmethod
    def open(cls, model: str | Path, *, device: Any = None, dtype: Any = None, threshold: float = 0.5) -> Self:
        """Open a checkpoint: a folder or a Hub name."""
        where = {"device_map": "auto"} if device is None else {"device": device}
        opened = AutoModelForUniversalSegmentation.from_pretrained(model, dtype=dtype, **where)
        processor = AutoImageProcessor.from_pretrained(model)
        return cls(opened, processor, threshold=threshold, name=Path(model).name)

    @torch.inference_mode()
    def find(self, picture: Picture) -> People:
        """Return the people in a picture [H, W, 3], best first."""
        weight = next(self.model.parameters())
        source = as_tensor(picture).permute(2, 0, 1)  # [3, H, W]
        batch = self.processor(source, return_tensors="pt", input_data_format="channels_first", device=weight.device)
        mask = batch["pixel_mask"].to(weight.device)
        outputs = self.model(pixel_values=batch["pixel_values"].to(weight.device, weight.dtype), pixel_mask=mask)
        return self.read(QueryLogits.from_outputs(outputs), mask, (picture.shape[0], picture.shape[1]))

    def read(self, queries: QueryLogits, pixel_mask: Tensor, size_hw: tuple[int, int]) -> People:
        """Return the people among the queries of one picture."""
        shrink = min(1.0, math.sqrt(MOST_PIXELS / (size_hw[0] * size_hw[1])))
        target_hw = max(1, round(size_hw[0] * shrink)), max(1, round(size_hw[1] * shrink))
        (grid,) = self.processor.mask_grids(queries, [target_hw], [size_hw], pixel_mask)
        masks, found = instance_masks(
            self.person_or_not(queries.classes[0]),
            grid,
            threshold=self.threshold,
            overlap_mask_area_threshold=self.min_visible,
        )
        scale = np.array([size_hw[1] / target_hw[1], size_hw[0] / target_hw[0]] * 2, np.float32)
        boxes = np.array([tight_box(mask) for mask in masks], np.float32).reshape(-1, 4) * scale  # [P, 4]
        scores = np.array([segment.score for segment in found], np.float32)  # [P]
        return People(boxes_xyxy=boxes, scores=scores, finder=self.name)

    def person_or_not(self, class_logits: Tensor) -> Tensor:
        """Sum up all classes but one: [Q, K + 1] -> [Q, 2], with the same probability of a person."""
        logits = class_logits.float()
        others = torch.cat((logits[:, : self.person], logits[:, self.person + 1 :]), dim=1)  # [Q, K]
        return torch.stack((logits[:, self.person], others.logsumexp(1)), dim=1)  # [Q, 2]


def tight_box(mask: SmallMask) -> tuple[int, int, int, int]:
    """Return x1, y1, x2, y2 of a mask, leaving out separate parts that are small beside the rest."""
    pixels = torch.from_numpy(mask.pixels().copy())  # [h, w]
    _, areas = label_regions(pixels)  # [h, w]
    # The largest part counts even where a mask is all specks.
    body = areas >= min(max(1.0, SMALLEST_PART * mask.area), float(areas.max()))
    left, top, right, bottom = mask_boxes(body).tolist()
    return left + mask.window[2], top + mask.window[0], right + mask.window[2], bottom + mask.window[0]
