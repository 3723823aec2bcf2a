"""Layers that can recompute their activations in the backward pass of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class CheckpointedLayer(nn.Module):
    """Base of layers that `Model.gradient_checkpointing_enable` recomputes; call them with positional arguments.

    Attributes:
        gradient_checkpointing: Recompute the layer in training rather than store its activations.
        checkpoint_options: Keywords of `torch.utils.checkpoint.checkpoint`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self.checkpoint_options: dict[str, Any] = {"use_reentrant": False}

    def __call__(self, *args: Any) -> Any:
        """Run the layer, and its hooks."""
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(super().__call__, *args, **self.checkpoint_options)
        return super().__call__(*args)
