"""Videos and cameras: people are tracked, results smoothed over time, drawn and recorded; stopped runs resume."""

from __future__ import annotations

from vitruvian.pipelines.video.loop import (
    FrameProcessor,
    VideoOptions,
    VideoReport,
    frame_processor,
    run_video,
    run_video_range,
    split_video,
)
from vitruvian.pipelines.video.people_tracking import PersonTracker

__all__ = [
    "FrameProcessor",
    "PersonTracker",
    "VideoOptions",
    "VideoReport",
    "frame_processor",
    "run_video",
    "run_video_range",
    "split_video",
]
