"""Layers that can recompute their activations in the backward pass of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class CheckpointedLayer(nn.Module):
    """Base of layers that `Model.gradient_checkpointing_enable` recomputes; call them with positional arguments.

    Attributes:
        checkpoint_options: Keywords of `torch.utils.checkpoint.checkpoint`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.checkpoint_options: dict[str, Any] = {"use_reentrant": False}
        self._stored_forward: Callable[..., Any] | None = None  # what the checkpointed `forward` calls

    @property
    def gradient_checkpointing(self) -> bool:
        """Recompute the layer in training rather than store its activations."""
        return self._stored_forward is not None

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, enabled: bool) -> None:
        # An attribute of the instance hides `forward` of the class, so that layers without it pay nothing.
        if enabled and self._stored_forward is None:
            self._stored_forward = self.forward
            self.forward = self._checkpointed_forward
        elif not enabled and self._stored_forward is not None:
            self.forward, self._stored_forward = self._stored_forward, None

    def _checkpointed_forward(self, *args: Any) -> Any:
        assert self._stored_forward is not None
        if self.training and torch.is_grad_enabled():
            return checkpoint(self._stored_forward, *args, **self.checkpoint_options)
        return self._stored_forward(*args)
