"""Masks of everything in a picture, with SAM 2.

Called with a picture or a list, the pipeline answers as the mask-generation pipeline of transformers does: dicts of
tensors. `run` takes any source and gives `Masks`, as the other pipelines do.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from vitruvian.auto import AutoModelForMaskGeneration
from vitruvian.errors import InputError
from vitruvian.models.sam2.automatic_masks import AutomaticMaskOptions, MaskProposals, Sam2AutomaticMaskGenerator
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2Processor
from vitruvian.pipelines.base import Options, TaskPipeline
from vitruvian.pipelines.memory import BatchSize, with_less_memory
from vitruvian.pipelines.runner import Prepared, Results, Unit
from vitruvian.pipelines.sources import Frame
from vitruvian.processor import ImageInput, as_tensor, height_width
from vitruvian.results import Masks, People

GENERATOR = frozenset(field.name for field in dataclasses.fields(AutomaticMaskOptions))


@dataclass(frozen=True, kw_only=True)
class MaskGenerationOptions(Options):
    """Options of `run`.

    Args:
        proposals: How masks are proposed and chosen; its fields may be given by themselves.
    """

    proposals: AutomaticMaskOptions = dataclasses.field(default_factory=AutomaticMaskOptions)


class MaskGenerationPipeline(TaskPipeline[Masks, MaskGenerationOptions]):
    """Finds masks of everything.

    Args:
        model: The model.
        processor: Its processor.
        options: Fields of `AutomaticMaskOptions`, and for `run` those of every pipeline.
    """

    task = "mask-generation"
    checkpoints = ("facebook/sam2.1-hiera-large", "facebook/sam2.1-hiera-tiny")
    auto = AutoModelForMaskGeneration
    accepts = (Sam2Model,)
    options_class = MaskGenerationOptions
    decodes_behind: ClassVar[bool] = True

    def __init__(self, model: Sam2Model, processor: Sam2Processor, **options: Any) -> None:
        own = {name: options.pop(name) for name in list(options) if name in GENERATOR}
        super().__init__(model, processor, **options)
        self.options = dataclasses.replace(self.options, proposals=AutomaticMaskOptions(**own))
        self.generator = Sam2AutomaticMaskGenerator(model, processor, **own)

    @classmethod
    def checked(cls, options: dict[str, Any]) -> None:
        """Refuse options that do not exist."""
        own = {name: value for name, value in options.items() if name in GENERATOR}
        AutomaticMaskOptions(**own)
        super().checked({name: value for name, value in options.items() if name not in GENERATOR})

    def __call__(  # type: ignore[override]
        self, images: ImageInput, *, output_bboxes_mask: bool = False, **options: Any
    ) -> Any:
        """Find masks, as the mask-generation pipeline is known to return them.

        Args:
            images: A picture, or a list of pictures: PIL, numpy, torch, paths or URLs. `run` takes other sources.
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

    def run(self, source: Any, **options: Any) -> Masks | Results[Masks]:
        """Find masks in any source: `Masks` for one picture, a `Results` of them for many.

        Args:
            source: See `vitruvian.pipelines.sources.open_source`.
            options: Fields of `AutomaticMaskOptions`, and the options of every pipeline.
        """
        own = {name: options.pop(name) for name in list(options) if name in GENERATOR}
        base = options.pop("proposals", self.options.proposals)
        return super().run(source, proposals=dataclasses.replace(base, **own), **options)

    def batch_size(self, options: MaskGenerationOptions, *, live: bool) -> BatchSize:
        """One picture at a time: batches are made of points."""
        if options.batch_size != "auto":
            raise InputError("batch_size: pictures go one at a time here, so there is none. Use points_per_batch.")
        return BatchSize(1, fixed=True)

    @property
    def unit_hw(self) -> tuple[int, int]:
        """Height and width of an input."""
        return height_width(self.processor.image_processor.size, "size")

    def prepare(self, frame: Frame, people: People | None, options: MaskGenerationOptions) -> Prepared:
        """Pictures go in as they are: crops of them are cut out of full size."""
        return Prepared(frame, [Unit(as_tensor(frame.picture).permute(2, 0, 1))])

    def forward(self, units: list[Unit], options: MaskGenerationOptions) -> list[Any]:
        """Ask about the points of each picture, a batch of them at a time; fewer where memory runs out."""
        proposals = dataclasses.replace(options.proposals, output_rle_mask=True)
        points = BatchSize(proposals.points_per_batch or proposals.points_per_crop**2, fixed=False)
        return [
            with_less_memory(
                lambda size, unit=unit: self.generator.generate(  # type: ignore[misc]
                    unit.pixels, dataclasses.replace(proposals, points_per_batch=size)
                ),
                points,
                self.device,
                most=points.size,
            )
            for unit in units
        ]

    def decode(self, prepared: Prepared, outputs: list[Any], options: MaskGenerationOptions) -> Any:
        """Proposals are on the CPU already."""
        return outputs[0]

    def finish(self, prepared: Prepared, decoded: MaskProposals, options: MaskGenerationOptions) -> Masks:
        """Build the result."""
        return Masks(
            **self.about(prepared.frame, options),
            kind="mask-generation",
            runs=decoded.rles,
            scores=decoded.scores.float().numpy(),
            boxes_xyxy=decoded.boxes_xyxy.to(torch.float32).numpy().astype(np.float32),
        )


def as_dict(found: MaskProposals, *, boxes: bool) -> dict[str, Any]:
    """Return proposals under the names that the mask-generation pipeline is known for."""
    result: dict[str, Any] = {"masks": list(found.masks), "scores": found.scores}
    if found.runs is not None:
        result["rle_mask"] = found.runs
    if boxes:
        result["bounding_boxes"] = found.boxes_xyxy
    return result
