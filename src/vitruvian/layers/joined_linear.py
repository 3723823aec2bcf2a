"""Linear layers with a common input as one matrix product, for inference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.ops.dispatch import is_tracing, wants_grad


class JoinedLinear:
    """Several linear layers as one: [..., C] -> [..., F1 + F2 + …].

    The joined matrix owns the memory and the weights and biases of the layers become views into it, so that nothing is
    stored twice and checkpoints keep their names. Copies and pickles join again.

    Args:
        linears: Layers with the same number of input channels. A missing bias counts as zeros.
        interleave: Alternate the rows of the layers, which then have the same size, instead of stacking them.
    """

    @torch.no_grad()
    def __init__(self, linears: Sequence[nn.Linear], *, interleave: bool = False) -> None:
        self.linears, self.interleave = list(linears), interleave
        self.weight = self._join([linear.weight for linear in linears])
        self.bias: Tensor | None = None
        if any(linear.bias is not None for linear in linears):
            self.bias = self._join([_bias_or_zeros(linear) for linear in linears])
        for number, linear in enumerate(linears):
            linear.weight.data = self._view(self.weight, number)
            if linear.bias is not None and self.bias is not None:
                linear.bias.data = self._view(self.bias, number)
        self._pointers = [linear.weight.data_ptr() for linear in linears]

    def __reduce__(self) -> tuple[object, ...]:
        return _joined, (self.linears, self.interleave)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [..., C] to [..., F1 + F2 + …]."""
        return F.linear(x, self.weight, self.bias)

    def is_usable(self, *linears: nn.Module) -> bool:
        """Return whether the joined matrix may replace the layers: no gradients, no tracing, and still their memory.

        Args:
            linears: The layers of the model now, which may be in adapters since.
        """
        weights = [linear.weight for linear in self.linears]
        return (
            all(type(now) is nn.Linear and now is then for now, then in zip(linears, self.linears, strict=True))
            and not is_tracing()
            and not wants_grad(*weights)
            and all(weight.data_ptr() == pointer for weight, pointer in zip(weights, self._pointers, strict=True))
        )

    def _join(self, parts: list[Tensor]) -> Tensor:
        return torch.stack(parts, dim=1).flatten(0, 1) if self.interleave else torch.cat(parts)

    def _view(self, joined: Tensor, number: int) -> Tensor:
        """Return the rows of one of the layers."""
        if self.interleave:
            return joined[number :: len(self.linears)]
        return torch.split(joined, [linear.out_features for linear in self.linears])[number]


def _bias_or_zeros(linear: nn.Linear) -> Tensor:
    bias: Tensor | None = linear.bias
    return linear.weight.new_zeros(linear.out_features) if bias is None else bias


def _joined(linears: list[nn.Linear], interleave: bool) -> JoinedLinear:
    return JoinedLinear(linears, interleave=interleave)
