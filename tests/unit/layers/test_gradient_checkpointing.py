from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitruvian.layers.gradient_checkpointing import CheckpointedLayer, checkpointed


class Layer(CheckpointedLayer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_layers_are_recomputed_with_their_hooks_in_training(enabled: bool, training: bool) -> None:
    layer, calls = Layer().train(training), []
    layer.gradient_checkpointing = enabled

    def record(*_: Any) -> None:
        calls.append(1)

    layer.register_forward_pre_hook(record)
    x = torch.ones(1, 2, requires_grad=True)
    checkpointed(layer)(x).sum().backward()
    assert len(calls) == (2 if enabled and training else 1)
    assert x.grad is not None
    with torch.no_grad():
        assert checkpointed(layer) is layer
