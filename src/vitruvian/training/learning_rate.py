"""The schedule of the learning rate: a function of the step alone, so there is no state to save."""

from __future__ import annotations

import math

import torch

from vitruvian.training.config import ScheduleConfig


def learning_rate_factor(step: int, config: ScheduleConfig, *, steps: int) -> float:
    """Return the factor of the learning rate at a step from 0 to `steps` − 1."""
    if step < config.warmup:
        return config.warmup_start + (1 - config.warmup_start) * step / config.warmup
    if config.decay == "constant":
        return 1.0
    first = config.warmup + config.hold * (steps - config.warmup)
    done = min(1.0, max(0.0, step - first) / max(steps - first, 1))
    left = 1 - done if config.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.final + (1 - config.final) * left


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group, times its scale."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]
