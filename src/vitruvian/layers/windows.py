"""Windows of a grid for Swin attention: tokens [B, h·w, C] ⇄ windows [windows, N, C], shifted or not, in one copy.

The grid is padded with zeros to whole windows of side `window` (N = window² tokens) and, where `shift` is not 0, moved
up and left by it, what leaves at one side entering at the other. Tokens that only met through this wrap-around must not
see each other. That concerns windows of the last row and column alone, so windows come in up to four groups (inside,
right edge, bottom edge, corner), all windows of a group share one small mask, and no mask per window ever exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, unflatten
from torch.nn import functional as F

from vitruvian.layers.keep import kept

BLOCKED = -100.0  # added to the scores of tokens that must not see each other; the value Swin was trained with


@dataclass(frozen=True)
class WindowPlan:
    """Where each token of a batch of grids goes, and where it comes back from.

    Attributes:
        there: For each place in the windows, the token that fills it [windows · N].
        back: For each token, its place in the windows [B · h · w].
        holes: Places that no token fills [windows · N, 1], or None.
        hole_places: The same as indices; None also while torch compiles, where their number must not depend on values.
        groups: Number of windows in each group that is not empty, with the group's row in `shift_masks`.
        window: Side of a window.
        shift: How far the grid was moved.
    """

    there: Tensor
    back: Tensor
    holes: Tensor | None
    hole_places: Tensor | None
    groups: tuple[tuple[int, int], ...]
    window: int
    shift: int


@kept
def window_plan(batch: int, grid_hw: tuple[int, int], *, window: int, shift: int, device: torch.device) -> WindowPlan:
    """Plan the windows of `batch` grids of h × w tokens. Windows are sorted by group, then by image, then by place."""
    height, width = grid_hw
    rows, columns = -(-height // window), -(-width // window)  # windows down and across
    y = (torch.arange(rows * window, device=device) + shift) % (rows * window)
    x = (torch.arange(columns * window, device=device) + shift) % (columns * window)
    token = y[:, None] * width + x  # [rows·window, columns·window]
    outside = (y[:, None] >= height) | (x >= width)
    tokens = height * width
    token = torch.where(outside, batch * tokens, token)  # one place past the end stands for "no token"
    cut = unflatten(unflatten(token, 1, (columns, window)), 0, (rows, window))  # [rows, window, columns, window]
    grid = cut.transpose(1, 2).flatten(2)  # [rows, columns, N]
    inner_y, inner_x = (rows - 1, columns - 1) if shift else (rows, columns)
    pieces = (grid[:inner_y, :inner_x], grid[:inner_y, inner_x:], grid[inner_y:, :inner_x], grid[inner_y:, inner_x:])
    first = torch.arange(batch, device=device)[:, None] * tokens  # [B, 1]
    places, groups = [], []
    for kind, piece in enumerate(pieces):
        count = piece.shape[0] * piece.shape[1]
        if count:
            places.append(torch.where(piece.flatten() < batch * tokens, piece.flatten() + first, batch * tokens))
            groups.append((kind, batch * count))
    there = torch.cat([place.flatten() for place in places])  # [windows · N]
    back = torch.zeros(batch * tokens + 1, dtype=torch.int64, device=device)
    back = back.scatter(0, there, torch.arange(there.shape[0], device=device))[:-1]  # [B·h·w]
    padded = rows * window != height or columns * window != width
    holes = (there == batch * tokens)[:, None] if padded else None
    no_values = torch.compiler.is_compiling() or device.type == "meta"
    hole_places = None if holes is None or no_values else holes.flatten().nonzero().flatten()
    return WindowPlan(there.clamp(max=batch * tokens - 1), back, holes, hole_places, tuple(groups), window, shift)


def to_windows(tokens: Tensor, plan: WindowPlan, *, fill: Tensor | None = None) -> Tensor:
    """Sort tokens [B, h·w, C] into windows [windows, N, C]; holes are 0, or `fill` [C]."""
    holes = plan.holes if fill is None else None
    found: Tensor = Regroup.apply(tokens.flatten(0, 1), plan.there, plan.back, holes, None)  # type: ignore[no-untyped-call]
    if fill is not None and plan.hole_places is not None:
        found = found.index_copy_(0, plan.hole_places, fill.to(found.dtype).expand(len(plan.hole_places), -1))
    elif fill is not None and plan.holes is not None:
        found = torch.where(plan.holes, fill.to(found.dtype), found)
    return unflatten(found, 0, (-1, plan.window**2))  # [windows, N, C]


def from_windows(windows: Tensor, plan: WindowPlan, *, batch: int) -> Tensor:
    """Bring windows [windows, N, C] back into tokens [B, h·w, C]; what holes held is dropped."""
    found: Tensor = Regroup.apply(windows.flatten(0, 1), plan.back, plan.there, None, plan.holes)  # type: ignore[no-untyped-call]
    return unflatten(found, 0, (batch, -1))  # [B, h·w, C]


class Regroup(torch.autograd.Function):
    """Gather rows where each is used once: the gradient is a gather with the inverse index, not a sum."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor, holes: Tensor | None, inverse_holes: Tensor | None
    ) -> Tensor:
        """Return rows[index], 0 at holes."""
        ctx.save_for_backward(index, inverse, holes, inverse_holes)
        return gather_rows(rows, index, holes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Send each row's gradient back to where it came from."""
        index, inverse, holes, inverse_holes = ctx.saved_tensors
        found: Tensor = Regroup.apply(grads[0], inverse, index, inverse_holes, holes)  # type: ignore[no-untyped-call]
        return found, None, None, None, None


def gather_rows(rows: Tensor, index: Tensor, holes: Tensor | None) -> Tensor:
    """Return rows[index], 0 at holes."""
    found = rows.index_select(0, index)
    return found if holes is None else found.masked_fill_(holes, 0.0)


@kept
def shift_masks(*, window: int, shift: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Masks to add to the scores in windows of each group (inside, right edge, bottom edge, corner): [4, N, N]."""
    # 1 for what entered from the other side; a number, since torch's compiler cannot compare truth values.
    wrapped = (torch.arange(window, device=device) >= window - shift).long()
    column = wrapped.expand(window, window).flatten()  # [N]
    row = wrapped[:, None].expand(window, window).flatten()  # [N]
    across = column[:, None] != column
    down = row[:, None] != row
    apart = torch.stack((torch.zeros_like(across), across, down, across | down))  # [4, N, N]
    return torch.zeros(apart.shape, dtype=dtype, device=device).masked_fill(apart, BLOCKED)


def relative_position_index(window: int, device: torch.device | None = None) -> Tensor:
    """For each pair of tokens of a window, the row of the bias table for the step between them: [N, N]."""
    side = torch.arange(window, device=device)
    y, x = side.repeat_interleave(window), side.repeat(window)  # [N] each
    step_y, step_x = y[:, None] - y, x[:, None] - x  # [N, N], each from 1 - window to window - 1
    return (step_y + window - 1) * (2 * window - 1) + step_x + window - 1


def relative_position_bias(table: Tensor, index: Tensor) -> Tensor:
    """Look up the bias of every head for every pair of tokens: table [steps, A], index [N, N] -> [A, N, N]."""
    rows = F.embedding(index.flatten(), table)  # [N·N, A]
    return unflatten(rows.t(), 1, index.shape)  # [A, N, N]


def window_order(plan: WindowPlan, *, batch: int, grid_hw: tuple[int, int]) -> Tensor:
    """Index that sorts windows by image and then by place, row by row: [windows]."""
    rows, columns = (-(-side // plan.window) for side in grid_hw)
    kind_of_row = (torch.arange(rows, device=plan.there.device) == rows - 1).long() * (plan.shift > 0)
    kind_of_column = (torch.arange(columns, device=plan.there.device) == columns - 1).long() * (plan.shift > 0)
    kind = (2 * kind_of_row[:, None] + kind_of_column).flatten().expand(batch, -1).flatten()  # [B·rows·columns]
    group_sorted = torch.argsort(kind, stable=True)  # where each planned window lies in plain order
    return torch.argsort(group_sorted)
