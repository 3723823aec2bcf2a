"""The state of tracking objects through one video with SAM 2: the session of the model, and prompts of later frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.boxes import box_iou, mask_boxes
from vitruvian.models.sam2.options import Sam2SessionOptions
from vitruvian.models.sam2.session_state import restore_session, session_state
from vitruvian.models.sam2.video_modeling import Sam2VideoModel
from vitruvian.models.sam2.video_processing import Sam2VideoProcessor
from vitruvian.models.sam2.video_session import Sam2VideoInferenceSession
from vitruvian.pipelines.sources import Frame
from vitruvian.pipelines.video.state import State, prefixed, substate
from vitruvian.pipelines.video.track_prompt import TrackPrompt
from vitruvian.results.base import People

_SAME_PERSON_IOU = 0.5  # of the box of a detected person and that of a tracked object


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
        snapshot_every: Store the state before each frame whose number is a multiple of this; 0 for none.
    """

    def __init__(
        self,
        model: Sam2VideoModel,
        processor: Sam2VideoProcessor,
        options: Sam2SessionOptions,
        prompts: Sequence[TrackPrompt],
    ) -> None:
        self._model, self._processor = model, processor
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
        self.snapshot_every = 0
        self._snapshots: dict[int, State] = {}
        self.add(prompts)
        self._size_hw: tuple[int, int] | None = None
        self._pixels: Tensor | None = None  # of the last frame [3, H, W]
        self._index = 0  # of the last frame in the session, which has no frames before the first prompt

    def add(self, prompts: Sequence[TrackPrompt]) -> None:
        """Store prompts of later frames."""
        for prompt in prompts:
            self.pending.setdefault(prompt.frame, []).append(prompt)

    def remove(self, object_id: int) -> None:
        """Forget an object and its prompts of later frames."""
        waiting = any(prompt.object_id == object_id for prompts in self.pending.values() for prompt in prompts)
        if object_id in self.session.obj_ids or not waiting:
            self.session.remove_object(object_id)
        remaining = {n: [one for one in prompts if one.object_id != object_id] for n, prompts in self.pending.items()}
        self.pending = {number: prompts for number, prompts in remaining.items() if prompts}

    def advance(self, frame: Frame, pixels: Tensor, people: People | None) -> FrameMasks | None:
        """Track all objects to the next frame, with its prompts and detected people; None without objects."""
        self._size_hw = self._size_hw or frame.size_hw
        number = frame_number(frame)
        if frame.size_hw != self._size_hw:
            expected, got = (f"{height}×{width}" for height, width in (self._size_hw, frame.size_hw))
            raise InputError(
                f"frame {number}: expected {expected} pixels as in the frames before, got {got}. Resize the frames."
            )
        if self.snapshot_every and number // self.snapshot_every != self.number // self.snapshot_every:
            # Frames before this one may have failed.
            self._snapshots[number - number % self.snapshot_every] = self.state()
        self.frame, self.number = frame, number
        self.people_found = self.people_found or (people is not None and len(people) > 0)
        prompts = self.pending.pop(number, [])
        self._index = self.session.num_frames or 0
        self._pixels = pixels
        masks = self.segment(prompts)
        new_people = [] if people is None else self._new_people(people, masks)
        return self.segment(new_people) if new_people else masks

    def state(self) -> State:
        """Return what is needed to continue after the last frame."""
        state = prefixed("session.", session_state(self.session)) | {"people_found": np.array(self.people_found)}
        return state if self._size_hw is None else state | {"size_hw": np.array(self._size_hw)}

    def state_before(self, frame: int) -> State:
        """Return the state before a frame, and drop older snapshots."""
        state = self._snapshots.get(frame) or self.state()
        self._snapshots = {number: state for number, state in self._snapshots.items() if number > frame}
        return state

    def restore(self, state: State, frame: int) -> None:
        """Continue with `frame` from what `state` returned. Prompts of earlier frames are in that state."""
        restore_session(self.session, substate("session.", state))
        self.people_found = bool(state["people_found"])
        if "size_hw" in state:
            height, width = state["size_hw"].tolist()
            self._size_hw = (height, width)
        self.pending = {number: prompts for number, prompts in self.pending.items() if number >= frame}
        self.number = frame - 1

    def segment(self, prompts: Sequence[TrackPrompt]) -> FrameMasks | None:
        """Add prompts to the last frame and segment it; None without objects."""
        assert self.frame is not None
        for prompt in prompts:
            prompt.add_to(self.session, self._processor, self._index, self.frame.size_hw)
        if not self.session.obj_ids:
            return None
        out = self._model(self.session, frame_idx=self._index, frame=self._pixels, return_dict=True)
        return FrameMasks(
            out.object_ids, out.pred_masks[:, 0], out.iou_scores[:, 0].float(), out.object_score_logits[:, 0].float()
        )

    def _new_people(self, people: People, masks: FrameMasks | None) -> list[TrackPrompt]:
        """Return prompts for the detected people that no tracked object is."""
        assert self.frame is not None
        boxes: NDArray[np.float64] = people.boxes_xyxy.astype(np.float64)  # [P, 4]
        if masks is not None and len(boxes):
            height, width = self.frame.size_hw
            rows, columns = masks.logits.shape[1:]
            scale = np.array((width / columns, height / rows) * 2)
            tracked = mask_boxes(masks.logits > 0).cpu().numpy() * scale  # [O, 4]
            boxes = boxes[box_iou(boxes, tracked).max(axis=1) < _SAME_PERSON_IOU]
        taken = {one.object_id for prompts in self.pending.values() for one in prompts} | {*self.session.obj_ids}
        first = max(taken, default=0) + 1
        return [
            TrackPrompt(object_id=object_id, frame=self.number, box=box) for object_id, box in enumerate(boxes, first)
        ]


def frame_number(frame: Frame) -> int:
    """Return the number of a frame in its video, or in the list that it is from."""
    return frame.index if frame.frame is None else frame.frame
