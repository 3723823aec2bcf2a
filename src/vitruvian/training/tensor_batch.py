"""Base of the dataclasses of tensors that training passes around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorBatch:
    """A dataclass whose tensors have the batch first. It may hold other batches, None, and other values."""

    def __len__(self) -> int:
        """Return the number of rows, those of the first field."""
        return len(getattr(self, fields(self)[0].name))

    def to(self, device: torch.device | str) -> Self:
        """Return the batch with every tensor on `device`."""
        non_blocking = torch.device(device).type != "cpu"  # an asynchronous copy to the CPU may be read too early
        return self.map(lambda value: value.to(device, non_blocking=non_blocking))

    def select(self, index: Tensor) -> Self:
        """Return the rows `index` [n], int64."""
        return self.map(lambda value: value[index])

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """Concatenate batches whose tensors differ in the first axis only; other values are those of the first."""
        changes: dict[str, Any] = {}
        for field in fields(cls):
            values = [getattr(batch, field.name) for batch in batches]
            if isinstance(values[0], Tensor):
                changes[field.name] = torch.cat(values)
            elif isinstance(values[0], TensorBatch):
                changes[field.name] = type(values[0]).cat(values)
        return replace(batches[0], **changes)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to every tensor."""
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changes[field.name] = function(value)
            elif isinstance(value, TensorBatch):
                changes[field.name] = value.map(function)
        return replace(self, **changes)
