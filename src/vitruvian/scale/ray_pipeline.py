"""`pipeline(…).on_ray(…)`: a pipeline whose calls run on a cluster."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vitruvian.errors import InputError
from vitruvian.pipelines import pipeline_class
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.scale.job import JobSummary, run_on_ray
from vitruvian.scale.worker import PipelineSpec


@dataclass(frozen=True, kw_only=True)
class RayPipeline:
    """A pipeline on a cluster; `TaskPipeline.on_ray` makes one.

    Attributes:
        spec: The task, its model and its options.
        cluster: Arguments of `run_on_ray` about the cluster.
    """

    spec: PipelineSpec
    cluster: dict[str, Any]

    @classmethod
    def of(cls, pipe: TaskPipeline[Any, Any], **cluster: Any) -> RayPipeline:
        """Return the pipeline that opens the same checkpoint with the same options in each worker."""
        if pipe.open_options is None:
            raise InputError("on_ray: expected a pipeline that was opened by the name of a checkpoint, got a model.")
        defaults = type(pipe.options)()
        changed = {
            field.name: getattr(pipe.options, field.name)
            for field in fields(pipe.options)
            if getattr(pipe.options, field.name) is not getattr(defaults, field.name)
        }
        named = dict(pipe.open_options)
        model, device, dtype = named.pop("model"), named.pop("device"), named.pop("dtype")
        local = isinstance(model, Path) or os.path.exists(os.path.expanduser(str(model)))
        spec = PipelineSpec(
            task=pipe.task,
            model=os.path.abspath(os.path.expanduser(str(model))) if local else str(model),
            device=None if device is None else str(device),
            dtype=None if dtype is None else str(dtype).removeprefix("torch."),
            options=changed | named,
        )
        return cls(spec=spec, cluster=cluster)

    def __call__(
        self,
        sources: str | Path | Sequence[str | Path],
        *,
        save: str | Path,
        formats: Sequence[str] | None = None,
        overwrite: bool = False,
        retry_failed: bool = False,
        **options: object,
    ) -> JobSummary:
        """Process all sources and write the results. A second call resumes.

        Args:
            sources: Folders, globs, lists, Parquet files and tars, see `vitruvian.scale.sources`. Folders inside
                folders are left out, as in other calls of pipelines.
            save: A file name with ``{stem}`` in it, such as ``"out/{stem}.png"``, as other calls take it; or a folder
                or URI for shards.
            formats: File formats in shards, each a column; by default JSON and what the task writes.
            overwrite: Whether to remove the results that are there first.
            retry_failed: Whether to process sources again that failed before.
            options: Options of the task for this call.
        """
        named = [sources] if isinstance(sources, str | Path) else sources
        pipeline_class(self.spec.task).check_options(options)
        return run_on_ray(
            dataclasses.replace(self.spec, options=dict(self.spec.options) | options),
            [os.fspath(source) for source in named],
            save,
            formats=formats,
            overwrite=overwrite,
            retry_failed=retry_failed,
            recursive=False,
            **self.cluster,
        )
