"""Masks of what is pointed at, with SAM 2: points, boxes or earlier masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vitruvian.auto import AutoModelForMaskGeneration
from vitruvian.errors import InputError
from vitruvian.images.nms import mask_boxes
from vitruvian.images.rle import encode_rles
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.pipelines.base import Options, TaskPipeline, depth
from vitruvian.pipelines.memory import to_device
from vitruvian.pipelines.runner import Prepared, Unit
from vitruvian.pipelines.sources import Frame
from vitruvian.processor import as_tensor, height_width
from vitruvian.results import Masks, People

OBJECTS_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class PromptOptions(Options):
    """Prompts, in pixels of the upright picture, and what to do with the masks. Prompts hold for every picture.

    Args:
        points: A point [x, y], the points of one object [[x, y], …], or those of several [[[x, y], …], …].
        labels: For each point, nested alike: 1 on the object (the default), 0 off it.
        boxes: A box [x1, y1, x2, y2], or one for each object.
        masks: A mask to start from [h, w], or one for each object [P, h, w]: logits of an earlier call or hard masks.
        multimask: Propose three masks for each object and take the best. By default where an object has one point and
            nothing else, which may mean a part or the whole.
        best: Whether to keep only the best of three.
        mask_threshold: Logit above which a pixel is on the object.
        max_hole_area: Holes of up to this many pixels are filled.
        max_sprinkle_area: Islands of up to this many pixels are removed.
    """

    points: Any = None
    labels: Any = None
    boxes: Any = None
    masks: Any = None
    multimask: bool | None = None
    best: bool = True
    mask_threshold: float = 0.0
    max_hole_area: float = 0.0
    max_sprinkle_area: float = 0.0


class SegmentPipeline(TaskPipeline[Masks, PromptOptions]):
    """One mask an object that is pointed at, in the order of the prompts."""

    task = "segment"
    checkpoints = ("facebook/sam2.1-hiera-large", "facebook/sam2.1-hiera-tiny")
    auto = AutoModelForMaskGeneration
    accepts = (Sam2Model,)
    options_class = PromptOptions
    decodes_behind: ClassVar[bool] = True

    @property
    def unit_hw(self) -> tuple[int, int]:
        """Height and width of an input."""
        return height_width(self.processor.image_processor.size, "size")

    def prepare(self, frame: Frame, people: People | None, options: PromptOptions) -> Prepared:
        """Resize and normalise the picture, and scale the prompts with it."""
        points, labels, boxes = nested(options.points, 3), nested(options.labels, 2), nested(options.boxes, 2)
        masks = None if options.masks is None else torch.as_tensor(np.asarray(options.masks))
        if points is None and boxes is None and masks is None:
            raise InputError("prompts: expected points, boxes or masks, got none. Pass points=[[x, y]], say.")
        prompts = self.processor.prompts([frame.size_hw], wrapped(points), wrapped(labels), wrapped(boxes))
        if masks is not None:
            prompts["input_masks"] = (masks if masks.ndim == 3 else masks[None])[None]  # [1, P, h, w]
        pixels = as_tensor(frame.picture).permute(2, 0, 1)  # [3, H, W]
        alone = points is not None and all(len(own) == 1 for own in points) and boxes is None and masks is None
        several = alone if options.multimask is None else options.multimask
        return Prepared(frame, [Unit(self.processor.image_processor.prepare_image(pixels), (prompts, several))])

    def forward(self, units: list[Unit], options: PromptOptions) -> list[tuple[Tensor, Tensor]]:
        """Return small logits [N, h, w] and scores [N] of each picture's masks; pictures are encoded together."""
        pixels = to_device([unit.pixels for unit in units], self.device).to(self.model.dtype)  # [B, 3, H, W]
        levels = self.model.get_image_embeddings(pixels)
        return [self.ask([level[i : i + 1] for level in levels], unit, options) for i, unit in enumerate(units)]

    def ask(self, levels: list[Tensor], unit: Unit, options: PromptOptions) -> tuple[Tensor, Tensor]:
        """Decode the prompts of one picture, some objects at a time."""
        prompts, several = unit.note
        count = max(prompt.shape[1] for prompt in prompts.values())
        logits, scores = [], []
        for start in range(0, count, OBJECTS_AT_ONCE):
            part = {name: value[:, start : start + OBJECTS_AT_ONCE].to(self.device) for name, value in prompts.items()}
            out = self.model(**part, image_embeddings=levels, multimask_output=several, return_dict=True)
            found, sure = out.pred_masks[0].float(), out.iou_scores[0].float()  # [P, K, h, w], [P, K]
            if options.best:
                rows, index = torch.arange(len(sure), device=sure.device), sure.argmax(1)
                found, sure = found[rows, index][:, None], sure[rows, index][:, None]  # [P, 1, h, w], [P, 1]
            logits.append(found.flatten(0, 1))  # [P·K, h, w]
            scores.append(sure.flatten())  # [P·K]
        return torch.cat(logits), torch.cat(scores)

    def decode(self, prepared: Prepared, outputs: list[Any], options: PromptOptions) -> Any:
        """Enlarge one mask after another and keep its run lengths and its box."""
        logits, scores = outputs[0]
        runs, boxes = [], []
        for one in logits:
            (large,) = self.processor.post_process_masks(
                one[None, None, None],
                [prepared.frame.size_hw],
                mask_threshold=options.mask_threshold,
                max_hole_area=options.max_hole_area,
                max_sprinkle_area=options.max_sprinkle_area,
            )
            runs += encode_rles(large[0], compress=True)
            boxes.append(mask_boxes(large[0]))  # [1, 4]
        return {"runs": runs, "boxes": torch.cat(boxes).float(), "scores": scores}

    def finish(self, prepared: Prepared, decoded: Any, options: PromptOptions) -> Masks:
        """Build the result."""
        return Masks(
            **self.about(prepared.frame, options),
            kind="segment",
            runs=decoded["runs"],
            scores=decoded["scores"].numpy(),
            boxes_xyxy=decoded["boxes"].numpy(),
        )


def nested(prompt: Any, levels: int) -> Any:
    """Return a prompt as lists [object][point]… of so many levels, those that were left out put in front."""
    if prompt is None:
        return None
    found = np.asarray(prompt).tolist() if isinstance(prompt, np.ndarray | Tensor) else prompt
    for _ in range(levels - depth(found)):
        found = [found]
    return found


def wrapped(prompt: Any) -> Any:
    """Return a prompt as that of one picture among several."""
    return None if prompt is None else [prompt]
