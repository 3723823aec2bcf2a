"""The memory bank of a video model: which memories and object pointers an object attends to, as batches of objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from vitruvian.cuda.pinned_copy import pinned_copy
from vitruvian.models.sam2.configuration import Sam2VideoConfig
from vitruvian.models.sam2.object_plans import ObjectPlan
from vitruvian.models.sam2.video_session import CONDITIONING, TRACKED, Sam2VideoInferenceSession


class Memories(NamedTuple):
    """What an object attends to.

    Attributes:
        frames: Distance in frames (0 for conditioning frames) and memory [h·w, 1, C'] of frames.
        pointers: Distance in frames and object pointer [1, 1, C] of frames.
    """

    frames: list[tuple[int, Tensor]]
    pointers: list[tuple[int, Tensor]]


def find_memories(
    session: Sam2VideoInferenceSession, plan: ObjectPlan, frame_idx: int, config: Sam2VideoConfig, *, pointers: int
) -> Memories:
    """Find what an object attends to in a frame.

    These are memories of the closest conditioning frames and of the last `num_maskmem` - 1 frames, object pointers of
    past conditioning frames, and those of tracked frames fewer than `pointers` frames away. With the session's option
    `max_cond_frame_num`, pointers of conditioning frames that are not among the closest count like those of tracked
    frames, as in the original.
    """
    limit = session.options.max_cond_frame_num
    sign = -1 if plan.reverse else 1
    outputs = session.output_dict_per_obj[plan.obj_idx]
    conditioning, tracked = outputs[CONDITIONING], outputs[TRACKED]
    selected = _closest(conditioning, frame_idx, config.max_cond_frame_num if limit is None else limit)
    recent = {frame: out for frame, out in conditioning.items() if frame not in selected} | tracked
    found = [(0, conditioning[frame]) for frame in conditioning if frame in selected]
    for distance in range(config.num_maskmem - 1, 0, -1):
        out = recent.get(frame_idx - sign * distance)
        found += [] if out is None else [(distance, out)]
    past = [
        (distance, out)
        for frame, out in conditioning.items()
        if (distance := sign * (frame_idx - frame)) >= 0 and (limit is None or frame in selected or distance < pointers)
    ]
    for distance in range(1, pointers):
        out = tracked.get(frame_idx - sign * distance)
        past += [] if out is None else [(distance, out)]
    return Memories(
        frames=[(distance, out["maskmem_features"]) for distance, out in found if "maskmem_features" in out],
        pointers=[(distance, out["object_pointer"]) for distance, out in past],
    )


def join_frames(memories: list[Memories], features: Tensor) -> Tensor | None:
    """Join the memories of T frames of O objects [O, T·M, C']; None if T is 0."""
    frames = [memory for selected in memories for _, memory in selected.frames]
    if not frames:
        return None
    joined = torch.cat([memory.to(features.device, non_blocking=True) for memory in frames])  # [O·T·M, 1, C']
    return torch.unflatten(joined[:, 0], 0, (len(memories), -1))


def join_pointers(memories: list[Memories], features: Tensor, limit: int) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Join N object pointers of O objects [O, N, C], with their distances relative to the limit [O, N]."""
    pointers = [pointer for selected in memories for _, pointer in selected.pointers]
    if not pointers:
        return None, None
    joined = torch.cat([pointer.to(features.device) for pointer in pointers], dim=1)  # [1, O·N, C]
    times = torch.tensor([[distance for distance, _ in selected.pointers] for selected in memories]) / max(1, limit - 1)
    return torch.unflatten(joined[0], 0, (len(memories), -1)), pinned_copy(times, features.device)


def _closest(frames: Iterable[int], frame_idx: int, limit: int) -> set[int]:
    """Select up to `limit` frames (-1 for all): the last before, the first at or after, then the closest others."""
    by_distance = sorted(frames, key=lambda frame: abs(frame - frame_idx))
    if limit == -1 or len(by_distance) <= limit:
        return set(by_distance)
    before = [frame for frame in by_distance if frame < frame_idx][:1]
    after = [frame for frame in by_distance if frame >= frame_idx][:1]
    neighbors = sorted(before + after, key=by_distance.index)
    return set([*neighbors, *(frame for frame in by_distance if frame not in neighbors)][:limit])
