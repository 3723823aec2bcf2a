"""Starting values of plain layers. A layer that wants another kind than the default carries a mark.

`Model.init_module` sees one module at a time, after its parents, so the choice lives on the layer itself:
``self.projection = starts(nn.Linear(8, 8), "xavier")``.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import torch
from torch import nn

Kind = Literal["normal", "xavier", "kaiming", "zero"]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def starts(module: ModuleT, kind: Kind) -> ModuleT:
    """Mark a module so that `start_layer` fills its weight in another way than with the normal distribution."""
    module.start_kind = kind  # type: ignore[assignment]
    return module


def start_with(module: nn.Module, *, std: float) -> None:
    """Mark all parts of a module to start with a spread of their own, inside a model with another one."""
    for part in module.modules():
        part.start_std = std  # type: ignore[assignment]


@torch.no_grad()
def start_layer(module: nn.Module, *, std: float = 0.02, gain: float = 1.0) -> None:
    """Fill the own weights of a plain torch layer; other modules are left alone.

    Args:
        module: The layer.
        std: Standard deviation of the normal distribution.
        gain: Factor of the Xavier distribution.
    """
    if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
        kind = getattr(module, "start_kind", "normal")
        if kind == "xavier":
            nn.init.xavier_uniform_(module.weight, gain=gain)
        elif kind == "kaiming":
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif kind == "zero":
            nn.init.zeros_(module.weight)
        else:
            nn.init.normal_(module.weight, std=getattr(module, "start_std", std))
        bias = getattr(module, "bias", None)
        if bias is not None:
            nn.init.normal_(bias, std=getattr(module, "start_bias_std", 0.0))
    elif isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm2d):
        if module.weight is not None:
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
