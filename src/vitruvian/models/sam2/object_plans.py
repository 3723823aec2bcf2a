"""What a video model does for each object in a frame, by its prompts, earlier outputs and the session's options."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.models.sam2.prompt_encoder import PADDING
from vitruvian.models.sam2.video_session import CONDITIONING, Sam2VideoInferenceSession

_PRIOR_LIMIT = 32.0  # of logits that are given to the decoder with further points, as in the original


class ObjectPlan(NamedTuple):
    """What to do for one object in a frame.

    Attributes:
        obj_idx: Index of the object.
        is_conditioning: Whether the output is that of a conditioning frame.
        uses_memory: Whether features are conditioned on memories.
        reverse: Whether memories are those of later frames.
        points: Points [1, 1, N, 2] and labels [1, 1, N].
        mask: Mask prompt [1, 1, H, W].
        prior: Logits of an earlier mask [1, 1, h, w].
    """

    obj_idx: int
    is_conditioning: bool
    uses_memory: bool
    reverse: bool
    points: tuple[Tensor, Tensor] | None = None
    mask: Tensor | None = None
    prior: Tensor | None = None

    @property
    def is_prompted(self) -> bool:
        """Whether the object has a prompt in this frame."""
        return self.points is not None or self.mask is not None

    def corrected(self, point_xy: Tensor, label: Tensor, logits: Tensor) -> ObjectPlan:
        """Add a point [2] with its label [] for the errors of a mask [1, 1, h, w]."""
        points, labels = point_xy.reshape(1, 1, 1, 2), label.reshape(1, 1, 1)
        if self.points is not None:
            points, labels = torch.cat((self.points[0], points), dim=2), torch.cat((self.points[1], labels), dim=2)
        prior = logits.clamp(-_PRIOR_LIMIT, _PRIOR_LIMIT)
        return self._replace(is_conditioning=True, points=(points, labels), mask=None, prior=prior)


def plan_objects(session: Sam2VideoInferenceSession, frame_idx: int, *, reverse: bool) -> list[ObjectPlan]:
    """Decide what to do for each object in a frame. Objects whose stored output is used again have no plan."""
    options = session.options
    plans: list[ObjectPlan] = []
    # As in transformers, an object with a prompt in a frame without a mask of it goes forward, and all after it do.
    reverse_of_rest = reverse
    for obj_idx in range(session.get_obj_num()):
        conditioning, tracked = (
            session.output_dict_per_obj[obj_idx][CONDITIONING],
            session.frames_tracked_per_obj[obj_idx],
        )
        points = session.point_inputs_per_obj[obj_idx].get(frame_idx)
        mask = session.mask_inputs_per_obj[obj_idx].get(frame_idx)
        is_new = session.has_new_inputs(obj_idx, frame_idx)
        if options.objects_start_at_prompt and points is None and mask is None:
            is_new = False
        if not is_new:
            if conditioning and frame_idx not in conditioning:
                plans.append(ObjectPlan(obj_idx, False, True, reverse_of_rest))
            elif not conditioning and not options.objects_start_at_prompt:
                raise InputError(
                    f"object {session.obj_idx_to_id(obj_idx)}: expected a prompt on frame {frame_idx} or a frame "
                    "segmented before. Call the model on a frame with a prompt for it first."
                )
            continue
        was_tracked, direction = frame_idx in tracked, reverse_of_rest
        if not was_tracked and not options.independent_objects:
            direction = reverse_of_rest = False
        elif was_tracked and options.corrections_as_conditioning:
            direction = tracked[frame_idx]["reverse"]
        plans.append(
            ObjectPlan(
                obj_idx,
                is_conditioning=not was_tracked or options.corrections_as_conditioning,
                uses_memory=was_tracked and bool(conditioning),
                reverse=direction,
                points=None if points is None else _points_of(points, ignore_padding=options.ignore_padding),
                mask=mask,
                prior=_prior_of(session, obj_idx, frame_idx) if options.prior_logits and points is not None else None,
            )
        )
    return plans


def _points_of(points: dict[str, Tensor], *, ignore_padding: bool) -> tuple[Tensor, Tensor]:
    """Return points [1, 1, N, 2] and labels [1, 1, N] of a prompt."""
    coordinates, labels = points["point_coords"], points["point_labels"]
    if ignore_padding:
        is_point = labels[0, 0] != PADDING
        coordinates, labels = coordinates[:, :, is_point], labels[:, :, is_point]
    return coordinates, labels


def _prior_of(session: Sam2VideoInferenceSession, obj_idx: int, frame_idx: int) -> Tensor | None:
    """Return the last mask of an object in a frame [1, 1, h, w] as a prompt."""
    for is_conditioning in (True, False):
        logits = session.get_output(obj_idx, frame_idx, "pred_masks", is_conditioning)
        if logits is not None:
            return logits.clamp(-_PRIOR_LIMIT, _PRIOR_LIMIT)
    return None
