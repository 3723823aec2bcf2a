"""Masks with SAM 2 from points, boxes or earlier masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vitruvian.cuda.streams import stack_on_device
from vitruvian.errors import InputError
from vitruvian.images.data_format import pixels_of
from vitruvian.images.rle import encode_packed, pack_masks
from vitruvian.images.types import SizeHW
from vitruvian.models.sam2.processing import Sam2Processor
from vitruvian.models.sam2.prompt_coordinates import read_masks
from vitruvian.outputs import BatchFeature
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.engine.steps import DecodeThread, ModelInput, Prepared
from vitruvian.pipelines.options import PromptOptions, nesting_depth
from vitruvian.pipelines.sources import Frame
from vitruvian.results import Masks, People

_MAX_PROMPTED_OBJECTS = 64  # number of objects in one call of the mask decoder
_MAX_UPSAMPLED_PIXELS = 1 << 26  # of masks that a GPU upsamples in one call: 256 MiB of logits


class SegmentPipeline(TaskPipeline[Masks, PromptOptions]):
    """One mask for each prompted object, in the order of the prompts."""

    processor: Sam2Processor
    task = "segment"
    forward_options = ("best",)
    warmup_options: ClassVar[dict[str, object]] = {"points": [0, 0]}

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Resize and normalize the image, and scale the prompts with it."""
        prompts = self.prompts(frame.size_hw)
        pixels = pixels_of(frame.image)  # [3, H, W]
        return Prepared(frame, [ModelInput(self.processor.image_processor.prepare_image(pixels), prompts)])

    def prompts(self, size_hw: SizeHW) -> tuple[BatchFeature, bool]:
        """Return the prompts of the options as inputs of the model, and whether it proposes three masks of each."""
        options = self.options
        points, labels, boxes = _nest(options.points, 3), _nest(options.labels, 2), _nest(options.boxes, 2)
        if points is None and boxes is None and options.masks is None:
            raise InputError("prompts: expected points, boxes or masks, got none. Pass, for example, points=[[x, y]].")
        point_batch, label_batch, box_batch = (None if given is None else [given] for given in (points, labels, boxes))
        prompts = self.processor.prompts([size_hw], point_batch, label_batch, box_batch, strict=True, prefix="")
        if options.masks is not None:
            prompts["input_masks"] = read_masks(options.masks, prompts)
        single_points = points is not None and all(len(object_points) == 1 for object_points in points)
        ambiguous = single_points and boxes is None and options.masks is None
        return prompts, ambiguous if options.multimask is None else options.multimask

    def forward(self, inputs: list[ModelInput]) -> list[tuple[Tensor, Tensor]]:
        """Return low-resolution logits [N, h, w] and scores [N] of each image's masks; images are encoded together."""
        images = self.encode([model_input.pixels for model_input in inputs])
        return [
            self.decode_prompts(levels, *model_input.extra) for levels, model_input in zip(images, inputs, strict=True)
        ]

    def encode(self, inputs: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return the embeddings of each image, a list of levels [1, C, h, w], from inputs [3, H, W]."""
        pixels = stack_on_device(inputs, self.device).to(self.model.dtype)  # [B, 3, H, W]
        levels = self.model.get_image_embeddings(pixels)
        return [[level[i : i + 1] for level in levels] for i in range(len(pixels))]

    def decode_prompts(self, levels: list[Tensor], prompts: BatchFeature, multimask: bool) -> tuple[Tensor, Tensor]:
        """Run the mask decoder on the prompts of one image: low-resolution logits [N, h, w] and scores [N]."""
        count = max(prompt.shape[1] for prompt in prompts.values())
        logits, scores = [], []
        for start in range(0, count, _MAX_PROMPTED_OBJECTS):
            stop = start + _MAX_PROMPTED_OBJECTS
            part = {  # one mask may be for all objects
                name: (prompt if prompt.shape[1] == 1 else prompt[:, start:stop]).to(self.device)
                for name, prompt in prompts.items()
            }
            out = self.model(**part, image_embeddings=levels, multimask_output=multimask, return_dict=True)
            masks, ious = out.pred_masks[0].float(), out.iou_scores[0].float()  # [P, K, h, w], [P, K]
            if self.options.best:
                rows, index = torch.arange(len(ious), device=ious.device), ious.argmax(1)
                masks, ious = masks[rows, index][:, None], ious[rows, index][:, None]  # [P, 1, h, w], [P, 1]
            logits.append(masks.flatten(0, 1))  # [P·K, h, w]
            scores.append(ious.flatten())  # [P·K]
        return torch.cat(logits), torch.cat(scores)

    def decode_thread(self) -> DecodeThread:
        """Return "worker": `decode` waits for the device."""
        return "worker"

    def decode(self, prepared: Prepared, outputs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Upsample the masks; return their bits [N, H, ceil(W / 8)] and scores [N]."""
        logits, scores = outputs[0]
        bits = upsampled_masks(
            self.processor,
            logits,
            prepared.frame.size_hw,
            mask_threshold=self.options.mask_threshold,
            max_hole_area=self.options.max_hole_area,
            max_sprinkle_area=self.options.max_sprinkle_area,
        )
        return bits, scores

    def finish(self, prepared: Prepared, decoded: tuple[Tensor, Tensor]) -> Masks:
        """Build the result."""
        bits, scores = decoded
        rles, boxes = encode_packed(bits.numpy(), prepared.frame.size_hw[1], compress=True)
        return Masks(
            **self.result_fields(prepared.frame),
            kind="segment",
            rles=rles,
            scores=scores.numpy(),
            boxes_xyxy=boxes,
        )


def upsampled_masks(processor: Sam2Processor, logits: Tensor, size_hw: SizeHW, **options: Any) -> Tensor:
    """Upsample logits [N, h, w] to an image; return masks that `pack_masks` packed, uint8 [N, H, ceil(W / 8)].

    `options` are those of `Sam2Processor.post_process_masks`. Does not synchronize the device unless they clean up.
    """
    height, width = size_hw
    step = 1 if logits.device.type == "cpu" else max(1, _MAX_UPSAMPLED_PIXELS // (height * width))
    parts = (
        processor.post_process_masks(part[None, :, None], [size_hw], **options)[0] for part in torch.split(logits, step)
    )
    return torch.cat([pack_masks(masks[:, 0]) for masks in parts])


def disjoint_masks(processor: Sam2Processor, logits: Tensor, size_hw: SizeHW, *, mask_threshold: float = 0.0) -> Tensor:
    """Same as `upsampled_masks`, for masks of which each pixel is only in that with the highest logit."""
    highest = torch.full(size_hw, -torch.inf, device=logits.device)
    owner = torch.zeros(size_hw, dtype=torch.int64, device=logits.device)
    for number, part in enumerate(logits):
        large = processor.post_process_masks([part[None, None]], [size_hw], binarize=False)[0][0, 0]
        owner = owner.masked_fill(large > highest, number)
        highest = torch.maximum(highest, large)
    on_object = highest > mask_threshold
    return torch.cat([pack_masks((on_object & (owner == number))[None]) for number in range(len(logits))])


def _nest(prompt: ArrayLike | None, levels: int) -> Any:
    """Return a prompt as nested lists [object][point]…, with missing outer levels added."""
    if prompt is None:
        return None
    nested = np.asarray(prompt).tolist() if isinstance(prompt, np.ndarray | Tensor) else prompt
    for _ in range(levels - nesting_depth(nested)):
        nested = [nested]
    return nested
