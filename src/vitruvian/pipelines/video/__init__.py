"""Videos and cameras: people are tracked, results smoothed over time, drawn and recorded; stopped runs resume."""

from __future__ import annotations

from vitruvian.pipelines.video.loop import VideoReport, VideoTask, pipeline_task, run_video

__all__ = ["VideoReport", "VideoTask", "pipeline_task", "run_video"]
