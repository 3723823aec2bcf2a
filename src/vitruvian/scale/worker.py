"""The model processes of a cluster: a pipeline that makes rows of the images of a chunk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vitruvian.errors import VitruvianError
from vitruvian.filesystem.atomic import sync_to_disk
from vitruvian.limits import Limits, get_limits, set_limits
from vitruvian.pipelines import Failure, pipeline
from vitruvian.pipelines.output_options import OutputOptions
from vitruvian.pipelines.save_option import ResultWriter, encode_as
from vitruvian.pipelines.sources import Frame, FrameLoader, Source, open_source
from vitruvian.results import Result
from vitruvian.scale.rows import Row, failure_row, rows_to_table
from vitruvian.scale.sources import SourceItem
from vitruvian.tasks import PLOTS, find_task

if TYPE_CHECKING:
    import pyarrow as pa

Encoder = Callable[[Result], dict[str, bytes]]  # returns the bytes of each file format
Runner = Callable[[Source, ResultWriter], Any]  # runs a pipeline, as `TaskPipeline.run` does


class RunnerSpec(Protocol):
    """What a worker needs to open a pipeline. Ray pickles it and sends it to other machines."""

    def open_runner(self) -> Runner:
        """Load the model, and return the function that runs the pipeline."""


@dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """A task, its model and its options: a `RunnerSpec`.

    Attributes:
        task: Name of the task.
        model: Name of a checkpoint that every machine can open, or None for the default.
        device: Device of the model; by default the GPU of the worker, if it has one.
        dtype: Data type of the weights.
        options: Options of the pipeline and of its calls.
        limits: Limits of inputs, those of this process by default.
    """

    task: str
    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    limits: Limits = field(default_factory=get_limits)

    def open_runner(self) -> Runner:
        """Open the pipeline in this process."""
        set_limits(**dataclasses.asdict(self.limits))
        pipe = pipeline(self.task, self.model, device=self.device, dtype=self.dtype, **self.options)
        return lambda source, save: pipe.run(source, save=save)


@dataclass(frozen=True)
class FileEncoder:
    """Encodes results as files, by default those that `Result.save` writes."""

    formats: tuple[str, ...]
    output: OutputOptions = field(default_factory=OutputOptions)

    def __call__(self, result: Result) -> dict[str, bytes]:
        """Return the bytes of each file format."""
        converted = self.output.convert(result)
        return {name: encode_as(name, converted, draw=self.output.draw) for name in self.formats}


def default_formats(task: str) -> tuple[str, ...]:
    """Return the file formats in rows by default: JSON, and what the task writes without drawings."""
    return with_json(find_task(task).default_image_formats)


def with_json(formats: Iterable[str]) -> tuple[str, ...]:
    """Return JSON and those of the file formats that are no drawings, each once."""
    return tuple(dict.fromkeys(("json", *(name for name in formats if name not in PLOTS))))


class PipelineWorker:
    """A pipeline that processes chunks, in an actor of Ray."""

    def __init__(self, spec: RunnerSpec, encode: Encoder, formats: Sequence[str]) -> None:
        self._run, self._encode, self._formats = spec.open_runner(), encode, tuple(formats)

    def process(self, items: Sequence[SourceItem], contents: Sequence[bytes | VitruvianError]) -> list[Row]:
        """Return a row for each image, in order."""
        writer = _RowWriter(self._encode, items)
        loaders = [_loader(item, content) for item, content in zip(items, contents, strict=True)]
        source = Source(lambda: iter(loaders), count=len(loaders))
        with self._run(source, writer) as results:
            return [
                failure_row(item, result.message)
                if isinstance(result, Failure)
                else _result_row(item, result, writer.files.pop(index))
                for index, (item, result) in enumerate(zip(items, _without_images(results), strict=True))
            ]

    def process_table(self, items: Sequence[SourceItem], contents: Sequence[bytes | VitruvianError]) -> pa.Table:
        """Return the rows as an Arrow table."""
        return rows_to_table(self.process(items, contents), self._formats)


class _RowWriter(ResultWriter):
    """Encodes results, or writes their files, in the background threads of the pipeline."""

    def __init__(self, encode: Encoder, items: Sequence[SourceItem]) -> None:
        self._encode, self._items = encode, items
        self.files: dict[int, dict[str, bytes]] = {}

    def write(self, result: Result, index: int) -> None:
        """Encode one result."""
        path = self._items[index].output
        if path is not None:
            result.save(path)
            sync_to_disk([Path(path)])
        self.files[index] = self._encode(result)


def _without_images(results: Any) -> Iterator[Result | Failure]:
    """Drop source images, so that a chunk does not hold all of them."""
    for result in results:
        yield result if isinstance(result, Failure) else result.without_image()


def _result_row(item: SourceItem, result: Result, files: dict[str, bytes]) -> Row:
    height, width = result.size_hw
    return Row(
        source=item.name,
        source_size=item.size,
        source_mtime_ns=item.mtime_ns,
        status="done",
        height=height,
        width=width,
        files=files,
    )


def _loader(item: SourceItem, content: bytes | VitruvianError) -> FrameLoader:
    """Return the loader of an image in memory, with the name of its source."""

    def load() -> Frame:
        if isinstance(content, VitruvianError):
            raise content
        frame = next(open_source(bytes(content)).loaders()).load()
        return dataclasses.replace(frame, name=item.name)

    return FrameLoader(name=item.name, load=load)


def as_image_bytes(value: object) -> bytes:
    """Return the bytes of an image in a row of a dataset: bytes, or an array as PNG."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    import io

    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.asarray(value)).save(stream, "PNG", compress_level=1)
    return stream.getvalue()
