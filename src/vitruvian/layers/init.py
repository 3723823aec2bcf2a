"""Initialization of weights, and models without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Kind = Literal["normal", "xavier", "kaiming", "zero"]
ModuleT = TypeVar("ModuleT", bound=nn.Module)

_RANDOM = {nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, Tensor.uniform_, Tensor.normal_}


def with_init(module: ModuleT, kind: Kind) -> ModuleT:
    """Select the initialization of a layer by `init_layer`, other than the normal distribution.

    `Model.init_module` handles one module at a time, so that the layer itself carries the choice:
    ``self.projection = with_init(nn.Linear(8, 8), "xavier")``.
    """
    module.init_kind = kind  # type: ignore[assignment]
    return module


def set_init_std(module: nn.Module, *, std: float) -> None:
    """Set the standard deviation of all layers of a module, inside a model with another one."""
    for part in module.modules():
        part.init_std = std  # type: ignore[assignment]


@torch.no_grad()
def init_layer(module: nn.Module, *, std: float = 0.02, gain: float = 1.0) -> None:
    """Initialize the weights of a plain torch layer; other modules are left alone.

    Args:
        module: The layer.
        std: Standard deviation of the normal distribution.
        gain: Factor of the Xavier distribution.
    """
    if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
        kind = getattr(module, "init_kind", "normal")
        if kind == "xavier":
            nn.init.xavier_uniform_(module.weight, gain=gain)
        elif kind == "kaiming":
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif kind == "zero":
            nn.init.zeros_(module.weight)
        else:
            nn.init.normal_(module.weight, std=getattr(module, "init_std", std))
        bias = getattr(module, "bias", None)
        if bias is not None:
            nn.init.normal_(bias, std=getattr(module, "init_bias_std", 0.0))
    elif isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm2d):
        if module.weight is not None:
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()


@contextmanager
def no_init_weights() -> Iterator[None]:
    """Build modules on the meta device without initializing them.

    On that device some random functions import the compiler of torch, which takes longer than loading a checkpoint.
    """
    with torch.device("meta"), _NoRandomInit():
        yield


class _NoRandomInit(TorchFunctionMode):
    """Turns functions that fill tensors with random numbers into no-ops."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, or return the tensor that it would fill."""
        options = kwargs or {}
        if func in _RANDOM:
            return args[0] if args else options["tensor"]
        return func(*args, **options)
