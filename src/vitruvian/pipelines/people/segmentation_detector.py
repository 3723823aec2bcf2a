"""People detector with a Mask2Former or MaskFormer that was trained on COCO.

    image ── processor, model ──▶ queries ── class person ──▶ masks ── bounding boxes ──▶ People

Only masks of people are computed, at no more than a megapixel. Small components far from the body are ignored.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vitruvian.auto import AutoImageProcessor, AutoModelForUniversalSegmentation
from vitruvian.devices import Device, DType, placement
from vitruvian.errors import InputError
from vitruvian.images.boxes import mask_boxes
from vitruvian.images.connected_components import remove_islands
from vitruvian.images.data_format import pixels_of
from vitruvian.images.types import RgbImage, SizeHW
from vitruvian.model import Model
from vitruvian.models.mask_classification.outputs import QueryLogits
from vitruvian.models.mask_classification.processing import MaskClassificationImageProcessor
from vitruvian.models.mask_classification.segments import BitMask, Thresholds, instance_masks
from vitruvian.results.base import People

_MAX_PIXELS = 1 << 20
_MIN_VISIBLE = 0.5  # minimum share of its mask that a person retains against those with a higher score
_MIN_COMPONENT = 0.05  # share of a mask's pixels below which a separate component is ignored


class SegmentationDetector:
    """Detects people with a Mask2Former or MaskFormer.

    Args:
        model: The model; one of its labels must be ``person``.
        processor: Its image processor.
        threshold: Lowest score of a person: class score × mean probability of the mask.
        name: Its name in results.
    """

    def __init__(
        self,
        model: Model,
        processor: MaskClassificationImageProcessor,
        *,
        threshold: float = 0.5,
        name: str | None = None,
    ) -> None:
        labels = {str(text).lower(): number for number, text in (model.config.id2label or {}).items()}
        if "person" not in labels:
            raise InputError(
                f"{name or type(model).__name__}: expected a model with the label person, got {list(labels)[:8]}. "
                "Use a checkpoint trained on COCO."
            )
        self.model, self.processor = model, processor
        self.person_class = labels["person"]
        self.threshold = threshold
        self.name = name or type(model).__name__

    @classmethod
    def open(cls, source: str | Path, *, device: Device, dtype: DType, **options: Any) -> Self:
        """Load a checkpoint: a folder or a Hub name."""
        model = AutoModelForUniversalSegmentation.from_pretrained(source, strict=True, dtype=dtype, **placement(device))
        return cls(model, AutoImageProcessor.from_pretrained(source), name=Path(source).name, **options)

    @torch.inference_mode()
    def detect(self, image: RgbImage, /) -> People:
        """Return the people in an image [H, W, 3], by score."""
        weight = next(self.model.parameters())
        pixels = pixels_of(image)  # [3, H, W]
        batch = self.processor(pixels, return_tensors="pt", input_data_format="channels_first", device=weight.device)
        mask = batch["pixel_mask"].to(weight.device)
        outputs = self.model(pixel_values=batch["pixel_values"].to(weight.device, weight.dtype), pixel_mask=mask)
        return self._people_of(QueryLogits.from_outputs(outputs), mask, (image.shape[0], image.shape[1]))

    def _people_of(self, queries: QueryLogits, pixel_mask: Tensor, size_hw: SizeHW) -> People:
        """Return the people among the queries of one image."""
        scale = min(1.0, math.sqrt(_MAX_PIXELS / (size_hw[0] * size_hw[1])))
        target_hw = max(1, round(size_hw[0] * scale)), max(1, round(size_hw[1] * scale))
        (grid,) = self.processor.mask_grids(queries, [target_hw], [size_hw], pixel_mask)
        thresholds = Thresholds(self.threshold, overlap_mask_area_threshold=_MIN_VISIBLE)
        masks, segments = instance_masks(self._person_logits(queries.classes[0]), grid, thresholds)
        to_source = np.array([size_hw[1] / target_hw[1], size_hw[0] / target_hw[0]] * 2, np.float32)
        boxes = np.array([_body_box(mask) for mask in masks], np.float32).reshape(-1, 4) * to_source  # [P, 4]
        scores = np.array([segment.score for segment in segments], np.float32)  # [P]
        return People(boxes_xyxy=boxes, scores=scores, detector=self.name)

    def _person_logits(self, class_logits: Tensor) -> Tensor:
        """Merge all other classes: [Q, K + 1] -> [Q, 2], with the same probability of a person."""
        logits = class_logits.float()
        others = torch.cat((logits[:, : self.person_class], logits[:, self.person_class + 1 :]), dim=1)  # [Q, K]
        return torch.stack((logits[:, self.person_class], others.logsumexp(1)), dim=1)  # [Q, 2]


def _body_box(mask: BitMask) -> tuple[int, int, int, int]:
    """Return the bounding box x1, y1, x2, y2 of a mask without its small components."""
    pixels = torch.from_numpy(mask.pixels().copy())  # [h, w]
    body = remove_islands(pixels, math.ceil(_MIN_COMPONENT * mask.area) - 1, keep_largest=True)
    left, top, right, bottom = mask_boxes(body).tolist()
    return left + mask.window[2], top + mask.window[0], right + mask.window[2], bottom + mask.window[0]
