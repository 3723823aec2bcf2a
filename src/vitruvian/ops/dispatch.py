"""Which version of an operation runs: Triton on CUDA devices in inference, plain torch everywhere else.

Every operation asks `use_triton`. It returns True where Triton is installed, all tensors are on a CUDA device in a data
type that the kernel reads, autograd records nothing and no tracer records the call. A few operations have a version for
the CPU, which splits the work into parts that stay in the cache; `use_cpu_version` decides by the same conditions.
Models do not ask: they call an operation, or a `suits_*` function.

    VITRUVIAN_NO_TRITON=1                                 switches all of these versions off
    VITRUVIAN_NO_TRITON=window_attention,layer_norm       switches those of these operations off
    TRITON_INTERPRET=1                                    lets kernels run on CPU tensors, slowly, for tests
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
_ALL = "1"
_disabled = set(filter(None, os.environ.get("VITRUVIAN_NO_TRITON", "").split(",")))
_interpreting = False  # whether `interpret_triton` is on


def use_triton(name: str, *tensors: Tensor, dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)) -> bool:
    """Return whether the Triton version of an operation runs for these tensors.

    Args:
        name: Name of the operation, by which VITRUVIAN_NO_TRITON and `disable_triton` switch it off.
        tensors: Everything that the kernel reads: inputs and weights.
        dtypes: Data types that the kernel reads.
    """
    if not HAS_TRITON or not _is_enabled(name, tensors):
        return False
    return _interpreting or all(tensor.is_cuda and tensor.dtype in dtypes for tensor in tensors)


def use_cpu_version(name: str, *tensors: Tensor, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> bool:
    """Return whether the version for the CPU of an operation runs for these tensors. Arguments as in `use_triton`.

    It writes into preallocated memory, so gradients must be disabled, and it ignores autocast.
    """
    if not _is_enabled(name, tensors) or _interpreting or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    return all(tensor.device.type == "cpu" and tensor.dtype in dtypes for tensor in tensors)


def _is_enabled(name: str, tensors: tuple[Tensor, ...]) -> bool:
    return not (_ALL in _disabled or name in _disabled or wants_grad(*tensors) or is_tracing())


def wants_grad(*tensors: Tensor) -> bool:
    """Return whether autograd records an operation on these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def is_tracing() -> bool:
    """Return whether torch.compile, torch.export or torch.jit.trace records the call."""
    return torch.compiler.is_compiling() or bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


@contextmanager
def disable_triton(*names: str) -> Iterator[None]:
    """Run the torch version of these operations within this context, or of all without names."""
    added = (set(names) or {_ALL}) - _disabled
    _disabled.update(added)
    try:
        yield
    finally:
        _disabled.difference_update(added)


@contextmanager
def interpret_triton() -> Iterator[None]:
    """Run the Triton versions on CPU tensors within this context: a test without a GPU. Needs TRITON_INTERPRET=1."""
    global _interpreting
    if not IS_INTERPRETED:
        raise RuntimeError("interpret_triton: needs Triton, and TRITON_INTERPRET=1 before vitruvian is imported.")
    before, _interpreting = _interpreting, True
    try:
        yield
    finally:
        _interpreting = before


def triton_jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a kernel with `triton.jit`; without Triton the function stays as it is and is never called."""
    if function is None:
        return lambda kernel: triton_jit(kernel, **options)
    if not HAS_TRITON:
        return function
    import triton

    return triton.jit(function, **options)


def is_tensor_subclass(tensor: Tensor) -> bool:
    """Return whether a tensor is of a subclass that wraps others, such as a quantized weight of torchao or a DTensor.

    Such a weight supports the calls of its layer, and few other operations.
    """
    return hasattr(tensor, "__tensor_flatten__")


def no_compile(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function eagerly, also when a compiled model calls it.

    The decorator `torch.compiler.disable` does the same, but imports the compiler: more than a second for each program
    that opens a model, most of which never compile it. Here it is imported only while a model is compiled.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            eager: Callable[P, R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
            return eager(*args, **kwargs)
        return function(*args, **kwargs)

    return call
