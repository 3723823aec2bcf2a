"""Whether the Triton kernels can run here."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)

# Names of kernels to leave out, such as ``windows,deformable``, or 1 for all.
OFF = set(filter(None, os.environ.get("VITRUVIAN_NO_TRITON", "").split(",")))


@functools.cache
def is_installed() -> bool:
    """Tell whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def has_triton() -> bool:
    """Tell whether Triton is installed and not switched off by VITRUVIAN_NO_TRITON=1."""
    return is_installed() and "1" not in OFF


def takes_kernel(*tensors: Tensor, name: str = "", wide: bool = False) -> bool:
    """Tell whether all tensors are half precision on a CUDA device of the kind the kernels were made for.

    Args:
        tensors: What the kernel would read.
        name: Name of the kernel, by which VITRUVIAN_NO_TRITON can switch it off.
        wide: Whether the kernel takes float32 too.
    """
    kinds = (*HALF, torch.float32) if wide else HALF
    return has_triton() and name not in OFF and all(t.is_cuda and t.dtype in kinds for t in tensors)


def takes_fused(x: Tensor) -> bool:
    """Tell whether an optimised model should take its fused way for `x`: inference on a CUDA device."""
    return x.is_cuda and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def is_traced() -> bool:
    """Tell whether torch follows the call to compile or export it, and wants operators that it knows."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
