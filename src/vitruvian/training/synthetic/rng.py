"""Random draws: small ones on the CPU, the same on every device, and large ones on the device itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Rng:
    """Random tensors on `device`, drawn from `generator`. No draw synchronizes the device."""

    def __init__(self, generator: torch.Generator, device: torch.device | str) -> None:
        self.generator = generator
        self.device = torch.device(device)
        if generator.device.type == self.device.type:
            self.device_generator = generator
        else:
            self.device_generator = torch.Generator(device=self.device).manual_seed(self.seed())

    def seed(self) -> int:
        """Draw an integer below 2^31."""
        return int(torch.randint(0, 2**31 - 1, (1,), generator=self.generator, device=self.generator.device))

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform in [low, high), float32."""
        draw = torch.rand(shape, generator=self.generator, device=self.generator.device)
        return self._to_device(low + (high - low) * draw)

    def log_uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform in the logarithm, between two positive numbers."""
        return self.uniform(math.log(low), math.log(high), *shape).exp()

    def normal(self, mean: float, std: float, *shape: int) -> Tensor:
        """Normal, float32."""
        return self._to_device(mean + std * torch.randn(shape, generator=self.generator, device=self.generator.device))

    def bernoulli(self, probability: float, *shape: int) -> Tensor:
        """True with `probability`, bool."""
        return self.uniform(0.0, 1.0, *shape) < probability

    def sign(self, *shape: int) -> Tensor:
        """-1 or 1, float32."""
        return torch.where(self.bernoulli(0.5, *shape), 1.0, -1.0)

    def integers(self, count: int, *shape: int) -> Tensor:
        """Uniform in 0..count - 1, int64."""
        draw = torch.randint(0, count, shape, generator=self.generator, device=self.generator.device)
        return self._to_device(draw)

    def categorical(self, weights: Sequence[float], count: int) -> Tensor:
        """Draw `count` indices in proportion to `weights`, int64 [count]."""
        weight = torch.tensor(weights, dtype=torch.float32, device=self.generator.device)
        return self._to_device(torch.multinomial(weight, count, replacement=True, generator=self.generator))

    def categorical_rows(self, weights: Tensor) -> Tensor:
        """Draw one column for each row of weights [N, K], in proportion: int64 [N]."""
        cumulative = weights.cumsum(1)
        threshold = self.uniform(0.0, 1.0, len(weights), 1) * cumulative[:, -1:]
        return (cumulative <= threshold).sum(1).clamp(max=weights.shape[1] - 1)

    def subset(self, count: int, probability: float) -> Tensor:
        """Draw each index below `count` with `probability`, int64 [n]. The size is known without synchronization."""
        draw = torch.rand(count, generator=self.generator, device=self.generator.device)
        return self._to_device((draw < probability).nonzero()[:, 0])

    def permutation(self, count: int) -> Tensor:
        """Draw a permutation of 0..count - 1, int64 [count]."""
        return self._to_device(torch.randperm(count, generator=self.generator, device=self.generator.device))

    def uniform_field(self, *shape: int) -> Tensor:
        """Uniform in [0, 1), drawn on the device: for large tensors."""
        return torch.rand(shape, generator=self.device_generator, device=self.device)

    def normal_field(self, *shape: int) -> Tensor:
        """Standard normal, drawn on the device: for large tensors."""
        return torch.randn(shape, generator=self.device_generator, device=self.device)

    def _to_device(self, draw: Tensor) -> Tensor:
        return draw.to(self.device, non_blocking=True)
