"""Body parts with Sapiens2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitruvian.draw import class_colors
from vitruvian.human import PART_NAMES
from vitruvian.images.label_maps import resized_argmax
from vitruvian.ops.interpolate import bilinear
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.engine.steps import Prepared
from vitruvian.pipelines.options import PartsOptions
from vitruvian.pipelines.tasks.dense_base import PERSON_ALPHA, DensePipeline
from vitruvian.results import Parts


class PartsPipeline(DensePipeline[Parts, PartsOptions]):
    """A part for each pixel; background outside of the people that are processed.

    The outline of people follows the edges of the image: there it is decided whether a pixel is one of a person, and
    the best part names it. Scores of parts are upsampled bilinearly.
    """

    task = "parts"

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts."""
        return self.label_names(PART_NAMES)

    def maps(self, out: ModelOutput) -> list[Tensor]:
        """Return logits [K, h, w]."""
        return list(out["logits"].float())

    def full_map(self, prepared: Prepared, maps: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return labels [H, W] and the confidence in each [H, W] or None."""
        refined, size_hw = self.refines(prepared, maps), prepared.frame.size_hw
        if prepared.context.regions is None:
            logits = self.unpad(maps[0], size_hw)  # [K, h, w]
            labels = resized_argmax(logits[1:], size_hw) + 1 if refined else resized_argmax(logits, size_hw)
            score = bilinear(logits.softmax(0).amax(0, keepdim=True), size_hw)[0] if self.options.with_score else None
        else:
            probabilities = [logits.softmax(0).half() for logits in self.region_maps(prepared, maps)]
            blended = self.blend_maps(prepared, probabilities, channels=len(self.part_names), blend="labels")
            labels = blended["foreground" if refined else "labels"]
            score = blended["values"][..., 0] if self.options.with_score else None
        if refined:
            person = self.full_alpha(prepared, [_foreground_probability(region) for region in maps])  # [H, W]
            labels = labels * (person >= PERSON_ALPHA)
        return labels.to(torch.uint8), None if score is None else score.half()

    def finish(self, prepared: Prepared, decoded: tuple[Any, Tensor | None]) -> Parts:
        """Build the result."""
        names = self.part_names
        labels, score = decoded[0]
        return Parts(
            **self.result_fields(prepared.frame, prepared.context.people),
            labels=labels.numpy(),
            names=names,
            score=None if score is None else score.numpy(),
            **({} if names == PART_NAMES else {"colors": class_colors(len(names))}),
        )


def _foreground_probability(logits: Tensor) -> Tensor:
    """Return the probability of the best part against the background: [K, h, w] -> [1, h, w]."""
    return (logits[1:].amax(0, keepdim=True) - logits[:1]).sigmoid()
