"""Keep small constant tensors (positions, masks, index tables) between calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
HOLDER: ContextVar[list[Any] | None] = ContextVar("HOLDER", default=None)


def kept(build: Callable[P, R], *, most: int = 64) -> Callable[P, R]:
    """Remember what `build` returned for its last `most` arguments, which must be hashable.

    While torch compiles or exports, `build` runs each time: its tensors belong to the graph. Outside, they are made
    as ordinary tensors even inside `torch.inference_mode`, so that training may use them later.
    """
    remembered = functools.lru_cache(maxsize=most)(build)

    @functools.wraps(build)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return build(*args, **kwargs)
        with torch.inference_mode(False):
            found = remembered(*args, **kwargs)  # type: ignore[arg-type]
        holder = HOLDER.get()
        if holder is not None:
            holder.append(found)
        return found

    return call


@kept
def constant(values: tuple[Any, ...], device: torch.device) -> torch.Tensor:
    """Return a few numbers, or rows of them, as a tensor that is on the device: to copy them makes the host wait."""
    return torch.tensor(values, device=device)


@contextmanager
def holding() -> Iterator[list[Any]]:
    """Collect what `kept` functions give meanwhile: a recorded graph reads it long after they may have forgotten it."""
    holder: list[Any] = []
    token = HOLDER.set(holder)
    try:
        yield holder
    finally:
        HOLDER.reset(token)
