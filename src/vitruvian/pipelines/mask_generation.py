"""Masks of everything in a picture, with SAM 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from vitruvian.auto import AutoModelForMaskGeneration, AutoProcessor
from vitruvian.errors import InputError
from vitruvian.models.sam2.automatic import MaskProposals, Sam2AutomaticMaskGenerator
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2Processor
from vitruvian.processor import ImageInput


class MaskGenerationPipeline:
    """Finds masks of everything. Called with a picture it returns a dict, with a list of pictures a list of dicts.

    Args:
        model: The model.
        processor: Its processor.
        options: Fields of `AutomaticMaskOptions`.
    """

    def __init__(self, model: Sam2Model, processor: Sam2Processor, **options: Any) -> None:
        self.generator = Sam2AutomaticMaskGenerator(model, processor, **options)

    @classmethod
    def open(
        cls, model: str | Path | Sam2Model | None, *, processor: Any, device: Any, dtype: Any, **options: Any
    ) -> Self:
        """Open a checkpoint, or take a model that is open."""
        if model is None:
            raise InputError("model: expected a SAM 2 checkpoint such as 'facebook/sam2.1-hiera-tiny', got none.")
        if isinstance(model, Sam2Model):
            if processor is None:
                raise InputError("processor: expected one for a model that is open already. Pass processor=…")
            return cls(model if device is None else model.to(device), processor, **options)
        where = {"device_map": "auto"} if device is None else {"device": device}
        opened = AutoModelForMaskGeneration.from_pretrained(model, dtype=dtype, **where)
        return cls(opened, processor or AutoProcessor.from_pretrained(model), **options)

    @property
    def model(self) -> Sam2Model:
        """The model."""
        return self.generator.model

    def __call__(self, images: ImageInput, *, output_bboxes_mask: bool = False, **options: Any) -> Any:
        """Find masks.

        Args:
            images: A picture, or a list of pictures: PIL, numpy, torch, paths or URLs.
            output_bboxes_mask: Also return `bounding_boxes` [N, 4], x1, y1, x2, y2.
            options: Fields of `AutomaticMaskOptions` to change for this call, such as `points_per_batch`.

        Returns:
            For each picture a dict: `masks`, a list of bool [H, W], best first; `scores` [N]; and with
            `output_rle_mask` their run lengths as `rle_mask`.
        """
        found = self.generator(images, **options)
        if isinstance(found, MaskProposals):
            return as_dict(found, boxes=output_bboxes_mask)
        return [as_dict(one, boxes=output_bboxes_mask) for one in found]


def as_dict(found: MaskProposals, *, boxes: bool) -> dict[str, Any]:
    """Return proposals under the names that the mask-generation pipeline is known for."""
    result: dict[str, Any] = {"masks": list(found.masks), "scores": found.scores}
    if found.runs is not None:
        result["rle_mask"] = found.runs
    if boxes:
        result["bounding_boxes"] = found.boxes_xyxy
    return result
