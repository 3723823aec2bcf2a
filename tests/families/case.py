"""One tiny model of a family, for the suite that every family passes (`tests/unit/test_families.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from vitruvian.config import Config
from vitruvian.model import Model


@dataclass(frozen=True)
class FamilyCase:
    """What the suite needs to know of a model."""

    name: str
    cls: type[Model]
    config: Callable[[], Config]  # a fresh tiny configuration
    inputs: Callable[[int, torch.Generator], dict[str, Any]]  # keyword arguments of forward for a batch of n
    labels: Callable[[int, torch.Generator], dict[str, Any]] | None = None  # more keyword arguments that give a loss
    output: str = "last_hidden_state"  # the field that is compared
    unused: tuple[
        str, ...
    ] = ()  # parts of names of parameters that get no gradient, with the reason in the case's file
    sizes: tuple[tuple[int, int], ...] = ()  # other input sizes the model must take
    tolerance: float = 1e-4
    bf16_tolerance: float = 0.15  # relative distance of the output in bfloat16
    options: dict[str, Any] = field(default_factory=dict)  # further keyword arguments of forward
