"""Jobs on a Ray cluster: many sources, several workers, results as Parquet shards, tar shards or files.

`run_on_ray` runs a task on folders, globs, lists, Parquet files and tars; `map_dataset` maps a task over a
`ray.data.Dataset`. Ray schedules processes and moves data. This package lists sources, divides them into chunks, writes
results and resumes interrupted jobs.

Names are imported when they are used: processes that read and write do not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitruvian.scale.dataset import map_dataset
    from vitruvian.scale.job import JobSummary, run_on_ray
    from vitruvian.scale.ray_pipeline import RayPipeline
    from vitruvian.scale.worker import PipelineSpec

__all__ = ["JobSummary", "PipelineSpec", "RayPipeline", "map_dataset", "run_on_ray"]

_MODULES = {
    "JobSummary": "job",
    "PipelineSpec": "worker",
    "RayPipeline": "ray_pipeline",
    "map_dataset": "dataset",
    "run_on_ray": "job",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"vitruvian.scale.{_MODULES[name]}"), name)
