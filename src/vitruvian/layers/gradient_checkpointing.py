"""Layers that can recompute their activations in the backward pass of training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class CheckpointedLayer(nn.Module):
    """Base of layers that `Model.gradient_checkpointing_enable` recomputes. Models call ``checkpointed(layer)(…)``.

    Attributes:
        gradient_checkpointing: Recompute the layer in training rather than store its activations.
        checkpoint_options: Keywords of `torch.utils.checkpoint.checkpoint`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self.checkpoint_options: dict[str, Any] = {"use_reentrant": False}


def checkpointed(layer: nn.Module) -> Callable[..., Any]:
    """Return the layer itself or, in training with `gradient_checkpointing`, a checkpointed call of it.

    Call it with positional arguments.
    """
    assert isinstance(layer, CheckpointedLayer)
    if layer.gradient_checkpointing and layer.training and torch.is_grad_enabled():
        return partial(checkpoint, layer, **layer.checkpoint_options)
    return layer
