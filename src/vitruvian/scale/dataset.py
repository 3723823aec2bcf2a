"""`map_dataset`: a task over a `ray.data.Dataset` of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitruvian.scale.rows import rows_to_columns
from vitruvian.scale.sources import PATH_COLUMNS, SourceItem, choose_column, read_sources
from vitruvian.scale.worker import FileEncoder, PipelineSpec, PipelineWorker, as_image_bytes, default_formats

if TYPE_CHECKING:
    import numpy as np
    import ray.data


def map_dataset(
    dataset: ray.data.Dataset,
    task: str,
    *,
    model: str | None = None,
    column: str | None = None,
    formats: Sequence[str] | None = None,
    workers: int = 1,
    batch_size: int = 16,
    cpus_per_worker: float = 1.0,
    gpus_per_worker: float = 0.0,
    dtype: str | None = None,
    **options: object,
) -> ray.data.Dataset:
    """Map a task over the images of a dataset. Ray runs it, when the result is consumed.

    Args:
        dataset: A dataset with a column of image bytes, arrays or paths.
        task: Name of the task.
        model: Name of a checkpoint.
        column: Name of the column; by default the first of the usual names.
        formats: File formats, each a column of the result; by default JSON and what the task writes.
        workers: Number of workers with a model.
        batch_size: Rows that a worker processes together.
        cpus_per_worker: Cores for each worker.
        gpus_per_worker: GPUs for each worker, possibly a fraction.
        dtype: Data type of the weights.
        options: Options of the pipeline.

    Returns:
        The columns of the dataset without the images, and those of `vitruvian.scale.rows`.
    """
    chosen = choose_column(dataset.columns() or [], column, subject="dataset")
    formats = tuple(formats) if formats is not None else default_formats(task)
    spec = PipelineSpec(task=task, model=model, dtype=dtype, options=options)
    return dataset.map_batches(
        _DatasetWorker,
        fn_constructor_args=(spec, formats, chosen),
        batch_size=batch_size,
        concurrency=workers,
        num_cpus=cpus_per_worker,
        num_gpus=gpus_per_worker,
    )


class _DatasetWorker:
    """Processes batches of a dataset."""

    def __init__(self, spec: PipelineSpec, formats: Sequence[str], column: str) -> None:
        self._worker = PipelineWorker(spec, FileEncoder(tuple(formats)), formats)
        self._formats, self._column = formats, column

    def __call__(self, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        values = list(batch[self._column])
        if all(isinstance(value, str) for value in values):
            items = [SourceItem(value, value) for value in values]
            contents = read_sources(items)
        else:
            paths = next((batch[name] for name in PATH_COLUMNS if name in batch), range(len(values)))
            items = [SourceItem(str(path), str(path)) for path in paths]
            contents = [as_image_bytes(value) for value in values]
        rows = self._worker.process(items, contents)
        others = {name: values for name, values in batch.items() if name != self._column}
        return others | rows_to_columns(rows, self._formats)
