"""What all metrics share: reading numpy and torch alike, shares and means of what was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitruvian.errors import InputError

Array = Tensor | npt.NDArray[Any]


Floats = npt.NDArray[np.float64]


Bools = npt.NDArray[np.bool_]


class Averages:
    """Means of named numbers, one row a picture; remembers sums and counts only."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def add(self, values: Mapping[str, float]) -> None:
        """Add one number for each name."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def merge(self, other: Averages) -> None:
        """Add what another one has seen."""
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + other.counts[name]

    def mean(self, name: str) -> float:
        """Return the mean of a number, NaN where it was never seen."""
        return self.sums[name] / self.counts[name] if name in self.sums else float("nan")

    def count(self, name: str) -> int:
        """Return how often a number was seen."""
        return self.counts.get(name, 0)


def as_double(values: Any) -> Tensor:
    """Return values as a float64 tensor without gradient, on their device where that knows float64."""
    tensor = torch.as_tensor(values).detach()
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def read_maps(
    prediction: Array, target: Array, mask: Array | None, *, channels: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return predicted and true maps [B, C, H, W] in float64 and where to look [B, H, W], all on one device.

    Maps of one channel come as [..., H, W], of more as [..., C, H, W]; the mask as [..., H, W]. None looks everywhere.
    """
    truth, guess = as_double(target), as_double(prediction)
    least = 2 if channels == 1 else 3
    if truth.ndim < least or (channels > 1 and truth.shape[-3] != channels):
        wanted = "[..., H, W]" if channels == 1 else f"[..., {channels}, H, W]"
        raise InputError(f"target: expected the shape {wanted}, got {list(truth.shape)}. Channels come before rows.")
    shape = (-1, channels, *truth.shape[-2:])
    if guess.ndim < least or guess.shape[-2:] != truth.shape[-2:] or guess.numel() != truth.numel():
        raise InputError(
            f"prediction: expected the shape of the target, {list(truth.shape)}, got {list(guess.shape)}. "
            "Resize it to the target's size first."
        )
    if channels > 1 and guess.shape[-3] != channels:
        raise InputError(
            f"prediction: expected the shape of the target, {list(truth.shape)}, got {list(guess.shape)}. "
            "Channels come before rows."
        )
    truth = truth.reshape(shape)  # [B, C, H, W]
    guess = guess.to(truth.device).reshape(shape)  # [B, C, H, W]
    pixels = (len(truth), *truth.shape[-2:])
    return guess, truth, read_mask(mask, pixels, truth.device)


def read_mask(mask: Array | None, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a mask as bool of a shape [B, ..., H, W]; None is true everywhere."""
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=device)
    wanted = torch.as_tensor(mask).detach().to(device)
    if wanted.shape[-2:] != shape[-2:] or wanted.numel() != int(np.prod(shape)):
        raise InputError(f"mask: expected the shape {list(shape)}, got {list(wanted.shape)}. One value a pixel.")
    return wanted.reshape(shape) > 0


def check_finite(name: str, values: Tensor) -> None:
    """Refuse numbers that are none: a broken prediction must not pass as a good or a missing one."""
    if not bool(values.isfinite().all()):
        raise InputError(f"{name}: expected finite numbers where they count, got NaN or infinity. Mend the model.")


def as_array(name: str, values: Any, count: int, dtype: Any, *, default: Any = None) -> npt.NDArray[Any]:
    """Return values as an array [count] of a dtype."""
    if values is None:
        return np.full(count, default, dtype=dtype)
    array = torch.as_tensor(values).detach().cpu().numpy().astype(dtype).reshape(-1)
    if len(array) != count:
        raise InputError(f"{name}: expected one for each of the {count} objects, got {len(array)}.")
    return array


def share(part: npt.ArrayLike, whole: npt.ArrayLike) -> Floats:
    """Return part / whole, NaN where the whole is zero."""
    whole = np.asarray(whole, dtype=np.float64)
    result: Floats = np.full_like(whole, np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result


def mean_known(values: Sequence[Any] | Floats) -> float:
    """Return the mean over all numbers in arrays, leaving out NaN; NaN where nothing is left."""
    flat = np.concatenate([np.ravel(value) for value in values]) if len(values) else np.zeros(0)
    flat = flat[~np.isnan(flat)]
    return float(flat.mean()) if len(flat) else float("nan")


def same_settings(ours: object, theirs: object, *names: str) -> None:
    """Refuse to merge metrics that were set up differently."""
    for name in names:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other:
            raise InputError(f"other: expected one with the same {name}, {mine!r}, got {other!r}.")
