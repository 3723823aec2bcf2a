"""Initialization of weights, and building modules without it.

`Model.init_module` initializes one module at a time, parents first, so the choice of a distribution is stored on the
layer itself: ``self.projection = with_init(nn.Linear(8, 8), "xavier")``. A module with parameters of its own defines
``init_parameters()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

InitKind = Literal["normal", "xavier", "kaiming", "zero"]
ModuleT = TypeVar("ModuleT", bound=nn.Module)

_RANDOM_INITS = {nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, Tensor.uniform_, Tensor.normal_}


@runtime_checkable
class HasInitParameters(Protocol):
    """A module that initializes its own parameters and buffers, without those of its children."""

    def init_parameters(self) -> None:
        """Initialize in place."""


def with_init(module: ModuleT, kind: InitKind, *, bias_std: float = 0.0) -> ModuleT:
    """Have `init_layer` draw a module's weight from another distribution, and its bias with a standard deviation."""
    module.init_kind = kind  # type: ignore[assignment]
    module.init_bias_std = bias_std  # type: ignore[assignment]
    return module


def set_init_std(module: nn.Module, std: float) -> None:
    """Give all parts of a module their own standard deviation, inside a model with another one."""
    for part in module.modules():
        part.init_std = std  # type: ignore[assignment]


@torch.no_grad()
def init_layer(module: nn.Module, *, std: float = 0.02, bound: float | None = None, gain: float = 1.0) -> None:
    """Initialize the parameters that a module itself owns; other modules are left unchanged.

    Args:
        module: A layer of torch, or a module with `init_parameters`.
        std: Standard deviation of the normal distribution.
        bound: Largest absolute value, for a truncated normal distribution.
        gain: Factor of the Xavier distribution.
    """
    if isinstance(module, HasInitParameters):
        module.init_parameters()
    elif isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d | nn.Embedding):
        kind = getattr(module, "init_kind", "normal")
        if kind == "xavier":
            nn.init.xavier_uniform_(module.weight, gain=gain)
        elif kind == "kaiming" and isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
        elif kind == "kaiming":
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif kind == "zero":
            nn.init.zeros_(module.weight)
        elif bound is not None:
            nn.init.trunc_normal_(module.weight, std=std, a=-bound, b=bound)
        else:
            nn.init.normal_(module.weight, std=getattr(module, "init_std", std))
        if (bias := getattr(module, "bias", None)) is not None:
            bias_std = getattr(module, "init_bias_std", 0.0)
            nn.init.normal_(bias, std=bias_std) if bias_std else nn.init.zeros_(bias)
    elif isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm2d):
        if module.weight is not None:
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()


@contextmanager
def no_init_weights() -> Iterator[None]:
    """Build modules on the meta device without initializing them, to be filled from files.

    torch would draw random numbers that are never read. For some of them on the meta device it even imports its
    compiler, which takes longer than opening most checkpoints.
    """
    with torch.device("meta"), _SkipRandomInit():
        yield


class _SkipRandomInit(TorchFunctionMode):
    """Returns tensors unchanged from functions that would fill them with random numbers."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a torch function, or return its first argument."""
        kwargs = kwargs or {}
        if func in _RANDOM_INITS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
