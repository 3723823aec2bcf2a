"""What a result is made of, checked: arrays of the right type and shape, sizes, names."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitruvian.errors import InputError


def check_array(name: str, value: Any, *, dtype: type[np.generic], shape: tuple[int | str, ...]) -> None:
    """Raise `InputError` unless `value` is a numpy array of this type and shape.

    A number in `shape` must be met; a letter stands for any length, the same one wherever it appears.
    """
    wanted = f"a numpy array of {np.dtype(dtype).name} and shape [{', '.join(map(str, shape))}]"
    if not isinstance(value, np.ndarray):
        raise InputError(f"{name}: expected {wanted}, got {type(value).__name__}. Convert it with numpy.asarray.")
    if value.dtype != dtype:
        raise InputError(
            f"{name}: expected {wanted}, got {value.dtype.name} {list(value.shape)}. "
            f"Convert it with {name}.astype(numpy.{np.dtype(dtype).name})."
        )
    lengths: dict[str, int] = {}
    fits = value.ndim == len(shape) and all(
        length == (lengths.setdefault(side, length) if isinstance(side, str) else side)
        for side, length in zip(shape, value.shape, strict=True)
    )
    if not fits:
        raise InputError(f"{name}: expected {wanted}, got the shape {list(value.shape)}. Is it of this picture?")


def check_size(size_hw: Any) -> None:
    """Raise `InputError` unless this is a (height, width) of at least 1×1."""
    numbers = isinstance(size_hw, tuple) and len(size_hw) == 2 and all(isinstance(side, int) for side in size_hw)
    if not numbers or min(size_hw) < 1:
        raise InputError(f"size_hw: expected (height, width) of at least 1×1 as whole numbers, got {size_hw!r}.")


def check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Raise `InputError` unless `value` is one of `known`."""
    if value not in known:
        raise InputError(f"{name}: expected one of {', '.join(map(repr, known))}, got {value!r}.")
