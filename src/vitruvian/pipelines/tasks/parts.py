"""Body parts with Sapiens2."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitruvian.draw import class_colours
from vitruvian.human import PART_NAMES
from vitruvian.images.label_maps import resized_argmax
from vitruvian.models.sapiens2.processing import resize_map
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.engine.task import Prepared
from vitruvian.pipelines.tasks.dense_base import DenseOptions, DensePipeline
from vitruvian.results import Parts


@dataclass(frozen=True, kw_only=True)
class PartsOptions(DenseOptions):
    """Options of body parts.

    Args:
        with_score: Whether the result has the model's confidence in each pixel.
    """

    with_score: bool = False


class PartsPipeline(DensePipeline[Parts, PartsOptions]):
    """A part for each pixel; background outside of the people that are processed."""

    task = "parts"
    options_class = PartsOptions

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts."""
        labels: dict[int, str] = self.model.config.id2label
        return PART_NAMES if len(labels) == len(PART_NAMES) else tuple(labels.values())

    def maps(self, out: ModelOutput) -> list[Tensor]:
        """Return logits [K, h, w]."""
        return list(out["logits"].float())

    def decode(self, prepared: Prepared, outputs: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return labels [H, W] and the confidence in each [H, W] or None."""
        with_score = self.options.with_score
        if prepared.context.regions is not None:
            probabilities = [one.softmax(0).half() for one in self.region_maps(prepared, outputs)]
            blended = self.blend_maps(prepared, probabilities, channels=len(self.part_names), blend="labels")
            return blended["labels"], blended["values"][..., 0].half() if with_score else None
        size_hw = prepared.frame.size_hw
        logits = self.unpad(outputs[0], size_hw)  # [K, h, w]
        labels = resized_argmax(logits, size_hw).to(torch.uint8)  # [H, W]
        if not with_score:
            return labels, None
        return labels, resize_map(logits.softmax(0).amax(0, keepdim=True), size_hw)[0].half()  # [H, W]

    def finish(self, prepared: Prepared, decoded: tuple[Tensor, Tensor | None]) -> Parts:
        """Build the result."""
        names = self.part_names
        labels, score = decoded
        return Parts(
            **self.result_fields(prepared.frame, prepared.context.people),
            labels=labels.numpy(),
            names=names,
            score=None if score is None else score.numpy(),
            **({} if names == PART_NAMES else {"colours": class_colours(len(names))}),
        )
