"""Videos and prompts to sessions of SAM 2, and its masks to masks of the original size.

video ─ Sam2VideoVideoProcessor ─▶ frames [T, 3, 1024, 1024] ─ init_video_session ─▶ session
points, boxes or masks of objects in a frame ─ add_inputs_to_inference_session ─▶ session
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitruvian.config import as_hw, config_dataclass, nested, read_config_dict
from vitruvian.errors import InputError
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.hub import HubOptions, split_hub_options
from vitruvian.models.sam2.configuration import positional_fields
from vitruvian.models.sam2.options import Sam2SessionOptions
from vitruvian.models.sam2.processing import FixedSizeProcessor, Sam2Processor
from vitruvian.models.sam2.prompt_coordinates import prompt_levels
from vitruvian.models.sam2.video_session import Sam2VideoInferenceSession
from vitruvian.ops.interpolate import bilinear
from vitruvian.outputs import BatchFeature
from vitruvian.processor import (
    IMAGE_PROCESSOR_FILE,
    VIDEO_PROCESSOR_FILE,
    ImageOptions,
    as_pixels,
    height_width,
    read_settings,
    size_list,
)


@config_dataclass
class Sam2VideoVideoProcessor(FixedSizeProcessor):
    """Videos to the input of SAM 2: every frame is resized and normalized.

    Args:
        size: Size of the model input; by default 1024 × 1024.
    """

    file_name: ClassVar[str] = VIDEO_PROCESSOR_FILE
    type_key: ClassVar[str] = "video_processor_type"

    @classmethod
    def read_settings(cls, source: str | Path, options: HubOptions) -> JsonObject:
        """Read the settings from their own file, from that of the processor or from those for images."""
        settings = read_settings(source, options, VIDEO_PROCESSOR_FILE, "video_processor", "image_processor")
        return settings or read_config_dict(source, options, IMAGE_PROCESSOR_FILE) or {}

    def __call__(self, videos: Any, *args: Any, **kwargs: Any) -> BatchFeature:  # type: ignore[override]
        """Same as `preprocess`."""
        return self.preprocess(videos, *args, **kwargs)

    def preprocess(
        self,
        videos: Any,
        *,
        device: str | torch.device | None = None,
        return_tensors: str | None = None,
        **options: Unpack[ImageOptions],
    ) -> BatchFeature:
        """Prepare one video or several.

        Args:
            videos: Frames of a video: an array or tensor [T, H, W, 3] or [T, 3, H, W], or a list of images (PIL, numpy,
                torch, paths); or a list of such videos.
            device: Device to compute on; by default that of the frames.
            return_tensors: "pt" or "np" for stacked arrays.
            options: Options of the processor for this call.

        Returns:
            `pixel_values_videos` [B, T, 3, H, W], `original_sizes` and `reshaped_input_sizes` [B, 2].
        """
        used = self.with_options(**options)
        frames = [as_pixels(video, device=device) for video in _as_videos(videos)]
        sizes = [(video[0].shape[-2], video[0].shape[-1]) for video in frames]
        for video, size_hw in zip(frames, sizes, strict=True):
            if any(tuple(frame.shape[-2:]) != size_hw for frame in video):
                raise InputError("videos: expected frames of one size in each video. Resize them first.")
        data = {
            "pixel_values_videos": [torch.stack([used.prepare_image(frame) for frame in video]) for video in frames],
            "original_sizes": sizes,
            "reshaped_input_sizes": [height_width(used.size, "size")] * len(frames),
        }
        return BatchFeature(data, tensor_type=return_tensors)

    def post_process_masks(
        self,
        masks: Sequence[Tensor | np.ndarray[Any, Any]],
        original_sizes: Sequence[object] | Tensor,
        reshaped_input_sizes: Sequence[object] | Tensor,
        mask_threshold: float = 0.0,
        binarize: bool = True,
        pad_size: dict[str, int] | None = None,
    ) -> list[Tensor]:
        """Resize mask logits [P, K, h, w] to the model input, crop the padding, and resize to the original size.

        Args:
            masks: For each video logits [P, K, h, w].
            original_sizes: Height and width of each video.
            reshaped_input_sizes: Height and width of each within the model input, the rest of which is padding.
            mask_threshold: Logit above which a pixel is on the object.
            binarize: Return bool masks rather than logits.
            pad_size: Height and width of the model input; by default `size`.
        """
        padded_hw = height_width(self.size if pad_size is None else pad_size, "pad_size")
        sizes = size_list("original_sizes", original_sizes, len(masks)) or []
        inner = size_list("reshaped_input_sizes", reshaped_input_sizes, len(masks)) or []
        processed = []
        for logits, size_hw, (height, width) in zip(map(torch.as_tensor, masks), sizes, inner, strict=True):
            large = bilinear(logits.float(), padded_hw)
            large = bilinear(large[..., :height, :width], size_hw)
            processed.append(large > mask_threshold if binarize else large)
        return processed


@positional_fields("image_processor", "video_processor", "target_size", "point_pad_value")
@config_dataclass
class Sam2VideoProcessor(Sam2Processor):
    """Videos, images and prompts to inputs of SAM 2. Fields may be positional arguments.

    Args:
        video_processor: Prepares videos. Other fields are those of `Sam2Processor`.
    """

    video_processor: Sam2VideoVideoProcessor = dataclasses.field(default_factory=Sam2VideoVideoProcessor)

    def __post_init__(self) -> None:
        self.video_processor = nested(self.video_processor, Sam2VideoVideoProcessor)
        super().__post_init__()

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Drop class names, which `to_dict` writes."""
        video = {"video_processor": values["video_processor"]} if "video_processor" in values else {}
        return super().upgrade(values) | video

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Read from a folder or the Hub.

        Keywords are options of the Hub, such as `revision`, or override fields of the processor, or of its image and
        video processors.
        """
        hub_options, overrides = split_hub_options(options)
        settings_of_video = Sam2VideoVideoProcessor.read_settings(pretrained_model_name_or_path, hub_options)
        of_video = overrides.keys() & Sam2VideoVideoProcessor.__dataclass_fields__.keys()
        video = Sam2VideoVideoProcessor.from_dict(settings_of_video, **{name: overrides[name] for name in of_video})
        return super().from_pretrained(
            pretrained_model_name_or_path, **dataclasses.asdict(hub_options), **({"video_processor": video} | overrides)
        )

    def save_pretrained(self, save_directory: str | Path) -> list[Path]:
        """Write `processor_config.json`, and the settings for images and for videos in files of their own."""
        return super().save_pretrained(save_directory) + self.video_processor.save_pretrained(save_directory)

    def init_video_session(
        self,
        video: Any = None,
        inference_device: str | torch.device = "cpu",
        inference_state_device: str | torch.device | None = None,
        processing_device: str | torch.device | None = None,
        video_storage_device: str | torch.device | None = None,
        max_vision_features_cache_size: int = 1,
        dtype: torch.dtype | str = torch.float32,
        **options: Any,
    ) -> Sam2VideoInferenceSession:
        """Start a session.

        Args:
            video: Frames of a video, as for `Sam2VideoVideoProcessor`; None to stream them.
            inference_device: Device of the model.
            inference_state_device: Device of stored masks and memories; by default that of the model.
            processing_device: Device on which frames are prepared; by default that of the model.
            video_storage_device: Device of stored frames; by default that of the model.
            max_vision_features_cache_size: Frames whose features are stored.
            dtype: Data type of frames and masks.
            options: Fields of `Sam2SessionOptions`.
        """
        frames: Tensor | None = None
        height = width = None
        if video is not None:
            prepared = self.video_processor(video, device=processing_device or inference_device, return_tensors="pt")
            frames = prepared["pixel_values_videos"][0]
            height, width = (int(side) for side in prepared["original_sizes"][0])
        return Sam2VideoInferenceSession(
            video=frames,
            video_height=height,
            video_width=width,
            inference_device=inference_device,
            inference_state_device=inference_state_device or inference_device,
            video_storage_device=video_storage_device or inference_device,
            dtype=dtype,
            max_vision_features_cache_size=max_vision_features_cache_size,
            options=Sam2SessionOptions.from_keywords(options),
        )

    def add_inputs_to_inference_session(
        self,
        inference_session: Sam2VideoInferenceSession,
        frame_idx: int,
        obj_ids: Sequence[int] | int,
        input_points: object = None,
        input_labels: object = None,
        input_boxes: object = None,
        input_masks: object = None,
        original_size: Sequence[int] | None = None,
        clear_old_inputs: bool = True,
    ) -> Sam2VideoInferenceSession:
        """Add points, boxes or masks of objects in a frame, in pixels of the original frame.

        Args:
            inference_session: The session.
            frame_idx: Index of the frame.
            obj_ids: Id of each object: any number, which is used to name it later.
            input_points: [1][object][point][x, y].
            input_labels: [1][object][point]: 1 on the object, 0 off it; required with points.
            input_boxes: [1][object][x1, y1, x2, y2].
            input_masks: A mask for each object: [H, W], [1, H, W] or [1, 1, H, W]. Not with points or boxes.
            original_size: Height and width of a frame; required once where frames are streamed.
            clear_old_inputs: Replace earlier points of the object in this frame, rather than adding to them.
        """
        ids = _object_ids(obj_ids)
        if (input_points is None) != (input_labels is None):
            raise InputError("input_points and input_labels: expected both or neither. Add the missing one.")
        if input_points is None and input_boxes is None and input_masks is None:
            raise InputError("prompts: expected points, boxes or masks, got none.")
        if input_masks is not None:
            if input_points is not None or input_boxes is not None:
                raise InputError("input_masks: expected no points or boxes with them. Add them in another call.")
            return self.process_new_mask_for_video_frame(inference_session, frame_idx, ids, input_masks)
        return self.process_new_points_or_boxes_for_video_frame(
            inference_session, frame_idx, ids, input_points, input_labels, input_boxes, original_size, clear_old_inputs
        )

    def process_new_points_or_boxes_for_video_frame(
        self,
        inference_session: Sam2VideoInferenceSession,
        frame_idx: int,
        obj_ids: Sequence[int],
        input_points: object = None,
        input_labels: object = None,
        input_boxes: object = None,
        original_size: Sequence[int] | None = None,
        clear_old_inputs: bool = True,
    ) -> Sam2VideoInferenceSession:
        """Add points or boxes of objects in a frame; see `add_inputs_to_inference_session`."""
        session, obj_ids = inference_session, _object_ids(obj_ids)
        _check_frame(session, frame_idx)
        forms = (("input_points", input_points, 4), ("input_labels", input_labels, 3), ("input_boxes", input_boxes, 3))
        for name, value, levels in forms:
            if value is not None and prompt_levels(value, name) != levels:
                got = prompt_levels(value, name)
                raise InputError(f"{name}: expected {levels} levels, [image][object]…, got {got}.")
        if input_boxes is not None and not clear_old_inputs:
            raise InputError("input_boxes: expected clear_old_inputs=True, since a box comes before all points.")
        if original_size is not None:
            session.video_height, session.video_width = original_size
        if session.video_height is None or session.video_width is None:
            raise InputError("original_size: expected height and width with the first prompt of a stream, got none.")
        prompts = self.prompts(
            [(session.video_height, session.video_width)], input_points, input_labels, input_boxes, "pt"
        )
        counts = {name: value.shape[1] for name, value in prompts.items() if value.shape[1] != len(obj_ids)}
        if counts:
            raise InputError(f"obj_ids: expected one for each object of the prompts ({counts}), got {len(obj_ids)}.")
        points, labels = _as_points(prompts, len(obj_ids))
        for number, obj_id in enumerate(obj_ids):
            obj_idx = session.obj_id_to_idx(obj_id)
            own = {"point_coords": points[:, number : number + 1], "point_labels": labels[:, number : number + 1]}
            earlier = session.point_inputs_per_obj[obj_idx].get(frame_idx)
            if earlier is not None and not clear_old_inputs:
                own = {name: torch.cat((earlier[name].to(value), value), dim=2) for name, value in own.items()}
            session.add_point_inputs(obj_idx, frame_idx, own)
            session.remove_mask_inputs(obj_idx, frame_idx)
        session.mark_new_inputs(obj_ids, frame_idx)
        return session

    def process_new_mask_for_video_frame(
        self,
        inference_session: Sam2VideoInferenceSession,
        frame_idx: int,
        obj_ids: Sequence[int],
        input_masks: object,
    ) -> Sam2VideoInferenceSession:
        """Add masks of objects in a frame; see `add_inputs_to_inference_session`."""
        obj_ids = _object_ids(obj_ids)
        _check_frame(inference_session, frame_idx)
        listed = input_masks if isinstance(input_masks, (list, tuple)) else [input_masks]
        if len(listed) != len(obj_ids):
            raise InputError(f"input_masks: expected one for each of {len(obj_ids)} objects, got {len(listed)}.")
        masks = [self._mask_prompt(mask) for mask in listed]  # all are checked before any is stored
        for obj_id, mask in zip(obj_ids, masks, strict=True):
            obj_idx = inference_session.obj_id_to_idx(obj_id)
            inference_session.add_mask_inputs(obj_idx, frame_idx, mask)
            inference_session.remove_point_inputs(obj_idx, frame_idx)
        inference_session.mark_new_inputs(obj_ids, frame_idx)
        return inference_session

    def _mask_prompt(self, mask: object) -> Tensor:
        """Convert a mask to the size of the model input [1, 1, H, W], 0 and 1 in float32."""
        tensor = mask if isinstance(mask, Tensor) else torch.as_tensor(np.asarray(mask, dtype=bool))
        if not 2 <= tensor.ndim <= 4 or any(side != 1 for side in tensor.shape[:-2]) or 0 in tensor.shape:
            raise InputError(f"input_masks: expected [H, W], [1, H, W] or [1, 1, H, W], got {list(tensor.shape)}.")
        tensor = tensor.reshape(1, 1, *tensor.shape[-2:]).float()
        target_hw = as_hw(self.target_size)
        if tensor.shape[-2:] == target_hw:
            return tensor
        resized = bilinear(tensor, target_hw, antialias=True)
        return (resized >= 0.5).float()


def _object_ids(obj_ids: Any) -> list[int]:
    """Return one id or several, which may be of NumPy or torch, as a list of numbers."""
    listed: Any = obj_ids.tolist() if isinstance(obj_ids, (Tensor, np.ndarray, np.generic)) else obj_ids
    values = [listed] if isinstance(listed, int) else listed
    return [int(value) if isinstance(value, (Tensor, np.integer)) else value for value in values]


def _as_points(prompts: BatchFeature, objects: int) -> tuple[Tensor, Tensor]:
    """Return points [1, P, N, 2] and labels [1, P, N] of prompts; a box is two points of labels 2 and 3 before them."""
    points = prompts.get("input_points", torch.zeros(1, objects, 0, 2))
    labels = prompts.get("input_labels", torch.zeros(1, objects, 0, dtype=torch.int64))
    if "input_boxes" in prompts:
        corners = prompts["input_boxes"].unflatten(-1, (2, 2))  # [1, P, 2, 2]
        points = torch.cat((corners, points), dim=2)
        labels = torch.cat((torch.tensor((2, 3)).expand(1, objects, 2), labels), dim=2)
    return points, labels


def _as_videos(videos: Any) -> list[Any]:
    """Return a list of videos from one video or several."""
    if isinstance(videos, (str, Path, bytes)):
        raise InputError(
            "videos: expected frames, got a path. Pass [image for _, _, image in VideoReader(path)], with VideoReader "
            'of vitruvian.files.video, or use pipeline("track"), which takes paths.'
        )
    if isinstance(videos, (list, tuple)):
        if not len(videos):
            raise InputError("videos: expected at least one frame, got an empty list.")
        first = videos[0]
        is_frame = isinstance(first, (Image.Image, str, Path, bytes)) or getattr(first, "ndim", 0) in (2, 3)
        return [videos] if is_frame else list(videos)
    return list(videos) if getattr(videos, "ndim", 0) == 5 else [videos]


def _check_frame(session: Sam2VideoInferenceSession, frame_idx: int) -> None:
    """Raise `InputError` for a prompt on a frame that the video does not have, or that was dropped."""
    count, stored = session.num_frames or 0, session.processed_frames or {}
    if frame_idx < 0 or (not session.is_streaming and frame_idx not in stored):
        raise InputError(f"frame_idx: expected a frame of the video, 0 to {count - 1}, got {frame_idx}.")
    if not session.options.keep_history and frame_idx < count and frame_idx not in stored:
        raise InputError(
            f"frame_idx: expected a frame from {min(stored, default=count)} on, since those before are not stored, got "
            f"{frame_idx}. Start the session with keep_history=True to keep them."
        )
