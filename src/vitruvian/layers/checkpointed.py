"""Layers that can recompute their activations in the backward pass of training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class CheckpointedLayer(nn.Module):
    """Base of layers that `Model.gradient_checkpointing_enable` recomputes. Models call them as `layer.checkpointed()`.

    Attributes:
        gradient_checkpointing: Recompute the layer in training rather than store its activations.
        checkpoint_options: Keywords of `torch.utils.checkpoint.checkpoint`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self.checkpoint_options: dict[str, Any] = {"use_reentrant": False}

    @property
    def checkpointed(self) -> Callable[..., Any]:
        """The layer itself or, in training with `gradient_checkpointing`, a checkpointed call of it.

        Call it with positional arguments.
        """
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            return partial(checkpoint, self, **self.checkpoint_options)
        return self
