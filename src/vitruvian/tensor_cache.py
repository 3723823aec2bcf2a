"""Caches: constant tensors (positions, masks, index tables) by arguments, and values that are computed from weights."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_held: ContextVar[list[object] | None] = ContextVar("_held", default=None)


def cached_tensors(build: Callable[P, R], *, maxsize: int = 64) -> Callable[P, R]:
    """Cache what `build` returns for its last `maxsize` arguments, which must be hashable.

    While torch compiles or exports, `build` runs on each call, since its tensors belong to the graph. Otherwise it
    creates ordinary tensors even inside `torch.inference_mode`, so that training can use them later.
    """
    cache = functools.lru_cache(maxsize=maxsize)(build)

    @functools.wraps(build)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return build(*args, **kwargs)
        with torch.inference_mode(False):
            value = cache(*args, **kwargs)  # type: ignore[arg-type]
        held = _held.get()
        if held is not None:
            held.append(value)
        return value

    return call


@cached_tensors
def constant(values: tuple[object, ...], device: torch.device) -> Tensor:
    """Return numbers, or rows of numbers, as a tensor on the device. A copy on each call would synchronize it."""
    return torch.tensor(values, device=device)


@contextmanager
def keep_alive() -> Iterator[list[object]]:
    """Collect what cached functions return within this context.

    A CUDA graph reads those tensors on every replay, long after the cache may have dropped them.
    """
    held: list[object] = []
    token = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(token)


class WeightCache(Generic[T]):
    """A value that is computed from weights, and again after they change. Copies and pickles are empty."""

    def __init__(self) -> None:
        self._value: T | None = None
        self._weights: list[weakref.ref[Tensor]] = []  # another tensor may take the memory of one that is gone
        self._versions: list[tuple[int, int]] = []

    def __reduce__(self) -> tuple[object, ...]:
        return WeightCache, ()

    def get(self, weights: Sequence[Tensor], compute: Callable[[], T]) -> T:
        """Return the value for the present state of `weights`."""
        # Inference tensors count no versions, and cannot be modified outside of inference mode.
        versions = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
        same = versions == self._versions and all(map(operator.is_, weights, (ref() for ref in self._weights)))
        if self._value is None or not same:
            self._value, self._versions, self._weights = (
                compute(),
                versions,
                [weakref.ref(weight) for weight in weights],
            )
        return self._value
