"""What semantic, instance and panoptic segmentation share: MaskFormer and Mask2Former from picture to queries."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, TypeVar

from vitruvian.auto import AutoModelForUniversalSegmentation
from vitruvian.models.mask2former.modeling import Mask2FormerForUniversalSegmentation
from vitruvian.models.maskformer.modeling import MaskFormerForInstanceSegmentation
from vitruvian.pipelines.base import Options, TaskPipeline
from vitruvian.pipelines.memory import to_device
from vitruvian.pipelines.runner import Prepared, Unit
from vitruvian.pipelines.sources import Frame
from vitruvian.processor import as_tensor
from vitruvian.results import People, Result

ResultT = TypeVar("ResultT", bound=Result)
OptionsT = TypeVar("OptionsT", bound=Options)
USUAL_HW = (768, 1024)  # of a photograph, to guess the size of inputs from


@dataclass(frozen=True, kw_only=True)
class SegmentOptions(Options):
    """Options of instance and panoptic segmentation.

    Args:
        threshold: Lowest score of an object.
        mask_threshold: Lowest probability of a pixel in a mask.
        overlap_mask_area_threshold: Share of its mask that an object must keep against others.
    """

    threshold: float = 0.5
    mask_threshold: float = 0.5
    overlap_mask_area_threshold: float = 0.8


class SegmentationPipeline(TaskPipeline[ResultT, OptionsT], Generic[ResultT, OptionsT]):
    """Queries of whole pictures; tasks say what they read from them."""

    auto = AutoModelForUniversalSegmentation
    accepts = (Mask2FormerForUniversalSegmentation, MaskFormerForInstanceSegmentation)
    decodes_behind: ClassVar[bool] = True

    @property
    def unit_hw(self) -> tuple[int, int]:
        """Height and width of a usual photograph as the model sees it."""
        found: tuple[int, int] = self.processor.resized_hw(USUAL_HW)
        return found

    @property
    def labels(self) -> dict[int, str]:
        """Names of the classes."""
        found: dict[int, str] = self.model.config.id2label
        return found

    def prepare(self, frame: Frame, people: People | None, options: OptionsT) -> Prepared:
        """Resize and normalise the picture."""
        inputs = self.processor(as_tensor(frame.picture).permute(2, 0, 1), return_tensors="pt")
        return Prepared(frame, [Unit(inputs["pixel_values"][0], inputs["pixel_mask"][0])])

    def forward(self, units: list[Unit], options: OptionsT) -> list[Any]:
        """Return class logits [1, Q, K+1], mask logits [1, Q, h, w] and the pixel mask [1, H, W] of each picture."""
        pixels = to_device([unit.pixels for unit in units], self.device).to(self.model.dtype)  # [B, 3, H, W]
        masks = to_device([unit.note for unit in units], self.device)  # [B, H, W]
        out = self.model(pixels, pixel_mask=masks, return_dict=True)
        classes, queries = out.class_queries_logits.float(), out.masks_queries_logits
        return [(classes[i : i + 1], queries[i : i + 1], masks[i : i + 1]) for i in range(len(units))]

    def queries(self, prepared: Prepared, outputs: list[Any]) -> dict[str, Any]:
        """Return the arguments that the processor's post-processing takes for one picture."""
        classes, masks, pixel_mask = outputs[0]
        found = SimpleNamespace(class_queries_logits=classes, masks_queries_logits=masks)
        return {"outputs": found, "target_sizes": [prepared.frame.size_hw], "pixel_mask": pixel_mask}
