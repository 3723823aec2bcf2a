"""Jobs on a Ray cluster: many sources, several workers, results as Parquet shards, tar shards or files.

`run_on_ray` runs a task on folders, globs, lists, Parquet files and tars; `map_dataset` maps a task over a
`ray.data.Dataset`. Ray schedules processes and moves data. This package lists sources, divides them into chunks, writes
results and resumes interrupted jobs.
"""

from vitruvian.scale.dataset import map_dataset
from vitruvian.scale.job import JobSummary, run_on_ray
from vitruvian.scale.worker import PipelineSpec

__all__ = ["JobSummary", "PipelineSpec", "map_dataset", "run_on_ray"]
