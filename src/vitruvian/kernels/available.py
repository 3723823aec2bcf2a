"""Whether the Triton kernels can run here."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor


@functools.cache
def has_triton() -> bool:
    """Tell whether Triton is installed and not switched off by VITRUVIAN_NO_TRITON=1."""
    return importlib.util.find_spec("triton") is not None and os.environ.get("VITRUVIAN_NO_TRITON") != "1"


def takes_kernel(*tensors: Tensor) -> bool:
    """Tell whether all tensors are half precision on a CUDA device of the kind the kernels were made for."""
    return has_triton() and all(t.is_cuda and t.dtype in (torch.bfloat16, torch.float16) for t in tensors)
