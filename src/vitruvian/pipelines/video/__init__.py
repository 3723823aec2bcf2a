"""Videos and cameras: people are tracked, results smoothed over time, drawn and recorded; stopped runs resume."""

from __future__ import annotations

from vitruvian.pipelines.video.loop import (
    FrameProcessor,
    VideoOptions,
    VideoReport,
    pipeline_task,
    run_video,
    run_video_part,
    split_video,
)
from vitruvian.pipelines.video.person_tracking import PersonTracker

__all__ = [
    "FrameProcessor",
    "PersonTracker",
    "VideoOptions",
    "VideoReport",
    "pipeline_task",
    "run_video",
    "run_video_part",
    "split_video",
]
