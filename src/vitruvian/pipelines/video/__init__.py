"""Videos and cameras: one loop that tracks, smooths, draws and records."""

from __future__ import annotations

from vitruvian.pipelines.video.loop import VideoReport, VideoTask, pipeline_task, run_video

__all__ = ["VideoReport", "VideoTask", "pipeline_task", "run_video"]
