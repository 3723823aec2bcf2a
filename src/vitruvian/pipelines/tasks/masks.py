"""Masks of everything in an image with SAM 2.

Called with an image or a list, the pipeline returns what the mask-generation pipeline of transformers does: dicts of
tensors. `run` takes any source and returns `Masks`, as other pipelines do.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from vitruvian.errors import InputError
from vitruvian.images.data_format import pixels_of
from vitruvian.models.sam2.automatic_masks import AutomaticMaskOptions, MaskProposals, Sam2AutomaticMaskGenerator
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2Processor
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.engine.batches import BatchSize, is_out_of_memory
from vitruvian.pipelines.engine.task import Prepared, Unit
from vitruvian.pipelines.options import Options
from vitruvian.pipelines.sources import Frame
from vitruvian.processor import ImageInput
from vitruvian.results import Masks, People

_PROPOSAL_OPTIONS = frozenset(field.name for field in dataclasses.fields(AutomaticMaskOptions))


@dataclass(frozen=True, kw_only=True)
class MaskGenerationOptions(Options, AutomaticMaskOptions):
    """Options of every pipeline, and how masks are proposed and selected."""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        AutomaticMaskOptions.__post_init__(self)


class MaskGenerationPipeline(TaskPipeline[Masks, MaskGenerationOptions]):
    """Generates masks of everything.

    Args:
        model: The model.
        processor: Its processor.
        options: Fields of `AutomaticMaskOptions`, and those of every pipeline for `run`.
    """

    processor: Sam2Processor
    task = "masks"
    options_class = MaskGenerationOptions
    blocking_decode: ClassVar[bool] = True

    def __init__(self, model: Sam2Model, processor: Sam2Processor, **options: object) -> None:
        super().__init__(model, processor, **options)
        proposal_options = {name: value for name, value in options.items() if name in _PROPOSAL_OPTIONS}
        self.generator = Sam2AutomaticMaskGenerator(model, processor, **proposal_options)

    def __call__(  # type: ignore[override]
        self, images: ImageInput, *, output_bboxes_mask: bool = False, **options: Any
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Generate masks in the format of the mask-generation pipeline of transformers.

        Args:
            images: An image or a list of images: PIL, numpy, torch, paths or URLs. `run` takes other sources.
            output_bboxes_mask: Also return `bounding_boxes` [N, 4], x1, y1, x2, y2.
            options: Fields of `AutomaticMaskOptions` to change for this call, such as `points_per_batch`.

        Returns:
            For each image a dict: `masks`, a list of bool [H, W], by score; `scores` [N]; and with `output_rle_mask`
            their run lengths as `rle_mask`.
        """
        proposals = self.generator(images, **options)
        if isinstance(proposals, MaskProposals):
            return _as_dict(proposals, boxes=output_bboxes_mask)
        return [_as_dict(one, boxes=output_bboxes_mask) for one in proposals]

    def batch_size(self, options: MaskGenerationOptions, *, live: bool) -> BatchSize:
        """One image at a time: batches consist of points."""
        if options.batch_size != "auto":
            raise InputError("batch_size: images are processed one by one here. Use points_per_batch.")
        return BatchSize(1, fixed=True)

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Return the image at full resolution, from which the generator crops."""
        return Prepared(frame, [Unit(pixels_of(frame.image))])

    def forward(self, units: list[Unit]) -> list[MaskProposals]:
        """Generate masks of each image. When memory runs out, batches of points become smaller."""
        points = BatchSize(self.options.points_per_batch or self.options.points_per_crop**2, fixed=False)
        proposals: list[MaskProposals] = []
        while len(proposals) < len(units):
            size = points.size
            options = dataclasses.replace(self.options, points_per_batch=size, output_rle_mask=True)
            try:
                proposals.append(self.generator.generate(units[len(proposals)].pixels, options))
                continue
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error)
            points.shrink_below(size, self.device, reason)
        return proposals

    def finish(self, prepared: Prepared, decoded: MaskProposals) -> Masks:
        """Build the result."""
        return Masks(
            **self.result_fields(prepared.frame),
            kind="mask-generation",
            runs=decoded.rles,
            scores=decoded.scores.float().numpy(),
            boxes_xyxy=decoded.boxes_xyxy.float().numpy(),
        )


def _as_dict(proposals: MaskProposals, *, boxes: bool) -> dict[str, Any]:
    """Return proposals under the names of the mask-generation pipeline of transformers."""
    result: dict[str, Any] = {"masks": list(proposals.masks), "scores": proposals.scores}
    if proposals.stored_rles is not None:
        result["rle_mask"] = proposals.stored_rles
    if boxes:
        result["bounding_boxes"] = proposals.boxes_xyxy
    return result
