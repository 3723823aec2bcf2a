"""Interactive segmentation of one image: it is encoded once, then each click, box or correction runs the decoder.

session = Sam2Session(model, processor).set_image(image)
session.click(500, 375)                      # a mask of the object there
session.click(520, 300, positive=False)      # … without this part
session.undo()                               # … with it again
session.next_object(); session.box(75, 275, 1725, 850)
session.masks                                # [objects, height, width]
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2Processor
from vitruvian.models.sam2.prompt_coordinates import read_masks
from vitruvian.processor import ImageInput, as_pixels


@dataclass(frozen=True)
class Prediction:
    """Masks of P objects, K of each, in the size of the image.

    Attributes:
        masks: [P, K, H, W], bool.
        scores: Predicted IoU of each [P, K].
        object_scores: Probability that there is an object [P].
        logits: Small mask logits [P, K, h, w], which can be prompts again.
    """

    masks: Tensor
    scores: Tensor
    object_scores: Tensor
    logits: Tensor

    def best(self) -> Self:
        """Select the mask with the highest predicted IoU of each object: K becomes 1."""
        index = self.scores.argmax(dim=1, keepdim=True)  # [P, 1]
        rows = torch.arange(len(index), device=index.device)[:, None]
        masks, scores, logits = (field[rows, index] for field in (self.masks, self.scores, self.logits))
        return dataclasses.replace(self, masks=masks, scores=scores, logits=logits)


@dataclass(frozen=True)
class Prompt:
    """All prompts of one object."""

    points: tuple[tuple[float, float], ...] = ()
    labels: tuple[int, ...] = ()
    box: tuple[float, float, float, float] | None = None
    mask: Tensor | None = None


@dataclass(frozen=True)
class _Step:
    """One step of a session: the prompts of an object and the mask predicted from them."""

    object_index: int
    prompt: Prompt
    prediction: Prediction


class Sam2Session:
    """An image that is prompted repeatedly.

    Args:
        model: The model; it stays on its device.
        processor: Prepares the image and prompts.
        mask_threshold: Logit above which a pixel is on the object.
        max_hole_area: Fill holes of up to this many pixels.
        max_sprinkle_area: Remove islands of up to this many pixels.
    """

    def __init__(
        self,
        model: Sam2Model,
        processor: Sam2Processor,
        *,
        mask_threshold: float = 0.0,
        max_hole_area: float = 0.0,
        max_sprinkle_area: float = 0.0,
    ) -> None:
        self.model, self.processor = model, processor
        self.mask_threshold = mask_threshold
        self.max_hole_area, self.max_sprinkle_area = max_hole_area, max_sprinkle_area
        self.size_hw: tuple[int, int] | None = None
        self.embeddings: list[Tensor] = []
        self.steps: list[_Step] = []
        self.object_index = 0

    def set_image(self, image: ImageInput) -> Self:
        """Encode an image (PIL, numpy, torch, path, URL or bytes) and clear all steps."""
        images = as_pixels(image)
        if len(images) != 1:
            raise InputError(f"image: expected one image, got {len(images)}. Use one session for each image.")
        pixels = self.processor.image_processor.prepare_image(images[0])[None]  # [1, 3, H, W]
        self.embeddings = self.model.get_image_embeddings(pixels.to(self.model.device))
        self.size_hw = (images[0].shape[-2], images[0].shape[-1])
        self.clear()
        return self

    @torch.no_grad()
    def predict(
        self,
        *,
        points: object = None,
        labels: object = None,
        boxes: object = None,
        masks: object = None,
        multimask: bool = True,
    ) -> Prediction:
        """Predict masks of P objects without adding a step.

        Args:
            points: x and y in pixels of the image, nested as [object][point].
            labels: 1 on the object, 0 off it, nested as [object][point].
            boxes: x1, y1, x2, y2 of each object.
            masks: A mask for each object [P, h, w]: logits of an earlier prediction, or binary masks of any size.
            multimask: Predict three masks for each object rather than one.
        """
        if self.size_hw is None:
            raise InputError("session: expected an image, got none. Call set_image first.")
        points, labels, boxes = (None if prompt is None else [prompt] for prompt in (points, labels, boxes))
        prompts = self.processor.prompts([self.size_hw], points, labels, boxes, strict=True, prefix="")
        if masks is not None:
            prompts["input_masks"] = read_masks(masks, prompts)
        out = self.model(
            **prompts.to(self.model.device),
            image_embeddings=self.embeddings,
            multimask_output=multimask,
            return_dict=True,
        )
        large = self.processor.post_process_masks(
            out.pred_masks,
            [self.size_hw],
            mask_threshold=self.mask_threshold,
            max_hole_area=self.max_hole_area,
            max_sprinkle_area=self.max_sprinkle_area,
        )
        return Prediction(
            masks=large[0],
            scores=out.iou_scores[0].float(),
            object_scores=out.object_score_logits[0, :, 0].float().sigmoid(),
            logits=out.pred_masks[0],
        )

    def click(self, x: float, y: float, *, positive: bool = True) -> Prediction:
        """Add a point on the object, or off it; further clicks correct the last mask."""
        prompt = self.prompt
        return self._add_step(
            dataclasses.replace(
                prompt, points=(*prompt.points, (float(x), float(y))), labels=(*prompt.labels, int(positive))
            )
        )

    def box(self, x1: float, y1: float, x2: float, y2: float) -> Prediction:
        """Set the box of the object; it replaces an earlier one."""
        return self._add_step(dataclasses.replace(self.prompt, box=(x1, y1, x2, y2)))

    def mask(self, mask: object) -> Prediction:
        """Set the mask [h, w] to start from: logits of an earlier prediction, or a binary mask of any size."""
        tensor = torch.as_tensor(mask)
        if tensor.ndim != 2:
            raise InputError(f"mask: expected the shape [h, w], got {list(tensor.shape)}.")
        return self._add_step(dataclasses.replace(self.prompt, mask=tensor))

    def _add_step(self, prompt: Prompt) -> Prediction:
        """Predict the current object from its prompts and store the step."""
        # A single click is ambiguous (a part or the whole): take the best of three masks. Later prompts correct it.
        ambiguous = len(prompt.points) == 1 and prompt.box is None and prompt.mask is None
        prediction = self.predict(
            points=[list(prompt.points)] if prompt.points else None,
            labels=[list(prompt.labels)] if prompt.labels else None,
            boxes=None if prompt.box is None else [prompt.box],
            masks=None if prompt.mask is None else prompt.mask[None],
            multimask=ambiguous,
        ).best()
        corrected = dataclasses.replace(prompt, mask=prediction.logits[0, 0])
        self.steps = [*self.steps, _Step(self.object_index, corrected, prediction)]
        return prediction

    def undo(self) -> Prediction | None:
        """Remove the last step; return the prediction of its object before, None if there was none."""
        if not self.steps:
            raise InputError("undo: expected at least one step, got no step.")
        self.object_index = self.steps[-1].object_index
        self.steps = self.steps[:-1]
        return self.prediction

    def next_object(self) -> int:
        """Start another object; return its index."""
        if self.prediction is None:
            raise InputError("next_object: the current object has no mask yet. Add a click or a box first.")
        self.object_index += 1
        return self.object_index

    def clear(self) -> None:
        """Remove all steps; the image stays encoded."""
        self.steps, self.object_index = [], 0

    @property
    def prompt(self) -> Prompt:
        """Prompts of the current object."""
        step = self._current_step
        return Prompt() if step is None else step.prompt

    @property
    def prediction(self) -> Prediction | None:
        """Last prediction of the current object, None before its first step."""
        step = self._current_step
        return None if step is None else step.prediction

    @property
    def masks(self) -> Tensor:
        """The last mask of every object [objects, H, W], bool."""
        last = {step.object_index: step.prediction.masks[0, 0] for step in self.steps}
        if not last:
            raise InputError("masks: there is none yet. Add a click or a box first.")
        return torch.stack(list(last.values()))  # [objects, H, W]

    @property
    def _current_step(self) -> _Step | None:
        return self.steps[-1] if self.steps and self.steps[-1].object_index == self.object_index else None
