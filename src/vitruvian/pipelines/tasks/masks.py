"""Masks of everything in an image with SAM 2.

Results are `Masks`. ``result["masks"]`` and ``result["scores"]`` are there too, the names that the mask-generation
pipeline of transformers has.
"""

from __future__ import annotations

import dataclasses
import functools

from vitruvian.errors import InputError
from vitruvian.images.data_format import pixels_of
from vitruvian.models.sam2.automatic_masks import MaskProposals, Sam2AutomaticMaskGenerator
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2Processor
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.engine.batches import BatchSize
from vitruvian.pipelines.engine.steps import DecodeThread, ModelInput, Prepared
from vitruvian.pipelines.options import MasksOptions
from vitruvian.pipelines.sources import Frame
from vitruvian.results import Masks, People


class MasksPipeline(TaskPipeline[Masks, MasksOptions]):
    """Generates masks of everything.

    Args:
        model: The model.
        processor: Its processor.
        options: Fields of `MasksOptions`.
    """

    processor: Sam2Processor
    task = "masks"

    def __init__(self, model: Sam2Model, processor: Sam2Processor, **options: object) -> None:
        super().__init__(model, processor, **options)
        self.generator = Sam2AutomaticMaskGenerator(model, processor)

    def batch_size(self, options: MasksOptions, *, live: bool) -> BatchSize:
        """One image at a time: batches consist of points."""
        if options.batch_size != "auto":
            raise InputError("batch_size: images are processed one by one here. Use points_per_batch.")
        return BatchSize(1, fixed=True)

    def decode_thread(self) -> DecodeThread:
        """Return "worker": `forward` decodes."""
        return "worker"

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Return the image at full resolution, from which the generator crops."""
        return Prepared(frame, [ModelInput(pixels_of(frame.image))])

    def forward(self, inputs: list[ModelInput]) -> list[MaskProposals]:
        """Generate masks of each image. When memory runs out, batches of points become smaller."""
        points = BatchSize(self.options.points_per_batch or self.options.points_per_crop**2, fixed=False)

        def generate(model_input: ModelInput, size: int) -> MaskProposals:
            options = dataclasses.replace(self.options, points_per_batch=size, output_rle_mask=True)
            return self.generator.generate(model_input.pixels, options)

        return [points.run(functools.partial(generate, model_input), self.device) for model_input in inputs]

    def finish(self, prepared: Prepared, decoded: MaskProposals) -> Masks:
        """Build the result."""
        return Masks(
            **self.result_fields(prepared.frame),
            kind="masks",
            rles=decoded.rles,
            scores=decoded.scores.float().numpy(),
            boxes_xyxy=decoded.boxes_xyxy.float().numpy(),
        )
