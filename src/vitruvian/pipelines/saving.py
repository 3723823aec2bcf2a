"""The option `save` of pipelines: what is done with each result in the background."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vitruvian.files import write_image
from vitruvian.files.output_paths import PathPattern
from vitruvian.pipelines.sources import FrameLoader, Source
from vitruvian.results.base import Result
from vitruvian.tasks import PLOTS


class ResultWriter(ABC):
    """Writes results; `write` is called in background threads, in any order."""

    def announce(self, name: str, index: int) -> None:  # noqa: B027 - most writers need not know
        """Take note of a source, in order and before its result."""

    @abstractmethod
    def write(self, result: Result, index: int) -> None:
        """Write the result of the source that is number `index`."""


class _FunctionWriter(ResultWriter):
    """Calls a function with each result."""

    def __init__(self, function: Callable[[Result], object]) -> None:
        self._function = function

    def write(self, result: Result, index: int) -> None:
        self._function(result)


class _PatternWriter(ResultWriter):
    """Saves each result under the name of its source; names that repeat get a number."""

    def __init__(self, pattern: str | Path) -> None:
        self._paths = PathPattern(pattern)

    def announce(self, name: str, index: int) -> None:
        self._paths.announce(name, index)

    def write(self, result: Result, index: int) -> None:
        result.save(self._paths.path(str(result.source or "array"), index, result.frame or 0))


def save_as(kind: str, result: Result, path: Path, *, draw: Callable[[Result], Any]) -> None:
    """Write a result as one kind of file: with `draw` if it is a drawing, else by the ending of the path."""
    if kind in PLOTS:
        write_image(path, np.asarray(draw(result)))
    else:
        result.save(path)


def result_writer(save: Callable[[Result], object] | str | Path | ResultWriter | None) -> ResultWriter | None:
    """Return the writer that the option `save` of a pipeline stands for."""
    if save is None or isinstance(save, ResultWriter):
        return save
    return _FunctionWriter(save) if callable(save) else _PatternWriter(save)


def announced(source: Source, writer: ResultWriter | None) -> Source:
    """Return a source that announces each of its images to a writer."""
    if writer is None:
        return source

    def loaders() -> Iterator[FrameLoader]:
        for index, loader in enumerate(source.loaders()):
            writer.announce(loader.name, index)
            yield loader

    return Source(loaders, single=source.single, count=source.count, video=source.video, live=source.live)
