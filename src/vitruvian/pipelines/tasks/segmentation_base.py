"""What semantic, instance and panoptic segmentation share: MaskFormer and Mask2Former from image to queries."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from vitruvian.cuda.streams import stack_on_device
from vitruvian.images.data_format import pixels_of
from vitruvian.images.types import SizeHW
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.engine.steps import DecodeThread, ModelInput, Prepared
from vitruvian.pipelines.options import Options
from vitruvian.pipelines.sources import Frame
from vitruvian.results import People, Result

ResultT = TypeVar("ResultT", bound=Result)
OptionsT = TypeVar("OptionsT", bound=Options)
QueryOutputs = tuple[Tensor, Tensor, Tensor]  # class logits [1, Q, K+1], mask logits [1, Q, h, w], pixel mask [1, H, W]
Segmentation = dict[str, Any]  # what post-processing returns
_TYPICAL_HW = (768, 1024)  # size of a typical photograph


class SegmentationPipeline(TaskPipeline[ResultT, OptionsT], Generic[ResultT, OptionsT]):
    """Queries of whole images; subclasses post-process them."""

    forward_options = ()
    post_process: ClassVar[str]  # method of the processor; it takes the options of the task
    post_process_options: ClassVar[dict[str, object]] = {}  # further arguments

    @property
    def input_hw(self) -> SizeHW:
        """Height and width of a typical photograph after resizing."""
        size_hw: SizeHW = self.processor.resized_hw(_TYPICAL_HW)
        return size_hw

    @property
    def class_names(self) -> dict[int, str]:
        """Names of the classes."""
        names: dict[int, str] = self.model.config.id2label
        return names

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Resize and normalize the image."""
        inputs = self.processor(pixels_of(frame.image), return_tensors="pt")
        return Prepared(frame, [ModelInput(inputs["pixel_values"][0], inputs["pixel_mask"][0])])

    def forward(self, inputs: list[ModelInput]) -> list[QueryOutputs]:
        """Return the queries of each image."""
        pixels = stack_on_device([model_input.pixels for model_input in inputs], self.device).to(
            self.model.dtype
        )  # [B, 3, H, W]
        masks = stack_on_device([model_input.extra for model_input in inputs], self.device)  # [B, H, W]
        out = self.model(pixels, pixel_mask=masks, return_dict=True)
        classes, queries = out.class_queries_logits.float(), out.masks_queries_logits
        return [(classes[i : i + 1], queries[i : i + 1], masks[i : i + 1]) for i in range(len(inputs))]

    def decode_thread(self) -> DecodeThread:
        """Return "worker": `decode` waits for the device."""
        return "worker"

    def decode(self, prepared: Prepared, outputs: list[QueryOutputs]) -> Any:
        """Post-process the queries of one image with the processor."""
        classes, masks, pixel_mask = outputs[0]
        queries = SimpleNamespace(class_queries_logits=classes, masks_queries_logits=masks)
        names = {field.name for field in fields(self.options)} - {field.name for field in fields(Options)}
        (segmentation,) = getattr(self.processor, self.post_process)(
            queries,
            target_sizes=[prepared.frame.size_hw],
            pixel_mask=pixel_mask,
            **{name: getattr(self.options, name) for name in names},
            **self.post_process_options,
        )
        return segmentation
