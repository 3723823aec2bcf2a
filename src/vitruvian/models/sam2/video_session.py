"""The state of tracking objects through one video: frames, prompts and what the model remembers of each object.

    processor.init_video_session(video) ─▶ session ◀─ processor.add_inputs_to_inference_session (points, boxes, masks)
    model(session, frame_idx) ── reads prompts and memories, stores outputs ──▶ session

Outputs of conditioning frames, which were prompted before they were tracked, are stored apart from those of other
frames. By default a session behaves as in transformers and stores everything; `Sam2SessionOptions` lists the
differences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.layers.sine_positions import sine_positions
from vitruvian.models.sam2.history_files import HistoryFiles
from vitruvian.models.sam2.options import Sam2SessionOptions
from vitruvian.ops.interpolate import bilinear

CONDITIONING, TRACKED = "cond_frame_outputs", "non_cond_frame_outputs"
_COMPUTED_FROM = {"high_res_masks": "pred_masks", "maskmem_pos_enc": "maskmem_features"}
_SMALL = ("object_pointer", "object_score_logits", "iou_scores")  # outputs that stay on the device of the model
MASK_PROMPT_LOGIT = 10.0  # of the pixels of a mask prompt, and of the score for whether there is an object

FrameOutputs = dict[int, dict[str, Tensor]]  # frame -> name -> tensor
T = TypeVar("T")


class Sam2VideoInferenceSession:
    """The state of tracking objects through one video.

    Args:
        video: Prepared frames [T, 3, H, W]; None to stream them. For training also those of B clips, [T, B, 3, H, W],
            which have equally many objects; the objects of the first clip come first.
        video_height: Height of the original frames.
        video_width: Width of the original frames.
        inference_device: Device of the model.
        inference_state_device: Device of stored masks and memories.
        video_storage_device: Device of stored frames.
        dtype: Data type of frames and masks.
        max_vision_features_cache_size: Frames whose features are stored on the device of the model.
        options: What the session does other than transformers.

    Attributes:
        processed_frames: Frame index -> frame [3, H, W]; None before the first streamed frame.
        obj_ids: Ids of the objects. An object has an index too, its rank in this list.
        point_inputs_per_obj: Object index -> frame -> `point_coords` [1, 1, N, 2] and `point_labels` [1, 1, N].
        mask_inputs_per_obj: Object index -> frame -> mask [1, 1, H, W].
        output_dict_per_obj: Object index -> `cond_frame_outputs` and `non_cond_frame_outputs` -> frame -> name: tensor.
            Names are `pred_masks` [1, 1, h, w], `object_pointer` [1, 1, C], `object_score_logits` [1, 1, 1],
            `iou_scores` [1, 1] and `maskmem_features` [h·w, 1, C'].
        frames_tracked_per_obj: Object index -> frame -> `reverse`, the direction in which it was tracked.
        obj_with_new_inputs: Ids of the objects with prompts that the model has not read.
    """

    def __init__(
        self,
        video: Tensor | None = None,
        video_height: int | None = None,
        video_width: int | None = None,
        inference_device: torch.device | str = "cpu",
        inference_state_device: torch.device | str = "cpu",
        video_storage_device: torch.device | str = "cpu",
        dtype: torch.dtype | str = "float32",
        max_vision_features_cache_size: int = 1,
        *,
        options: Sam2SessionOptions | None = None,
    ) -> None:
        self.video_height, self.video_width = video_height, video_width
        self.inference_device = inference_device
        self.inference_state_device = inference_state_device
        self.video_storage_device = video_storage_device
        self.dtype: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        self.max_vision_features_cache_size = max_vision_features_cache_size
        self.options = options or Sam2SessionOptions()
        self._files = HistoryFiles(self.options.history_folder) if self.options.history_folder else None
        self.is_streaming = video is None
        self.processed_frames: dict[int, Tensor] | None = None
        if video is not None:
            self.processed_frames = dict(enumerate(video.to(video_storage_device, dtype=self.dtype)))
        self._dropped_frames = 0
        self._added: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # streamed frames as they were passed
        self._features: OrderedDict[int, list[Tensor]] = OrderedDict()
        self.obj_ids: list[int] = []
        self.point_inputs_per_obj: dict[int, dict[int, dict[str, Tensor]]] = {}
        self.mask_inputs_per_obj: dict[int, dict[int, Tensor]] = {}
        self.output_dict_per_obj: dict[int, dict[str, FrameOutputs]] = {}
        self.frames_tracked_per_obj: dict[int, dict[int, dict[str, bool]]] = {}
        self.obj_with_new_inputs: list[int] = []
        self._new_inputs: set[tuple[int, int]] = set()  # (object id, frame) of prompts that the model has not read

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_added": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_added": WeakValueDictionary()}

    # ------------------------------------------------------------------------------------------------------ objects

    def obj_id_to_idx(self, obj_id: int) -> int:
        """Return the index of an object, which is created if needed."""
        if obj_id in self.obj_ids:
            return self.obj_ids.index(obj_id)
        index = len(self.obj_ids)
        self.obj_ids = [*self.obj_ids, obj_id]
        self.point_inputs_per_obj[index], self.mask_inputs_per_obj[index] = {}, {}
        self.output_dict_per_obj[index] = {CONDITIONING: {}, TRACKED: {}}
        self.frames_tracked_per_obj[index] = {}
        return index

    def obj_idx_to_id(self, obj_idx: int) -> int:
        """Return the id of an object."""
        return self.obj_ids[obj_idx]

    def get_obj_num(self) -> int:
        """Return the number of objects."""
        return len(self.obj_ids)

    def remove_object(self, obj_id: int) -> None:
        """Forget an object: its prompts, outputs and memories. Objects after it move up by one index."""
        removed = self._index_of(obj_id)
        self.obj_ids = [other for other in self.obj_ids if other != obj_id]
        self.point_inputs_per_obj = _without(self.point_inputs_per_obj, removed)
        self.mask_inputs_per_obj = _without(self.mask_inputs_per_obj, removed)
        self.output_dict_per_obj = _without(self.output_dict_per_obj, removed)
        self.frames_tracked_per_obj = _without(self.frames_tracked_per_obj, removed)
        self.obj_with_new_inputs = [other for other in self.obj_with_new_inputs if other != obj_id]
        self._new_inputs = {(other, frame) for other, frame in self._new_inputs if other != obj_id}

    def _index_of(self, obj_id: int) -> int:
        if obj_id not in self.obj_ids:
            raise InputError(f"obj_id: expected one of {self.obj_ids}, got {obj_id}.")
        return self.obj_ids.index(obj_id)

    # ------------------------------------------------------------------------------------------------------ prompts

    def add_point_inputs(self, obj_idx: int, frame_idx: int, inputs: Mapping[str, Tensor]) -> None:
        """Store the points of an object in a frame."""
        stored = {name: value.to(self.inference_device) for name, value in inputs.items()}
        self.point_inputs_per_obj[obj_idx][frame_idx] = stored

    def remove_point_inputs(self, obj_idx: int, frame_idx: int) -> None:
        """Remove the points of an object in a frame."""
        self.point_inputs_per_obj[obj_idx].pop(frame_idx, None)

    def add_mask_inputs(self, obj_idx: int, frame_idx: int, inputs: Tensor) -> None:
        """Store the mask prompt [1, 1, H, W] of an object in a frame."""
        self.mask_inputs_per_obj[obj_idx][frame_idx] = inputs.to(self.inference_device, dtype=self.dtype)

    def remove_mask_inputs(self, obj_idx: int, frame_idx: int) -> None:
        """Remove the mask prompt of an object in a frame."""
        self.mask_inputs_per_obj[obj_idx].pop(frame_idx, None)

    def remove_prompts(self, obj_id: int, frame_idx: int) -> None:
        """Remove the prompts of an object in a frame, and the mask and memory that they gave.

        Segment the frame again to track the object through it. Without any prompted frame left, all outputs of the
        object are removed.
        """
        index = self._index_of(obj_id)
        self.remove_point_inputs(index, frame_idx)
        self.remove_mask_inputs(index, frame_idx)
        self.mark_inputs_read(index, frame_idx)
        outputs, tracked = self.output_dict_per_obj[index], self.frames_tracked_per_obj[index]
        outputs[CONDITIONING].pop(frame_idx, None)
        for frame in [frame_idx] if outputs[CONDITIONING] else list(outputs[TRACKED]):
            outputs[TRACKED].pop(frame, None)
            tracked.pop(frame, None)

    def mark_new_inputs(self, obj_ids: list[int], frame_idx: int) -> None:
        """Record that these objects have new prompts in a frame."""
        self.obj_with_new_inputs = list(dict.fromkeys((*self.obj_with_new_inputs, *obj_ids)))
        self._new_inputs |= {(obj_id, frame_idx) for obj_id in obj_ids}

    def has_new_inputs(self, obj_idx: int, frame_idx: int) -> bool:
        """Return whether the model has to read prompts of an object in this frame."""
        obj_id = self.obj_ids[obj_idx]
        if self.options.corrections_as_conditioning:
            return (obj_id, frame_idx) in self._new_inputs
        return obj_id in self.obj_with_new_inputs

    def mark_inputs_read(self, obj_idx: int, frame_idx: int) -> None:
        """Record that the model has read the prompts of an object in a frame."""
        obj_id = self.obj_ids[obj_idx]
        self._new_inputs.discard((obj_id, frame_idx))
        if obj_id in self.obj_with_new_inputs:
            self.obj_with_new_inputs.remove(obj_id)

    # ------------------------------------------------------------------------------------------------------ outputs

    def store_output(
        self,
        obj_idx: int,
        frame_idx: int,
        output_key: str | None = None,
        output_value: Tensor | Mapping[str, Tensor] | None = None,
        is_conditioning_frame: bool = True,
    ) -> None:
        """Store an output of an object in a frame under a name, or a table of outputs, which replaces earlier ones."""
        frames = self.output_dict_per_obj[obj_idx][CONDITIONING if is_conditioning_frame else TRACKED]
        if output_key is None:
            if not isinstance(output_value, Mapping):
                raise InputError("output_value: expected a table of tensors where there is no output_key.")
            frames[frame_idx] = {name: self._stored(name, value) for name, value in output_value.items()}
        elif isinstance(output_value, Tensor):
            frames.setdefault(frame_idx, {})[output_key] = self._stored(output_key, output_value)

    def get_output(
        self, obj_idx: int, frame_idx: int, output_key: str, is_conditioning_frame: bool = True
    ) -> Tensor | None:
        """Return an output of an object in a frame on the device of the model, None where there is none.

        What transformers stores beside is computed: `high_res_masks` [1, 1, H, W] and `maskmem_pos_enc` [h·w, 1, C'].
        """
        frames = self.output_dict_per_obj[obj_idx][CONDITIONING if is_conditioning_frame else TRACKED]
        value = frames.get(frame_idx, {}).get(_COMPUTED_FROM.get(output_key, output_key))
        if value is None:
            return None
        value = value.to(self.inference_device, non_blocking=True)
        if output_key == "high_res_masks":
            height, width = (4 * side for side in value.shape[-2:])
            mask = self.mask_inputs_per_obj[obj_idx].get(frame_idx)
            if mask is not None and mask.shape[-2:] == (height, width):
                return (2 * mask - 1) * MASK_PROMPT_LOGIT
            return bilinear(value, (height, width))
        if output_key == "maskmem_pos_enc":
            masks = frames[frame_idx]["pred_masks"]
            grid_hw = masks.shape[-2] // 4, masks.shape[-1] // 4
            return sine_positions(grid_hw, value.shape[-1], masks.dtype, value.device)[:, None]
        return value

    def _stored(self, name: str, value: Tensor) -> Tensor:
        if name in _SMALL:
            return value
        return self._files.store(value) if self._files else value.to(self.inference_state_device)

    def clear_tracked(self, obj_idx: int, frame_idx: int, *, distance: int) -> None:
        """Drop the outputs of tracked frames up to `distance` frames from a frame."""
        frames = self.output_dict_per_obj[obj_idx][TRACKED]
        for other in [other for other in frames if abs(other - frame_idx) <= distance]:
            del frames[other]

    def drop_history(self, frame_idx: int, *, reverse: bool, memories: int, pointers: int) -> None:
        """Drop what the frame after `frame_idx` does not need.

        Args:
            frame_idx: The last frame.
            reverse: Whether frames come in descending order.
            memories: Number of recent frames whose memory is attended to.
            pointers: Number of recent frames whose object pointer is attended to.
        """
        sign = -1 if reverse else 1
        for index, outputs in self.output_dict_per_obj.items():
            conditioning = outputs[CONDITIONING]
            ages = sorted(age for other in conditioning if (age := sign * (frame_idx - other)) >= 0)
            oldest = max(ages[: self.options.max_cond_frame_num], default=0)
            # Conditioning frames that the model still attends to.
            attended = {other for other in conditioning if sign * (frame_idx - other) <= oldest}
            for frames, unchanged in ((outputs[TRACKED], set[int]()), (conditioning, attended)):
                for other in frames.keys() - unchanged:
                    distance = sign * (frame_idx - other)
                    if not 0 <= distance < max(memories, pointers):
                        del frames[other]
                    elif distance >= memories:
                        frames[other] = {name: frames[other][name] for name in _SMALL}
            tracked = self.frames_tracked_per_obj[index].items()
            # A frame that was corrected is among the conditioning frames; it may be corrected again.
            self.frames_tracked_per_obj[index] = {
                other: way for other, way in tracked if other in outputs[TRACKED] or other == frame_idx
            }
            self.mask_inputs_per_obj[index].pop(frame_idx, None)
            if self.is_streaming:
                points = self.point_inputs_per_obj[index].items()
                self.point_inputs_per_obj[index] = {other: prompt for other, prompt in points if other >= frame_idx}
        if self.is_streaming and self.processed_frames is not None:
            remaining = {other: frame for other, frame in self.processed_frames.items() if other == frame_idx}
            self._dropped_frames += len(self.processed_frames) - len(remaining)
            self.processed_frames = remaining

    # ------------------------------------------------------------------------------------------------------- frames

    @property
    def num_frames(self) -> int | None:
        """Number of frames so far; None before the first."""
        return None if self.processed_frames is None else len(self.processed_frames) + self._dropped_frames

    def skip_frames(self, count: int) -> None:
        """Count frames of a stream that were processed earlier, and are not stored."""
        self.processed_frames = self.processed_frames or {}
        self._dropped_frames += count

    def add_new_frame(self, pixel_values: Tensor, frame_idx: int | None = None) -> int:
        """Add a prepared frame [3, H, W] or [1, 3, H, W]; return its index, by default the number of frames.

        The same tensor for the same frame again changes nothing, so that its features stay.
        """
        index = (self.num_frames or 0) if frame_idx is None else frame_idx
        if self.processed_frames is None:
            self.processed_frames = {}
        if index in self.processed_frames and self._added.get(index) is pixel_values:
            return index
        frame = pixel_values.to(self.video_storage_device, dtype=self.dtype)
        frame = frame[0] if frame.ndim == 4 else frame
        self.processed_frames[index] = self._files.store(frame) if self._files else frame
        self._added[index] = pixel_values
        self._features.pop(index, None)
        return index

    def get_frame(self, frame_idx: int) -> Tensor:
        """Return a frame [3, H, W] on the device of the model."""
        if self.processed_frames is None or frame_idx not in self.processed_frames:
            count = self.num_frames or 0
            raise InputError(
                f"frame_idx: expected a frame of the video, which has {count}, got {frame_idx}. "
                "Frames are counted from 0; a streamed frame is passed as `frame`."
            )
        return self.processed_frames[frame_idx].to(self.inference_device, non_blocking=True)

    def features(self, frame_idx: int, compute: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
        """Return the features of a frame, computed unless they are cached."""
        if frame_idx not in self._features:
            frame = self.get_frame(frame_idx)
            self._features[frame_idx] = compute(frame if frame.ndim == 4 else frame[None])
        self._features.move_to_end(frame_idx)
        levels = self._features[frame_idx]
        while len(self._features) > self.max_vision_features_cache_size:
            self._features.popitem(last=False)
        return levels

    # -------------------------------------------------------------------------------------------------------- reset

    def reset_tracking_data(self) -> None:
        """Forget all objects; frames and cached features stay."""
        self.obj_ids, self.obj_with_new_inputs, self._new_inputs = [], [], set()
        for table in (self.point_inputs_per_obj, self.mask_inputs_per_obj, self.output_dict_per_obj):
            table.clear()
        self.frames_tracked_per_obj.clear()

    def reset_inference_session(self) -> None:
        """Forget all objects and cached features; frames stay."""
        self.reset_tracking_data()
        self._features.clear()


def _without(table: dict[int, T], removed: int) -> dict[int, T]:
    """Remove an index from a table; larger indices move down by one."""
    return {index - (index > removed): value for index, value in table.items() if index != removed}
