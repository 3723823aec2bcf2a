from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from vitruvian.layers.windows import (
    BLOCKED,
    from_windows,
    relative_position_bias,
    relative_position_index,
    shift_masks,
    to_windows,
    window_order,
    window_plan,
)

CPU = torch.device("cpu")


def plain_windows(tokens: torch.Tensor, grid_hw: tuple[int, int], window: int, shift: int) -> torch.Tensor:
    """Pad, roll and cut, step by step: [B, h·w, C] -> [B, rows, columns, N, C]."""
    height, width = grid_hw
    grid = tokens.unflatten(1, grid_hw)
    grid = F.pad(grid, (0, 0, 0, -width % window, 0, -height % window))
    grid = torch.roll(grid, (-shift, -shift), dims=(1, 2))
    cut = grid.unflatten(2, (-1, window)).unflatten(1, (-1, window))  # [B, rows, window, columns, window, C]
    return cut.transpose(2, 3).flatten(3, 4)


@pytest.mark.parametrize("grid_hw", [(8, 12), (7, 9), (3, 2), (4, 4), (9, 4)])
@pytest.mark.parametrize("shift", [0, 2])
@pytest.mark.parametrize("batch", [1, 3])
def test_windows_are_those_of_padding_rolling_and_cutting(grid_hw: tuple[int, int], shift: int, batch: int) -> None:
    tokens = torch.randn(batch, grid_hw[0] * grid_hw[1], 5)
    plan = window_plan(batch, grid_hw, window=4, shift=shift, device=CPU)
    windows = to_windows(tokens, plan)
    want = plain_windows(tokens, grid_hw, 4, shift).flatten(0, 2)
    order = window_order(plan, batch=batch, grid_hw=grid_hw)
    assert torch.equal(windows[order], want)
    assert sum(count for _, count in plan.groups) == len(windows)
    assert torch.equal(from_windows(windows, plan, batch=batch), tokens)


@pytest.mark.parametrize("grid_hw", [(8, 12), (7, 9)])
def test_gradients_go_back_where_they_came_from(grid_hw: tuple[int, int]) -> None:
    plan = window_plan(2, grid_hw, window=4, shift=2, device=CPU)
    tokens = torch.randn(2, grid_hw[0] * grid_hw[1], 3, dtype=torch.float64, requires_grad=True)
    places = torch.randn(sum(count for _, count in plan.groups), 16, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: from_windows(to_windows(x, plan).square() * places, plan, batch=2), tokens
    )


@pytest.mark.parametrize("grid_hw", [(8, 12), (7, 9)])
@pytest.mark.parametrize("listed", [True, False])
def test_holes_can_hold_a_value(grid_hw: tuple[int, int], listed: bool) -> None:
    plan = window_plan(2, grid_hw, window=4, shift=2, device=CPU)
    plan = plan if listed else dataclasses.replace(plan, hole_places=None)  # as while torch compiles
    tokens = torch.randn(2, grid_hw[0] * grid_hw[1], 3, dtype=torch.float64, requires_grad=True)
    fill = torch.randn(3, dtype=torch.float64, requires_grad=True)
    windows = to_windows(tokens, plan, fill=fill)
    with_holes = to_windows(torch.ones_like(tokens), plan).flatten(0, 1)[:, 0] == 0
    assert with_holes.any() == (grid_hw == (7, 9))
    want = torch.where(with_holes[:, None], fill, to_windows(tokens, plan).flatten(0, 1))
    assert torch.equal(windows.flatten(0, 1), want)
    assert torch.equal(from_windows(windows, plan, batch=2), tokens)
    if with_holes.any():
        assert torch.autograd.gradcheck(lambda x, y: to_windows(x, plan, fill=y), (tokens, fill))


@pytest.mark.parametrize("grid_hw", [(8, 12), (4, 4), (9, 4)])
def test_masks_keep_apart_what_only_met_by_wrapping_around(grid_hw: tuple[int, int]) -> None:
    height, width = grid_hw
    plan = window_plan(1, grid_hw, window=4, shift=2, device=CPU)
    masks = shift_masks(window=4, shift=2, dtype=torch.float32, device=CPU)
    rows, columns = -(-height // 4) * 4, -(-width // 4) * 4
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    # Tokens before and after the seam of the roll belong to different sides of the picture.
    side = torch.roll(torch.stack((y < 2, x < 2), dim=-1), (-2, -2), dims=(0, 1))
    cut = (
        side.unflatten(1, (-1, 4)).unflatten(0, (-1, 4)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
    )  # [windows, N, 2]
    want = (cut[:, :, None] != cut[:, None]).any(-1)
    kinds = torch.tensor([kind for kind, count in plan.groups for _ in range(count)])
    order = window_order(plan, batch=1, grid_hw=grid_hw)
    got = masks[kinds[order]]
    assert torch.equal(got == BLOCKED, want)
    assert set(got.unique().tolist()) <= {0.0, BLOCKED}


def test_position_bias_depends_on_the_step_alone() -> None:
    index = relative_position_index(3)
    table = torch.randn(25, 2)
    bias = relative_position_bias(table, index)
    assert bias.shape == (2, 9, 9)
    assert torch.equal(bias[:, 0, 0], bias[:, 8, 8])
    assert torch.equal(bias[:, 0, 4], bias[:, 4, 8])  # one down and one right
    assert not torch.equal(bias[:, 0, 4], bias[:, 4, 0])
    assert torch.equal(bias[:, 0, 8], table[0])  # two up and two left
    assert index.unique().numel() == 25


def test_plans_made_in_inference_mode_serve_training() -> None:
    with torch.inference_mode():
        window_plan(1, (5, 6), window=2, shift=1, device=CPU)
        masks = shift_masks(window=2, shift=1, dtype=torch.float64, device=CPU)
    assert not masks.is_inference()
    tokens = torch.randn(1, 30, 2, requires_grad=True)
    plan = window_plan(1, (5, 6), window=2, shift=1, device=CPU)
    (to_windows(tokens, plan).double().transpose(1, 2) @ masks[3]).sum().backward()
    assert tokens.grad is not None
