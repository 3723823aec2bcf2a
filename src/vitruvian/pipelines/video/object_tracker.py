"""The state of tracking objects through one video with SAM 2: the session of the model, and prompts of later frames."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import filterfalse
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.boxes import box_iou, mask_boxes
from vitruvian.images.nms import mask_iou
from vitruvian.models.sam2.options import Sam2SessionOptions
from vitruvian.models.sam2.session_state import restore_session, session_state
from vitruvian.models.sam2.video_modeling import Sam2VideoModel
from vitruvian.models.sam2.video_processing import Sam2VideoProcessor
from vitruvian.models.sam2.video_session import Sam2VideoInferenceSession
from vitruvian.pipelines.sources import Failure, Frame
from vitruvian.pipelines.video.state import Snapshots, State, prefixed, substate
from vitruvian.pipelines.video.track_prompt import MAX_OBJECT_ID, TrackPrompt, check_together
from vitruvian.results.base import People

_SAME_PERSON_IOU = 0.5  # of the box or mask of a detected person and that of a tracked object
_SAME_MASK_IOU = 0.9  # of two tracked objects that are one person: masks of people who cross may overlap by less


class FrameMasks(NamedTuple):
    """Masks of O objects in a frame: their ids, logits [O, h, w], predicted IoU [O] and presence logits [O]."""

    ids: list[int]
    logits: Tensor
    ious: Tensor
    presence: Tensor


class ObjectTracker:
    """The state of one video: the session, and the prompts of frames to come.

    Attributes:
        session: The session of the model.
        frame: The last frame.
        number: Its number; -1 before the first.
        pending: Prompts of later frames, by frame.
        people_found: Whether people were detected in a frame so far.
        snapshots: States before frames, for `state_before`.

    Args:
        model: The model.
        processor: Its processor.
        options: What the session does.
        prompts: Prompts of any frames.
        forget_after: Frames after which a detected person is forgotten who is not visible; 0 for never.
    """

    def __init__(
        self,
        model: Sam2VideoModel,
        processor: Sam2VideoProcessor,
        options: Sam2SessionOptions,
        prompts: Sequence[TrackPrompt],
        *,
        forget_after: int = 0,
    ) -> None:
        self._model, self._processor, self._forget_after = model, processor, forget_after
        storage = torch.device("cpu") if options.keep_history else model.device
        self.session = Sam2VideoInferenceSession(
            inference_device=model.device,
            inference_state_device=storage,
            video_storage_device=storage,
            dtype=model.dtype,
            options=options,
        )
        self.frame: Frame | None = None
        self.number = -1
        self.pending: dict[int, list[TrackPrompt]] = {}
        self.people_found = False
        self.snapshots = Snapshots()
        self._used_ids: set[int] = set()  # of all objects so far, also of those that were removed
        self._first_seen: dict[int, int] = {}  # detected person -> the first frame; also of those who were removed
        self._last_seen: dict[int, int] = {}  # detected person -> the last frame with detection that shows them
        self.add(prompts)
        self._size_hw: tuple[int, int] | None = None
        self._pixels: Tensor | None = None  # of the last frame [3, H, W]
        self._index = 0  # of the last frame in the session, which has no frames before the first prompt

    def add(self, prompts: Sequence[TrackPrompt]) -> None:
        """Store prompts of later frames."""
        check_together([*prompts, *(prompt for waiting in self.pending.values() for prompt in waiting)])
        for prompt in prompts:
            self.pending.setdefault(prompt.frame, []).append(prompt)
            self._used_ids.add(prompt.object_id)
            self._last_seen.pop(prompt.object_id, None)

    def remove(self, object_id: int) -> None:
        """Forget an object and its prompts of later frames."""
        waiting = any(prompt.object_id == object_id for prompts in self.pending.values() for prompt in prompts)
        if object_id in self.session.obj_ids or not waiting:
            self.session.remove_object(object_id)
        self._last_seen.pop(object_id, None)
        others = {
            frame: [prompt for prompt in prompts if prompt.object_id != object_id]
            for frame, prompts in self.pending.items()
        }
        self.pending = {frame: prompts for frame, prompts in others.items() if prompts}

    def advance(self, frame: Frame, pixels: Tensor, people: People | None) -> FrameMasks | None:
        """Track all objects to the next frame, with its prompts and detected people; None without objects."""
        self._size_hw = self._size_hw or frame.size_hw
        number = frame_number(frame)
        if frame.size_hw != self._size_hw:
            expected, got = (f"{height}×{width}" for height, width in (self._size_hw, frame.size_hw))
            raise InputError(
                f"frame {number}: expected {expected} pixels as in the frames before, got {got}. Resize the frames."
            )
        self.snapshots.store_before(number, self.number, self.state)
        self.frame, self.number = frame, number
        self.people_found = self.people_found or (people is not None and len(people) > 0)
        self._index = self.session.num_frames or 0
        self._pixels = pixels
        prompts = self.pending.get(number, [])
        if any(prompt.mask is None and prompt.object_id in self.session.obj_ids for prompt in prompts):
            self.segment([])  # points and boxes correct the mask that the object has in this frame
        masks = self.segment(prompts)
        self.pending.pop(number, None)  # after an error they are still there
        return masks if people is None else self._update_people(people, masks)

    def state(self) -> State:
        """Return what is needed to continue after the last frame."""
        state = prefixed("session.", session_state(self.session)) | {
            "people_found": np.array(self.people_found),
            "used_ids": np.array(sorted(self._used_ids), np.int64),
            "first_seen": np.array([*self._first_seen.items()], np.int64).reshape(-1, 2),
            "last_seen": np.array([*self._last_seen.items()], np.int64).reshape(-1, 2),
        }
        return state if self._size_hw is None else state | {"size_hw": np.array(self._size_hw)}

    def state_before(self, frame: int) -> State:
        """Return the state before a frame, and drop older snapshots."""
        return self.snapshots.state_before(frame, self.state)

    def reuse_ids(self, state: State) -> None:
        """Let people get the ids that they have in `state`, though later prompts have them too."""
        prompted = {prompt.object_id: frame for frame in sorted(self.pending)[::-1] for prompt in self.pending[frame]}
        people = state["first_seen"].tolist()
        self._used_ids -= {object_id for object_id, frame in people if frame < prompted.get(object_id, 0)}

    def restore(self, state: State, frame: int) -> None:
        """Continue with `frame` from what `state` returned. Prompts of earlier frames are in that state."""
        restore_session(self.session, substate("session.", state))
        self.people_found = bool(state["people_found"])
        self._used_ids |= {*state["used_ids"].tolist()}
        self._first_seen = dict(state["first_seen"].tolist())
        self._last_seen = dict(state["last_seen"].tolist())
        if "size_hw" in state:
            height, width = state["size_hw"].tolist()
            self._size_hw = (height, width)
        self.pending = {number: prompts for number, prompts in self.pending.items() if number >= frame}
        self.number = frame - 1

    def segment(self, prompts: Sequence[TrackPrompt]) -> FrameMasks | None:
        """Add prompts to the last frame and segment it; None without objects."""
        assert self.frame is not None
        for prompt in prompts:  # all are checked before any is added
            prompt.check_fits(self.frame.size_hw)
        for prompt in prompts:
            prompt.add_to(self.session, self._processor, self._index, self.frame.size_hw)
            self._used_ids.add(prompt.object_id)
            self._last_seen.pop(prompt.object_id, None)  # who has a prompt is not forgotten
        if not self.session.obj_ids:
            return None
        out = self._model(self.session, frame_idx=self._index, frame=self._pixels, return_dict=True)
        return FrameMasks(
            out.object_ids, out.pred_masks[:, 0], out.iou_scores[:, 0].float(), out.object_score_logits[:, 0].float()
        )

    def _update_people(self, people: People, masks: FrameMasks | None) -> FrameMasks | None:
        """Add detected people who are not tracked yet; forget those who are gone, or who are tracked twice."""
        new = self._new_people(people, masks)
        masks = self.segment(new) if new else masks
        new_ids = {prompt.object_id for prompt in new}
        self._first_seen |= dict.fromkeys(new_ids, self.number)
        self._last_seen |= dict.fromkeys(new_ids, self.number)
        if masks is None or self._last_seen.keys().isdisjoint(masks.ids):
            return masks
        pixels = masks.logits > 0
        overlaps, visible = mask_iou(pixels).tolist(), pixels.flatten(1).any(dim=1).tolist()
        kept: list[int] = []  # rows
        for row, object_id in enumerate(masks.ids):
            if object_id in self._last_seen:
                if visible[row]:
                    self._last_seen[object_id] = self.number
                others = [other for other in kept if masks.ids[other] not in new_ids]
                limit = _SAME_PERSON_IOU if object_id in new_ids else _SAME_MASK_IOU
                is_gone = 0 < self._forget_after < self.number - self._last_seen[object_id]
                if is_gone or any(overlaps[row][other] >= limit for other in others):
                    self.remove(object_id)
                    if object_id in new_ids:  # no result has it
                        self._used_ids.remove(object_id)
                        del self._first_seen[object_id]
                    continue
            kept.append(row)
        if len(kept) == len(masks.ids):
            return masks
        ids, logits, ious, presence = masks
        return FrameMasks([ids[row] for row in kept], logits[kept], ious[kept], presence[kept]) if kept else None

    def _new_people(self, people: People, masks: FrameMasks | None) -> list[TrackPrompt]:
        """Return prompts for the detected people whose boxes are not those of an object."""
        assert self.frame is not None
        boxes: NDArray[np.float64] = people.boxes_xyxy.astype(np.float64)  # [P, 4]
        if masks is not None and len(boxes):
            height, width = self.frame.size_hw
            rows, columns = masks.logits.shape[1:]
            scale = np.array((width / columns, height / rows) * 2)
            tracked = mask_boxes(masks.logits > 0).cpu().numpy() * scale  # [O, 4]
            boxes = boxes[box_iou(boxes, tracked).max(axis=1) < _SAME_PERSON_IOU]
        unused = filterfalse(self._used_ids.__contains__, range(1, MAX_OBJECT_ID + 1))
        return [
            TrackPrompt(object_id=object_id, frame=self.number, box=box)
            for box, object_id in zip(boxes, unused, strict=False)
        ]


def frame_number(frame: Frame | Failure) -> int:
    """Return the number of a frame in its video, or in the list that it is from."""
    return frame.index if frame.frame is None else frame.frame
