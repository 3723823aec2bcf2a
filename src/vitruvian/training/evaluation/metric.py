"""What all metrics share: a base class, and input checking for numpy arrays and torch tensors."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.types import Float64Array

Array = Tensor | npt.NDArray[Any]
Values = Array | Sequence[float] | Sequence[int] | Sequence[bool] | float
PerObject = Values | None  # a value for each object, or None for the default
Scores = TypeVar("Scores")


class Metric:
    """Base of metrics: `update` adds predictions and targets, `compute` returns the scores of all added so far.

    Attributes:
        merge_key: Names of the attributes that must be equal to merge. All others are state: numbers, arrays, lists,
            counters or `Averages`, which are added up.
    """

    merge_key: ClassVar[tuple[str, ...]] = ()

    def merge(self, other: Self) -> None:
        """Add what another instance has accumulated, for example in another process."""
        for name in self.merge_key:
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise InputError(f"other: metrics with different {name} cannot be merged: {ours!r} and {theirs!r}.")
        for name in vars(self).keys() - set(self.merge_key):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Averages:
    """Means of named numbers over images; holds sums and counts only."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.counts: Counter[str] = Counter()

    def add(self, values: Mapping[str, float]) -> None:
        """Add one number for each name."""
        self.counts.update(values.keys())
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def __add__(self, other: Averages) -> Averages:
        total = Averages()
        total.counts = self.counts + other.counts
        total.sums = {name: self.sums.get(name, 0.0) + other.sums.get(name, 0.0) for name in total.counts}
        return total

    def mean(self, name: str) -> float:
        """Return the mean of a number, NaN where there is none."""
        return self.sums[name] / self.counts[name] if name in self.sums else float("nan")

    def scores(self, cls: type[Scores]) -> Scores:
        """Return the means as a dataclass with one field for each, and `images`, their number."""
        names = [field.name for field in dataclasses.fields(cls) if field.name != "images"]  # type: ignore[arg-type]
        values: dict[str, Any] = {name: self.mean(name) for name in names}
        return cls(**values | {"images": self.counts[names[0]]})


def as_double(values: Array) -> Tensor:
    """Return values as a float64 tensor without gradient, on their device where that supports float64."""
    tensor = torch.as_tensor(values).detach()
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def as_maps(
    prediction: Array, target: Array, mask: Array | None, *, channels: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return predicted and true maps [B, C, H, W] in float64 and the mask [B, H, W], all on one device.

    Maps of one channel have the shape [..., H, W], of more [..., C, H, W]; the mask [..., H, W]. None is true
    everywhere.
    """
    target, predicted = as_double(target), as_double(prediction)
    min_ndim = 2 if channels == 1 else 3
    if target.ndim < min_ndim or (channels > 1 and target.shape[-3] != channels):
        expected = "[..., H, W]" if channels == 1 else f"[..., {channels}, H, W]"
        raise InputError(f"target: expected the shape {expected}, got {list(target.shape)}. Channels come before rows.")
    same_size = (
        predicted.ndim >= min_ndim and predicted.shape[-2:] == target.shape[-2:] and predicted.numel() == target.numel()
    )
    if not same_size or (channels > 1 and predicted.shape[-3] != channels):
        raise InputError(
            f"prediction: expected the shape of the target, {list(target.shape)}, got {list(predicted.shape)}. "
            + ("Channels come before rows." if same_size else "Resize it to the target's size first.")
        )
    target = target.reshape(-1, channels, *target.shape[-2:])  # [B, C, H, W]
    predicted = predicted.to(target.device).reshape(target.shape)  # [B, C, H, W]
    shape = (len(target), *target.shape[-2:])
    if mask is None:
        return predicted, target, torch.ones(shape, dtype=torch.bool, device=target.device)
    inside = torch.as_tensor(mask).detach().to(target.device)
    if inside.shape[-2:] != shape[-2:] or inside.numel() != int(np.prod(shape)):
        raise InputError(f"mask: expected the shape {list(shape)}, got {list(inside.shape)}. One value per pixel.")
    return predicted, target, inside.reshape(shape) > 0


def require_finite(name: str, values: Tensor) -> None:
    """Raise `InputError` for NaN and infinity: a broken prediction must not count as a good or a missing one."""
    if not bool(values.isfinite().all()):
        raise InputError(f"{name}: contains NaN or infinity where it counts.")


def as_row(
    name: str, values: PerObject, count: int, dtype: npt.DTypeLike, *, default: float | bool | None = None
) -> npt.NDArray[Any]:
    """Return values as an array [count] of a dtype; None is `default` everywhere."""
    if values is None:
        return np.full(count, default, dtype=dtype)
    array: npt.NDArray[Any] = torch.as_tensor(values).detach().cpu().numpy().astype(dtype).reshape(-1)
    if len(array) != count:
        raise InputError(f"{name}: expected one for each of the {count} objects, got {len(array)}.")
    return array


def ratio(part: npt.ArrayLike, whole: npt.ArrayLike) -> Float64Array:
    """Return part / whole, NaN where the whole is zero."""
    whole = np.asarray(whole, dtype=np.float64)
    result: Float64Array = np.full_like(whole, np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result


def nan_mean(values: Iterable[npt.ArrayLike]) -> float:
    """Return the mean over all numbers in arrays, leaving out NaN; NaN where nothing is left."""
    arrays = [np.ravel(value) for value in values]
    flat = np.concatenate(arrays) if arrays else np.zeros(0)
    flat = flat[~np.isnan(flat)]
    return float(flat.mean()) if len(flat) else float("nan")
