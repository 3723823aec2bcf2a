"""Segment one picture step by step: encode it once, then click, box, correct and undo, each at the decoder's cost.

session = Sam2Session(model, processor).set_image(picture)
session.click(500, 375)                      # a mask of what lies there
session.click(520, 300, positive=False)      # … without this
session.undo()                               # … with it again
session.next_object(); session.box(75, 275, 1725, 850)
session.masks                                # [objects, height, width]
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2Processor
from vitruvian.processor import as_pixels


@dataclass(frozen=True)
class Prediction:
    """Masks of P objects, K of each, in the picture's size.

    Attributes:
        masks: [P, K, H, W], bool.
        scores: Predicted IoU of each [P, K].
        object_scores: Probability that there is an object [P].
        logits: Small mask logits [P, K, h, w], to prompt with again.
    """

    masks: Tensor
    scores: Tensor
    object_scores: Tensor
    logits: Tensor

    def best(self) -> Self:
        """Keep the mask with the highest predicted IoU of each object: K becomes 1."""
        index = self.scores.argmax(dim=1)  # [P]
        rows = torch.arange(len(index), device=index.device)
        return dataclasses.replace(
            self,
            masks=self.masks[rows, index][:, None],
            scores=self.scores[rows, index][:, None],
            logits=self.logits[rows, index][:, None],
        )


@dataclass(frozen=True)
class Prompt:
    """What was said about one object so far."""

    points: tuple[tuple[float, float], ...] = ()
    labels: tuple[int, ...] = ()
    box: tuple[float, float, float, float] | None = None
    mask: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """One thing that was said, and the mask it led to."""

    number: int
    prompt: Prompt
    prediction: Prediction


class Sam2Session:
    """A picture that is prompted again and again.

    Args:
        model: The model; it stays on its device.
        processor: Prepares the picture and prompts.
        mask_threshold: Logit above which a pixel is on the object.
        max_hole_area: Holes of up to this many pixels are filled.
        max_sprinkle_area: Islands of up to this many pixels are removed.
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
        self.steps: list[Step] = []
        self.number = 0

    def set_image(self, image: Any) -> Self:
        """Encode a picture (PIL, numpy, torch, path, address or bytes) and forget all earlier steps."""
        pictures = as_pixels(image)
        if len(pictures) != 1:
            raise InputError(f"image: expected one picture, got {len(pictures)}. Use one session a picture.")
        pixels = self.processor.image_processor.one_picture(pictures[0])[None]  # [1, 3, H, W]
        self.embeddings = self.model.get_image_embeddings(pixels.to(self.model.device))
        self.size_hw = (pictures[0].shape[-2], pictures[0].shape[-1])
        self.clear()
        return self

    @torch.no_grad()
    def predict(
        self, *, points: Any = None, labels: Any = None, boxes: Any = None, masks: Any = None, multimask: bool = True
    ) -> Prediction:
        """Prompt the picture once for P objects, without remembering it.

        Args:
            points: x and y in pixels of the picture, nested as [object][point].
            labels: 1 on the object, 0 off it, nested as [object][point].
            boxes: x1, y1, x2, y2 of each object.
            masks: A mask for each object [P, h, w]: logits of an earlier prediction, or hard masks of any size.
            multimask: Propose three masks for each object rather than one.
        """
        if self.size_hw is None:
            raise InputError("session: expected a picture, got none. Call set_image first.")
        points, labels, boxes = (None if given is None else [given] for given in (points, labels, boxes))
        prompts = self.processor.prompts([self.size_hw], points, labels, boxes)
        mask = None if masks is None else torch.as_tensor(masks)[None].to(self.model.device)  # [1, P, h, w]
        out = self.model(
            **prompts.to(self.model.device),
            input_masks=mask,
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

    # ------------------------------------------------------------------ one object, step by step

    def click(self, x: float, y: float, *, positive: bool = True) -> Prediction:
        """Say that a pixel is on the object, or off it; later clicks correct the mask there is."""
        prompt = self.prompt
        return self.say(
            dataclasses.replace(
                prompt, points=(*prompt.points, (float(x), float(y))), labels=(*prompt.labels, int(positive))
            )
        )

    def box(self, x1: float, y1: float, x2: float, y2: float) -> Prediction:
        """Say where the object lies, in place of an earlier box."""
        return self.say(dataclasses.replace(self.prompt, box=(x1, y1, x2, y2)))

    def mask(self, mask: Any) -> Prediction:
        """Start from a mask [h, w]: logits of an earlier prediction, or a hard mask of any size."""
        tensor = torch.as_tensor(mask)
        if tensor.ndim != 2:
            raise InputError(f"mask: expected the shape [h, w], got {list(tensor.shape)}.")
        return self.say(dataclasses.replace(self.prompt, mask=tensor))

    def say(self, prompt: Prompt) -> Prediction:
        """Predict the current object from a prompt and remember the step."""
        # One click can mean a part or the whole: take the best of three. What follows corrects the last mask.
        ambiguous = len(prompt.points) == 1 and prompt.box is None and prompt.mask is None
        found = self.predict(
            points=[list(prompt.points)] if prompt.points else None,
            labels=[list(prompt.labels)] if prompt.labels else None,
            boxes=None if prompt.box is None else [prompt.box],
            masks=None if prompt.mask is None else prompt.mask[None],
            multimask=ambiguous,
        ).best()
        remembered = dataclasses.replace(prompt, mask=found.logits[0, 0])
        self.steps = [*self.steps, Step(self.number, remembered, found)]
        return found

    def undo(self) -> Prediction | None:
        """Take the last step back; return the current object's mask before it, None if it had none."""
        if not self.steps:
            raise InputError("undo: there is no step to take back.")
        self.number = self.steps[-1].number
        self.steps = self.steps[:-1]
        return self.prediction

    def next_object(self) -> int:
        """Leave the current object as it is and start another; return its number."""
        if self.prediction is None:
            raise InputError("next_object: the current object has no mask yet. Click on it or draw a box first.")
        self.number += 1
        return self.number

    def clear(self) -> None:
        """Forget all steps; the picture stays encoded."""
        self.steps, self.number = [], 0

    @property
    def prompt(self) -> Prompt:
        """What was said about the current object."""
        return self.steps[-1].prompt if self.steps and self.steps[-1].number == self.number else Prompt()

    @property
    def prediction(self) -> Prediction | None:
        """The current object's mask, None before the first step."""
        return self.steps[-1].prediction if self.steps and self.steps[-1].number == self.number else None

    @property
    def masks(self) -> Tensor:
        """The last mask of every object [objects, H, W], bool."""
        last = {step.number: step.prediction.masks[0, 0] for step in self.steps}
        if not last:
            raise InputError("masks: there is none yet. Click on an object or draw a box first.")
        return torch.stack(list(last.values()))  # [objects, H, W]
