"""Options of automatic masks and of video sessions. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vitruvian.errors import InputError, check_names

MAX_CROP_LAYERS = 4  # the fourth has 256 crops


@dataclass(frozen=True)
class AutomaticMaskOptions:
    """Options of automatic masks, with the names of the mask-generation pipeline.

    Args:
        points_per_crop: Points along each side of the grid.
        points_per_batch: Points that are decoded together; None for all of a crop.
        pred_iou_thresh: Predicted IoU that a mask must exceed.
        stability_score_thresh: IoU that a mask must exceed between a higher and a lower threshold.
        stability_score_offset: Distance of these thresholds from `mask_threshold`.
        mask_threshold: Logit above which a pixel is on the object.
        crops_n_layers: Layers of crops beside the whole image; layer n has 4ⁿ crops.
        crop_overlap_ratio: Overlap of the crops of the first layer over the shorter side of the image.
        crop_n_points_downscale_factor: In layer n the grid has fewer points a side by this factor to the n.
        crops_nms_thresh: Box IoU above which the worse of two masks is dropped.
        mask_nms_thresh: The same for the IoU of the masks; None to compare boxes only.
        max_hole_area: Fill holes of up to this many pixels.
        max_sprinkle_area: Remove islands of up to this many pixels.
        output_rle_mask: Store run lengths rather than pixels.
    """

    points_per_crop: int = 32
    points_per_batch: int | None = 64
    pred_iou_thresh: float = 0.88
    stability_score_thresh: float = 0.95
    stability_score_offset: float = 1.0
    mask_threshold: float = 0.0
    crops_n_layers: int = 0
    crop_overlap_ratio: float = 512 / 1500
    crop_n_points_downscale_factor: int = 1
    crops_nms_thresh: float = 0.7
    mask_nms_thresh: float | None = None
    max_hole_area: float = 0.0
    max_sprinkle_area: float = 0.0
    output_rle_mask: bool = False

    def __post_init__(self) -> None:
        minimum = {"points_per_crop": 1, "points_per_batch": 1, "crop_n_points_downscale_factor": 1}
        minimum |= {"crops_n_layers": 0, "max_hole_area": 0, "max_sprinkle_area": 0, "stability_score_offset": 0}
        for name, lowest in minimum.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise InputError(f"{name}: expected at least {lowest}, got {value}.")
        if self.crops_n_layers > MAX_CROP_LAYERS:
            raise InputError(
                f"crops_n_layers: expected at most {MAX_CROP_LAYERS}, got {self.crops_n_layers}: its last layer would "
                f"have {4**self.crops_n_layers} crops."
            )
        if not 0 <= self.crop_overlap_ratio < 1:
            raise InputError(f"crop_overlap_ratio: expected 0 up to 1, got {self.crop_overlap_ratio}.")


@dataclass(frozen=True)
class Sam2SessionOptions:
    """What a session does other than transformers; everything is off by default.

    Args:
        prior_logits: Give the last mask of a frame, clamped to ±32, to the decoder with further points, as the original
            implementation does.
        corrections_as_conditioning: Apply prompts on the frame that they are for, and make every prompted frame a
            conditioning frame, so that a later propagation does not undo a correction.
        independent_objects: Do not let the prompt of one object change the memory and the direction of the others.
        objects_start_at_prompt: Do not track an object on frames before its first prompt was applied. Its mask is
            empty there.
        ignore_padding: Do not count padding of a batch of prompts as points.
        max_hole_area: Fill holes of up to this many pixels of the small masks [h, w].
        max_sprinkle_area: Remove islands of up to this many pixels of the small masks.
        non_overlapping_masks: Assign each pixel of the results to the object with the highest logit only; also after
            they are resized.
        non_overlapping_memory: The same for the masks that are encoded to memory.
        clear_memory_around_prompts: Drop memories of tracked frames near a prompt, which may show the old mask.
        max_cond_frame_num: Attend to the memories of at most so many conditioning frames of an object, the closest; by
            default as the configuration of the model says, whose default is all. Without `keep_history`, others are
            dropped.
        keep_history: Keep all frames and outputs. Without it, streamed frames and outputs that the model does not
            attend to any more are dropped, and memory does not grow with the length of the video.
        history_folder: Keep streamed frames, masks and memories in temporary files of this folder, not in main memory.
    """

    prior_logits: bool = False
    corrections_as_conditioning: bool = False
    independent_objects: bool = False
    objects_start_at_prompt: bool = False
    ignore_padding: bool = False
    max_hole_area: float = 0.0
    max_sprinkle_area: float = 0.0
    non_overlapping_masks: bool = False
    non_overlapping_memory: bool = False
    clear_memory_around_prompts: bool = False
    max_cond_frame_num: int | None = None
    keep_history: bool = True
    history_folder: Path | str | None = None

    def __post_init__(self) -> None:
        if self.max_cond_frame_num is not None and self.max_cond_frame_num < 1:
            raise InputError(f"max_cond_frame_num: expected at least 1, got {self.max_cond_frame_num}.")
        if self.history_folder is not None and not self.keep_history:
            raise InputError("history_folder: requires keep_history=True. Add it, or leave the folder out.")

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> Sam2SessionOptions:
        """Build options; raise `InputError` for unknown names."""
        check_names("options", keywords, [field.name for field in fields(cls)])
        return cls(**keywords)
