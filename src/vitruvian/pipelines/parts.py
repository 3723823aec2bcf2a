"""Body parts, with Sapiens2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitruvian.auto import AutoModelForSemanticSegmentation
from vitruvian.draw import class_colours
from vitruvian.human import PART_NAMES
from vitruvian.images.argmax import resized_argmax
from vitruvian.models.sapiens2.modeling import Sapiens2ForSemanticSegmentation
from vitruvian.models.sapiens2.processing import resize_map
from vitruvian.pipelines.dense import DenseOptions, DensePipeline
from vitruvian.pipelines.runner import Prepared
from vitruvian.results import Parts


@dataclass(frozen=True, kw_only=True)
class PartsOptions(DenseOptions):
    """Options of body parts.

    Args:
        with_score: Whether the result says how sure the model is of each pixel.
    """

    with_score: bool = False


class PartsPipeline(DensePipeline[Parts, PartsOptions]):
    """A part for each pixel; where nobody was looked at, background."""

    task = "parts"
    checkpoints = ("facebook/sapiens2-seg-0.4b", "facebook/sapiens2-seg-1b")
    auto = AutoModelForSemanticSegmentation
    accepts = (Sapiens2ForSemanticSegmentation,)
    options_class = PartsOptions

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts."""
        labels: dict[int, str] = self.model.config.id2label
        return PART_NAMES if len(labels) == len(PART_NAMES) else tuple(labels.values())

    def maps(self, out: Any) -> list[Tensor]:
        """Logits [K, h, w]."""
        return list(out.logits.float())

    def decode(self, prepared: Prepared, outputs: list[Any], options: PartsOptions) -> Any:
        """Return labels [H, W] and how sure each is [H, W] or None."""
        if prepared.note.windows is not None:
            cut = (self.content(one, prepared.note, number) for number, one in enumerate(outputs))
            sure = [one.softmax(0).half() for one in cut]
            pasted = self.canvas(prepared, sure, options, channels=len(self.names), blend="labels").tensors()
            return pasted["labels"], pasted["values"][..., 0].half() if options.with_score else None
        size_hw = prepared.frame.size_hw
        logits = self.fitted(outputs[0], size_hw)  # [K, h, w]
        score = None
        if options.with_score:
            score = resize_map(logits.softmax(0).amax(0, keepdim=True), size_hw)[0].half()  # [H, W]
        return resized_argmax(logits, size_hw).to(torch.uint8), score

    def finish(self, prepared: Prepared, decoded: Any, options: PartsOptions) -> Parts:
        """Build the result."""
        names = self.names
        labels, sure = decoded[0].numpy(), None if decoded[1] is None else decoded[1].numpy()
        own: dict[str, Any] = {} if names == PART_NAMES else {"colours": class_colours(len(names))}
        about = self.about(prepared.frame, options, prepared.note.people)
        return Parts(**about, labels=labels, names=names, score=sure, **own)
