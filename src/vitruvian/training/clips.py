"""Training of SAM 2 on clips, with prompts that are simulated from the true masks as in the paper.

    frames [B, T, 3, H, W] · true masks [B, T, O, H, W]
      first frame: a mask, a box or a click for each object ─┐
      some frames: clicks on the errors of the prediction ───┴─▶ predictions of all frames ─▶ sum of their losses

Frames are processed in order, those of all clips together, and gradients flow through the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitruvian.errors import InputError
from vitruvian.images.boxes import mask_boxes
from vitruvian.losses.prompted_masks import MaskPrediction, clip_loss
from vitruvian.losses.terms import LossTerms
from vitruvian.models.sam2.options import Sam2SessionOptions
from vitruvian.models.sam2.video_modeling import Sam2VideoModel
from vitruvian.models.sam2.video_session import Sam2VideoInferenceSession
from vitruvian.ops.interpolate import bilinear

_BOX_CORNERS = (2, 3)  # labels of the corners of a box among points
_MAX_BOX_NOISE = 20.0  # pixels


@dataclass(frozen=True, kw_only=True)
class PromptSimulation:
    """How prompts are simulated; the defaults are those of the paper.

    Args:
        mask: Probability that the objects of a clip start from masks.
        box: Probability that they start from boxes; otherwise from a click each.
        corrected_frames: Largest number of frames with corrections, of which the first frame is always one. A clip that
            starts from masks has no corrections in that frame.
        clicks: Clicks in a corrected frame.
        clicks_from_truth: Probability that a correction lies anywhere on the object, rather than on an error.
        box_noise: Standard deviation of the sides of a box, relative to its size.
    """

    mask: float = 0.5
    box: float = 0.25
    corrected_frames: int = 2
    clicks: int = 7
    clicks_from_truth: float = 0.1
    box_noise: float = 0.1

    def __post_init__(self) -> None:
        for name in ("mask", "box", "clicks_from_truth"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}: expected a probability from 0 to 1, got {getattr(self, name)}.")
        if self.mask + self.box > 1 or min(self.corrected_frames, self.clicks, self.box_noise) < 0:
            raise InputError(f"prompts: expected mask + box of at most 1 and no negative numbers, got {self}.")


class ClipObjective(nn.Module):
    """The loss of a video model on clips.

    Args:
        model: The model, in training mode.
        prompts: How prompts are simulated.
        weights: Weights of terms other than `vitruvian.losses.prompted_masks.PROMPTED_MASK_WEIGHTS`.
    """

    def __init__(
        self,
        model: Sam2VideoModel,
        prompts: PromptSimulation | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.prompts, self.weights = model, prompts or PromptSimulation(), dict(weights or {})

    def forward(self, frames: Tensor, masks: Tensor, generator: torch.Generator | None = None) -> LossTerms:
        """Return the loss of clips and its terms.

        Args:
            frames: Prepared frames of a clip [T, 3, H, W], or of several [B, T, 3, H, W].
            masks: True masks [T, O, H, W] or [B, T, O, H, W] of 0 and 1. Every object is visible in the first frame.
            generator: Source of random numbers.
        """
        _check_clips(frames, masks)
        if frames.ndim == 4:
            frames, masks = frames[None], masks[None]
        truth = (masks.to(frames.device) != 0).transpose(0, 1).flatten(1, 2)  # [T, B·O, H, W]
        frames, prompts = frames.transpose(0, 1), self.prompts  # [T, B, 3, H, W]
        session = Sam2VideoInferenceSession(
            frames,
            frames.shape[3],
            frames.shape[4],
            inference_device=frames.device,
            inference_state_device=frames.device,
            video_storage_device=frames.device,
            dtype=frames.dtype,
            options=Sam2SessionOptions(corrections_as_conditioning=True, independent_objects=True),
        )
        kind = float(_rand((), generator))
        self._start(session, truth[0], kind, generator)
        order = _rand((len(frames) - 1,), generator).argsort() + 1
        corrected = {0, *order[: max(0, prompts.corrected_frames - 1)].tolist()} if prompts.corrected_frames else set()
        corrected -= {0} if kind < prompts.mask else set()
        predictions: list[tuple[MaskPrediction, Tensor]] = []
        for frame in range(len(frames)):
            clicks = prompts.clicks if frame in corrected else 0
            frame_predictions = self.model.segment_with_corrections(
                session, frame, self._corrections(truth[frame], clicks, generator)
            )
            predictions += [(prediction, truth[frame]) for prediction in frame_predictions]
        return clip_loss(predictions, weights=self.weights)

    def _start(
        self,
        session: Sam2VideoInferenceSession,
        masks: Tensor,
        kind: float,
        generator: torch.Generator | None,
    ) -> None:
        """Prompt objects with masks [O, H, W] in the first frame."""
        prompts, numbers = self.prompts, list(range(len(masks)))
        indices = [session.obj_id_to_idx(number) for number in numbers]
        if kind < prompts.mask:
            for index, mask in zip(indices, masks, strict=True):
                session.add_mask_inputs(index, 0, mask[None, None])
        else:
            if kind < prompts.mask + prompts.box:
                points = torch.unflatten(noisy_boxes(masks, prompts.box_noise, generator), 1, (2, 2))  # [O, 2, 2]
                labels = torch.tensor(_BOX_CORNERS, device=masks.device)
            else:
                points = random_points(masks, generator)[:, None]  # [O, 1, 2]
                labels = torch.ones(1, dtype=torch.long, device=masks.device)
            for index, point in zip(indices, points.to(session.dtype), strict=True):
                session.add_point_inputs(
                    index, 0, {"point_coords": point[None, None], "point_labels": labels[None, None]}
                )
        session.mark_new_inputs(numbers, 0)

    def _corrections(
        self, truth: Tensor, clicks: int, generator: torch.Generator | None
    ) -> Callable[[Tensor], tuple[Tensor, Tensor] | None]:
        """Return a function that makes `clicks` corrections of predictions, given the true masks [O, H, W]."""
        remaining = clicks

        def correct(logits: Tensor) -> tuple[Tensor, Tensor] | None:
            nonlocal remaining
            if not remaining:
                return None
            remaining -= 1
            predicted = bilinear(logits.float(), truth.shape[1:]) > 0
            if float(_rand((), generator)) < self.prompts.clicks_from_truth:
                predicted = torch.zeros_like(truth)  # the whole object is missing
            points, labels = error_points(predicted, truth, generator)
            return points.to(logits.dtype), labels

        return correct


def error_points(predicted: Tensor, truth: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw a pixel of each mask that is wrong, or of the background if none is.

    Args:
        predicted: Predicted masks, bool [O, H, W].
        truth: True masks, bool [O, H, W].
        generator: Source of random numbers.

    Returns:
        Points [O, 2] as x and y, and their labels [O]: 1 on the object, 0 off it.
    """
    wrong = predicted != truth
    regions = torch.where(wrong.flatten(1).any(1)[:, None, None], wrong, ~truth)
    points = random_points(regions, generator)
    x, y = points.long().unbind(1)
    labels = truth[torch.arange(len(truth), device=truth.device), y, x].long()
    return points, labels


def random_points(regions: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw a pixel of each region [O, H, W]: its center, x and y [O, 2]; of an empty region any pixel."""
    order = _rand(regions.shape, generator).to(regions.device)
    number = (order + regions).flatten(1).argmax(dim=1)  # pixels of a region come before all others
    width = regions.shape[2]
    return torch.stack((number % width, number // width), dim=1) + 0.5


def noisy_boxes(masks: Tensor, noise: float, generator: torch.Generator | None) -> Tensor:
    """Return the bounding boxes of masks [O, H, W] with their sides moved at random: x1, y1, x2, y2 [O, 4]."""
    boxes = mask_boxes(masks).float()
    size = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)  # [O, 4]
    shift = _rand(boxes.shape, generator, torch.randn).to(boxes.device) * noise * size
    moved = boxes + shift.clamp(-_MAX_BOX_NOISE, _MAX_BOX_NOISE)
    return torch.minimum(moved.clamp(min=0), boxes.new_tensor((masks.shape[2], masks.shape[1])).repeat(2))


def _rand(shape: Sequence[int], generator: torch.Generator | None, draw: Callable[..., Tensor] = torch.rand) -> Tensor:
    """Draw random numbers on the device of the generator."""
    return draw(shape, generator=generator, device=generator.device if generator else None)


def _check_clips(frames: Tensor, masks: Tensor) -> None:
    """Raise `InputError` for clips that cannot be trained on."""
    fits = frames.ndim in (4, 5) and masks.ndim == frames.ndim
    if not fits or masks.shape[:-3] != frames.shape[:-3] or masks.shape[-2:] != frames.shape[-2:]:
        raise InputError(
            "frames and masks: expected [T, 3, H, W] and [T, O, H, W], or several of them [B, …], "
            f"got {list(frames.shape)} and {list(masks.shape)}."
        )
    if not masks.shape[-3] or not (masks.select(-4, 0) != 0).flatten(-2).any(-1).all():
        raise InputError("masks: expected objects that are all visible in the first frame. Drop those that are not.")
