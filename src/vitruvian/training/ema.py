"""A moving average of weights (EMA): what is evaluated and shipped, since it generalises better than the last step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from vitruvian.errors import CheckpointError


class WeightAverage:
    """Averages of a model's floating-point weights and buffers, in float32 whatever the model's type.

    ``average ← decay · average + (1 − decay) · weights`` after each step; after n steps the decay is
    ``min(decay, (1 + n) / (warmup + n))``, so that the start, which is random, is soon forgotten.

    Args:
        model: What to average; its present weights are where the average begins.
        decay: How much of the average stays, in the end.
        warmup: How slowly the decay grows; 0 for the full decay from the first step on.
    """

    def __init__(self, model: nn.Module, *, decay: float, warmup: int = 10) -> None:
        self.decay, self.warmup, self.updates = decay, warmup, 0
        self.values = {name: value.detach().float().clone() for name, value in averaged(model).items()}
        self.known: tuple[nn.Module, list[Tensor]] | None = None  # the model that was seen last, and its weights

    @property
    def current_decay(self) -> float:
        """The decay of the next update."""
        if self.warmup == 0:
            return self.decay
        return min(self.decay, (1 + self.updates) / (self.warmup + self.updates))

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards a model's weights."""
        if self.known is None or self.known[0] is not model:  # collecting them takes longer than adding them up
            weights = averaged(model)
            self.known = model, [weights[name].detach() for name in self.values]
        # A small share of a bfloat16 number would round to nothing: the sum is taken in float32.
        news = [weight.float() for weight in self.known[1]]
        torch._foreach_lerp_(list(self.values.values()), news, 1 - self.current_decay)
        self.updates += 1

    @contextlib.contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Put the average in the place of a model's weights for a while; they return unchanged."""
        weights = averaged(model)
        kept = {name: value.detach().clone() for name, value in weights.items()}
        with torch.no_grad():
            for name, value in weights.items():
                value.copy_(self.values[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in weights.items():
                    value.copy_(kept[name])

    @torch.no_grad()
    def restore(self, values: Mapping[str, Tensor], updates: int) -> None:
        """Take the place of an average that was saved."""
        if values.keys() != self.values.keys():
            odd = sorted(values.keys() ^ self.values.keys())[:5]
            raise CheckpointError(f"average: the checkpoint is of another model ({', '.join(odd)} differ).")
        for name, value in self.values.items():
            value.copy_(values[name])
        self.updates = updates


def own_weights(model: nn.Module) -> dict[str, Tensor]:
    """Weights and saved buffers of a model, each once, also where parts of it share them."""
    saved = model.state_dict().keys()
    found: dict[str, Tensor] = dict(model.named_parameters())
    return found | {name: value for name, value in model.named_buffers() if name in saved}


def averaged(model: nn.Module) -> dict[str, Tensor]:
    """Those of them that are floating-point numbers."""
    return {name: value for name, value in own_weights(model).items() if value.is_floating_point()}
