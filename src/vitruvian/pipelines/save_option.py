"""The option `save` of pipelines, and writing of results as files or bytes of a format."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitruvian.files import write_image
from vitruvian.filesystem.json_files import json_text
from vitruvian.filesystem.output_paths import PathPattern
from vitruvian.pipelines.sources import FrameLoader, Source
from vitruvian.results.base import Result
from vitruvian.tasks import PLOTS, file_extension

_Write = Callable[[Any, int], object]  # takes a result and the index of its source


class ResultWriter(ABC):
    """Writes results; `write` is called in background threads, in any order."""

    @abstractmethod
    def write(self, result: Result, index: int) -> None:
        """Write the result of the source that is number `index`."""


def save_as(file_format: str, result: Result, path: Path, *, draw: Callable[[Result], Any], **options: Any) -> None:
    """Write a result as one file format: with `draw` if it is a drawing, else by `save` with these options."""
    if file_format in PLOTS:
        write_image(path, np.asarray(draw(result)))
    else:
        result.save(path, **options)


def encode_as(
    file_format: str, result: Result, *, draw: Callable[[Result], Any], folder: Path | None = None, **options: Any
) -> bytes:
    """Return the bytes of the file that `save_as` writes; `folder` is for temporary files."""
    if file_format == "json":
        return json_text(result.to_dict()).encode()
    with tempfile.TemporaryDirectory(prefix="vitruvian-", dir=folder) as temporary:
        path = Path(temporary) / f"result{file_extension(file_format)}"
        save_as(file_format, result, path, draw=draw, **options)
        return path.read_bytes()


def open_writer(
    save: Callable[[Any], object] | str | Path | ResultWriter | None, source: Source
) -> tuple[_Write | None, Source]:
    """Return the function that the option `save` stands for, and the source to run it with.

    With a pattern, the source announces each name in order, so that repeated names are numbered the same way in every
    run.
    """
    if save is None or isinstance(save, ResultWriter):
        return None if save is None else save.write, source
    if callable(save):
        return lambda result, _: save(result), source
    paths = PathPattern(save)

    def loaders() -> Iterator[FrameLoader]:
        for index, loader in enumerate(source.loaders()):
            paths.announce(str(loader.path or loader.name), index)
            yield loader

    def write(result: Result, index: int) -> None:
        result.save(paths.path(str(result.source or "array"), index, result.frame or 0))

    return write, replace(source, loaders=loaders)
