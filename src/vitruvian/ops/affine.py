"""Weight and bias of linear layers, also inside adapters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def affine(linear: nn.Module) -> tuple[Tensor, Tensor]:
    """Return weight [F, C] and bias [F] of a linear layer; the bias is 0 where it has none.

    A module around a linear layer, such as an adapter of peft, is evaluated at the unit vectors: its own `weight` would
    leave the adapter out. Such a module has `in_features`.
    """
    if type(linear) is nn.Linear:
        bias: Tensor | None = linear.bias
        return linear.weight, linear.weight.new_zeros(len(linear.weight)) if bias is None else bias
    reference: Tensor = linear.weight  # type: ignore[assignment]
    channels: int = linear.in_features  # type: ignore[assignment]
    points = torch.eye(channels + 1, channels, dtype=reference.dtype, device=reference.device)  # the last one is 0
    values: Tensor = linear(points)  # [C + 1, F]
    return (values[:-1] - values[-1]).transpose(0, 1), values[-1]
