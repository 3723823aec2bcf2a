"""Caches of values that are computed from weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


class WeightCache(Generic[T]):
    """A value that is computed from weights, and again after they change. Copies and pickles are empty."""

    def __init__(self) -> None:
        self._value: T | None = None
        self._versions: list[tuple[int, int]] = []

    def __reduce__(self) -> tuple[object, ...]:
        return WeightCache, ()

    def get(self, weights: Sequence[Tensor], compute: Callable[[], T]) -> T:
        """Return the value for the present state of `weights`."""
        # Inference tensors count no versions, and cannot be modified outside of inference mode.
        versions = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
        if self._value is None or versions != self._versions:
            self._value, self._versions = compute(), versions
        return self._value
