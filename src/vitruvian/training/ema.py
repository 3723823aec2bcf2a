"""Exponential moving average (EMA) of weights, which generalizes better than the weights of the last step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from vitruvian.errors import CheckpointError


class ExponentialMovingAverage:
    """Moving averages of a model's floating-point weights and buffers, in float32.

    ``average ← decay · average + (1 − decay) · weights`` after each step; after n steps the decay is
    ``min(decay, (1 + n) / (warmup + n))``, so that the initial weights soon lose their influence.

    Args:
        model: The model; its weights initialize the average.
        decay: Final decay.
        warmup: How slowly the decay grows; 0 for the full decay from the first step.
    """

    def __init__(self, model: nn.Module, *, decay: float, warmup: int = 10) -> None:
        self.decay, self.warmup, self.updates = decay, warmup, 0
        self.values = {name: value.detach().float().clone() for name, value in _floating_weights(model).items()}
        self.source: tuple[nn.Module, list[Tensor]] | None = None  # the model of the last update, and its weights

    @property
    def current_decay(self) -> float:
        """The decay of the next update."""
        if self.warmup == 0:
            return self.decay
        return min(self.decay, (1 + self.updates) / (self.warmup + self.updates))

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average toward a model's weights."""
        if self.source is None or self.source[0] is not model:  # collecting weights takes longer than averaging them
            weights = _floating_weights(model)
            self.source = model, [weights[name].detach() for name in self.values]
        # In bfloat16 a small update would round to zero.
        current = [weight.float() for weight in self.source[1]]
        torch._foreach_lerp_(list(self.values.values()), current, 1 - self.current_decay)
        self.updates += 1

    @contextlib.contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Replace a model's weights by the average within the context; they are restored exactly."""
        named = _floating_weights(model)
        weights = [value.detach() for value in named.values()]
        original = [weight.clone() for weight in weights]
        torch._foreach_copy_(weights, [self.values[name] for name in named])
        try:
            yield
        finally:
            torch._foreach_copy_(weights, original)

    @torch.no_grad()
    def restore(self, values: Mapping[str, Tensor], updates: int) -> None:
        """Restore a saved average."""
        if values.keys() != self.values.keys():
            different = sorted(values.keys() ^ self.values.keys())[:5]
            raise CheckpointError(f"average: the checkpoint is of another model ({', '.join(different)} differ).")
        for name, value in self.values.items():
            value.copy_(values[name])
        self.updates = updates


def unique_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights and saved buffers of a model, each once where modules share them."""
    saved = model.state_dict().keys()
    weights: dict[str, Tensor] = dict(model.named_parameters())
    return weights | {name: value for name, value in model.named_buffers() if name in saved}


def _floating_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the floating-point weights and buffers."""
    return {name: value for name, value in unique_weights(model).items() if value.is_floating_point()}
