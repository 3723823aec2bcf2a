"""Attention to memories by columns and rows of their grid, against keys that are projected and rotated."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.ops.versions import assert_close, randn
from vitruvian.ops import axial_key_attention as module
from vitruvian.ops.axial_key_attention import axial_key_attention
from vitruvian.ops.rope import axial_rope_tables, rotate_pairs

GRID_HW, CHANNELS, MEMORY_CHANNELS = (6, 9), 32, 6
CELLS = GRID_HW[0] * GRID_HW[1]
ROTATION = axial_rope_tables(GRID_HW, CHANNELS, 10000.0, torch.device("cpu"))


@pytest.fixture
def projection() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(MEMORY_CHANNELS, CHANNELS)


def attend(projection: nn.Module, *, memories: int, plain_tokens: int, implementation: str) -> torch.Tensor:
    tokens = memories * CELLS + plain_tokens
    q = rotate_pairs(randn(2, CELLS, CHANNELS) * 3, ROTATION, heads=1)[:, 0]
    keys, values = randn(2, tokens, MEMORY_CHANNELS, seed=1) * 2, randn(2, tokens, MEMORY_CHANNELS, seed=2)
    keys[:, CELLS:] *= 3  # the maximum of the scores rises
    with torch.no_grad():
        return axial_key_attention(
            q, keys, values, projection, ROTATION,
            grid_hw=GRID_HW, plain_tokens=plain_tokens, implementation=implementation,
        )  # fmt: skip


@pytest.mark.parametrize(("memories", "plain_tokens"), [(7, 5), (7, 0), (2, 2 * CELLS)])
def test_columns_and_rows_give_the_same_as_rotated_keys(
    projection: nn.Linear, memories: int, plain_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = attend(projection, memories=memories, plain_tokens=plain_tokens, implementation="eager")
    monkeypatch.setattr(module, "narrow_value_attention", None)  # only the version for the CPU may run
    monkeypatch.setattr(module, "_saves_products", lambda *args: True)
    monkeypatch.setattr(module, "_CPU_QUERIES", 20)
    monkeypatch.setattr(module, "_CPU_KEYS", 4 * memories * GRID_HW[1])
    got = attend(projection, memories=memories, plain_tokens=plain_tokens, implementation="sdpa")
    assert_close(got, want)


@pytest.mark.parametrize(("memories", "used"), [(1, False), (7, True)])
def test_few_memories_are_rotated(memories: int, used: bool) -> None:
    assert module._saves_products(memories * 64 * 64, (64, 64), 256, 64) is used


def test_layers_that_replace_the_projection_are_called(projection: nn.Linear) -> None:
    want = attend(projection, memories=7, plain_tokens=3, implementation="sdpa")
    got = attend(nn.Sequential(projection), memories=7, plain_tokens=3, implementation="sdpa")
    assert_close(got, want)
