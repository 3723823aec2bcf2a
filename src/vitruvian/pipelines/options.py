"""Options that all pipelines share, and how the options of one call replace those of a pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from torch import Tensor

from vitruvian.errors import InputError, near_matches
from vitruvian.pipelines.engine.batches import BatchSize
from vitruvian.pipelines.engine.runner import BATCH_TIMEOUT, Errors
from vitruvian.pipelines.saving import ResultWriter

OptionsT = TypeVar("OptionsT", bound="Options")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every pipeline, set when it is opened or for one call.

    Args:
        batch_size: Number of inputs (images, people or tiles) in a batch. "auto" chooses by device, and halves the
            batch when memory runs out.
        workers: Background threads that load, preprocess, postprocess and save; by default 2 to 4, and with a model on
            a CUDA device half the cores, up to 8.
        errors: With many images, "keep" returns a `Failure` in place of a result that fails, "raise" stops there.
        save: What to do with each result in the background: a function that takes it, or a file name with ``{stem}``
            (and ``{frame}`` for videos) in it, such as ``"out/{stem}.png"``.
        keep_image: Whether results hold their source image, which `plot` draws on.
        batch_timeout: Seconds to wait for more images of a slow source before a partial batch runs.
        optimize: Whether to call `Model.optimize` first. "auto" does on a CUDA device. The model stays optimized.
    """

    aliases: ClassVar[dict[str, str]] = {"patience": "batch_timeout"}  # earlier name -> name
    exclusive: ClassVar[tuple[str, ...]] = ()  # options of which one in a call replaces the others of the pipeline

    batch_size: int | Literal["auto"] = "auto"
    workers: int | None = None
    errors: Errors = "keep"
    save: Callable[[Any], object] | str | Path | ResultWriter | None = None
    keep_image: bool = True
    batch_timeout: float = BATCH_TIMEOUT
    optimize: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.errors not in ("keep", "raise"):
            raise InputError(f'errors: expected "keep" or "raise", got {self.errors!r}.')
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers: expected at least 1, got {self.workers}.")
        if self.optimize not in (True, False, "auto"):
            raise InputError(f'optimize: expected True, False or "auto", got {self.optimize!r}.')
        if self.batch_size != "auto":
            BatchSize(self.batch_size, fixed=True)


def replace_options(options: OptionsT, changes: Mapping[str, object]) -> OptionsT:
    """Return options with changes.

    Raises:
        InputError: There is no such option, or it has no such value.
    """
    known = [field.name for field in dataclasses.fields(options)]
    renamed: dict[str, Any] = {}
    for name, value in changes.items():
        new = options.aliases.get(name, name)
        if new not in renamed or value not in (None, "crop"):  # people="crop" beside finder=…
            renamed[new] = value
    if any(renamed.get(name) is not None for name in options.exclusive):
        renamed = dict.fromkeys(options.exclusive) | renamed
    for name in renamed:
        if name not in known:
            raise InputError(f"{name}: no such option.{near_matches(name, known)} Options are {', '.join(known)}.")
    return dataclasses.replace(options, **renamed) if renamed else options


def nesting_depth(values: object) -> int:
    """Return the number of dimensions of an array, or the levels of nested lists."""
    if isinstance(values, np.ndarray | Tensor):
        return values.ndim
    if isinstance(values, list | tuple):
        return 1 + max((nesting_depth(one) for one in values), default=0)
    return 0
