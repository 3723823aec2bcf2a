"""Copies from the CPU to a CUDA device that do not synchronize: through pinned memory, on the current stream."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MAX_PINNED_BYTES = 1 << 26  # torch caches pinned memory and never returns it: larger arrays are copied without


def pinned_copy(values: Tensor | NDArray[np.generic], device: torch.device) -> Tensor:
    """Return CPU values on `device`; arrays are always copied, tensors only where the device differs.

    Arrays of more than 64 MiB are copied without pinned memory, which synchronizes.
    """
    if device.type != "cuda":
        tensor = torch.from_numpy(np.array(values, order="C")) if isinstance(values, np.ndarray) else values
        return tensor.to(device)
    if isinstance(values, Tensor) and values.dtype == torch.bfloat16:  # numpy has no such type
        return pinned_copy(values.view(torch.int16), device).view(torch.bfloat16)
    array = values.numpy() if isinstance(values, Tensor) else values
    if array.nbytes > _MAX_PINNED_BYTES:
        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)
    pinned = torch.empty(array.shape, dtype=_torch_dtype(array.dtype), pin_memory=True)
    np.copyto(pinned.numpy(), array)  # releases the GIL
    return pinned.to(device, non_blocking=True)  # torch reuses the pinned memory only after the copy


@functools.cache
def _torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
