"""Random draws for the pictures: small ones on the CPU (the same on every device), large ones on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Chance:
    """A generator with the distributions that scenes are made of; results live on `device`.

    Nothing here waits for a GPU: what is drawn on the CPU follows in its queue.
    """

    def __init__(self, generator: torch.Generator, device: torch.device | str) -> None:
        self.generator = generator
        self.device = torch.device(device)
        if generator.device.type == self.device.type:
            self.bulk = generator
        else:
            self.bulk = torch.Generator(device=self.device).manual_seed(self.seed())

    def seed(self) -> int:
        """A fresh integer below 2^31."""
        return int(torch.randint(0, 2**31 - 1, (1,), generator=self.generator, device=self.generator.device))

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform in [low, high), float32 of `shape`."""
        draw = torch.rand(shape, generator=self.generator, device=self.generator.device)
        return (low + (high - low) * draw).to(self.device, non_blocking=True)

    def log_uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform in the logarithm, between two positive numbers."""
        return self.uniform(math.log(low), math.log(high), *shape).exp()

    def normal(self, mean: float, deviation: float, *shape: int) -> Tensor:
        """Normal, float32 of `shape`."""
        draw = torch.randn(shape, generator=self.generator, device=self.generator.device)
        return (mean + deviation * draw).to(self.device, non_blocking=True)

    def flip(self, probability: float, *shape: int) -> Tensor:
        """True with `probability`, bool of `shape`."""
        return self.uniform(0.0, 1.0, *shape) < probability

    def integers(self, count: int, *shape: int) -> Tensor:
        """Uniform in 0..count - 1, int64 of `shape`."""
        draw = torch.randint(0, count, shape, generator=self.generator, device=self.generator.device)
        return draw.to(self.device, non_blocking=True)

    def choice(self, weights: Sequence[float], count: int) -> Tensor:
        """Draw `count` indices in proportion to `weights`, int64 [count]."""
        share = torch.tensor(weights, dtype=torch.float32, device=self.generator.device)
        draw = torch.multinomial(share, count, replacement=True, generator=self.generator)
        return draw.to(self.device, non_blocking=True)

    def field(self, *shape: int) -> Tensor:
        """Uniform in [0, 1) for large tensors: drawn on the device."""
        return torch.rand(shape, generator=self.bulk, device=self.device)

    def normal_field(self, *shape: int) -> Tensor:
        """Standard normal for large tensors: drawn on the device."""
        return torch.randn(shape, generator=self.bulk, device=self.device)
