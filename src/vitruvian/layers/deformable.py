"""Multi-scale deformable attention in plain torch: each query looks at a few learned points of each feature level.

value [B, N, A, D] (levels one after the other) + points [B, Q, A, L, P, 2] + weights [B, Q, A, L, P] ─▶ [B, Q, A·D]

A sampled point is a mix of its four pixels, so the whole operation is one weighted sum of 4·L·P rows of `value` for
each query and head. `embedding_bag` does exactly that in one pass over rows of D contiguous channels and writes the
answer in place, where sampling level by level (`grid_sample`) stores every sample before it sums them. The other form
stays for what cannot run this one, exported graphs and other devices, and for training on a GPU, where it is faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn, unflatten
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.layers.init import with_init
from vitruvian.ops.cache import cached_tensors

Levels = tuple[tuple[int, int], ...]  # (height, width) of each level


class DeformableAttention(nn.Module):
    """Deformable self-attention over the tokens of several feature levels."""

    def __init__(self, channels: int, *, heads: int, levels: int, points: int) -> None:
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.sampling_offsets = with_init(nn.Linear(channels, heads * levels * points * 2), "zero")
        self.attention_weights = with_init(nn.Linear(channels, heads * levels * points), "zero")
        self.value_proj = with_init(nn.Linear(channels, channels), "xavier")
        self.output_proj = with_init(nn.Linear(channels, channels), "xavier")
        self.sampling_offsets.start_ring = (heads, levels, points)  # type: ignore[assignment]
        self.joint: tuple[Tensor, Tensor | None] | None = None  # of offsets and weights, for inference

    def forward(self, tokens: Tensor, positions: Tensor, level_hw: Levels) -> tuple[Tensor, Tensor]:
        """Attend from every token [B, N, C] (plus positions [N, C]) to points around it in every level.

        Returns the new tokens [B, N, C] and the weights [B, N, A, L, P].
        """
        value = unflatten(self.value_proj(tokens), -1, (self.heads, -1))  # [B, N, A, D]
        queries = tokens + positions
        shape = (self.heads, self.levels, self.points)
        offsets = unflatten(self.sampling_offsets(queries).float(), -1, (self.heads, -1, 2))  # [B, N, A, L·P, 2]
        scores = unflatten(self.attention_weights(queries), -1, (self.heads, -1))  # [B, N, A, L·P]
        weights = unflatten(short_softmax(scores.float()), -1, shape[1:])  # [B, N, A, L, P]
        center_x, center_y = point_centers(level_hw, self.points, tokens.device)  # [N, 1, L·P] each
        x = unflatten(offsets[..., 0] + center_x, -1, shape[1:])  # [B, N, A, L, P]
        y = unflatten(offsets[..., 1] + center_y, -1, shape[1:])
        sampled = deformable_attention(value, level_hw, x, y, weights)
        return self.output_proj(sampled), weights.to(tokens.dtype)


@torch.no_grad()
def start_offsets(layer: nn.Linear) -> None:
    """Point each head in its own direction, its points one step further out each."""
    heads, levels, points = layer.start_ring  # type: ignore[misc]
    angle = torch.arange(heads, dtype=torch.float32) * (2 * math.pi / heads)
    ring = torch.stack((angle.cos(), angle.sin()), dim=-1)  # [A, 2]
    ring = ring / ring.abs().amax(dim=-1, keepdim=True)
    steps = torch.arange(1, points + 1, dtype=torch.float32)
    offsets = (ring[:, None, None] * steps[:, None]).expand(heads, levels, points, 2)
    layer.bias.copy_(offsets.flatten())


def deformable_attention(value: Tensor, level_hw: Levels, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Sum bilinear samples of all levels with weights; what lies outside a level counts as 0.

    Args:
        value: Tokens of all levels [B, N, A, D], level after level, each row by row.
        level_hw: (height, width) of each level.
        x: Where to sample, in pixels of the level, 0 at the centre of the first pixel [B, Q, A, L, P].
        y: The same down [B, Q, A, L, P].
        weights: Weight of each sample [B, Q, A, L, P].

    Returns:
        [B, Q, A·D] in the dtype of `value`; coordinates and sums are kept in float32.
    """
    if sum(height * width for height, width in level_hw) != value.shape[1]:
        raise InputError(
            f"value: expected one token for each pixel of {list(level_hw)}, got {value.shape[1]} tokens. "
            "Give the size of every level, in the order of the tokens."
        )
    sample = sum_rows if sums_rows(value) else sum_samples
    return sample(value.float(), level_hw, x, y, weights).to(value.dtype)


def sums_rows(value: Tensor) -> bool:
    """Tell whether one sum of rows can run here and is faster; in training on a GPU its gradient is slower."""
    if torch.compiler.is_exporting() or value.device.type not in ("cpu", "cuda"):
        return False
    return value.device.type == "cpu" or not (torch.is_grad_enabled() and value.requires_grad)


def sum_rows(value: Tensor, level_hw: Levels, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """`deformable_attention` as one weighted sum of rows."""
    B, _, A, D = value.shape
    Q, P = x.shape[1], x.shape[-1]
    maps = torch.split(value.flatten(2), [height * width for height, width in level_hw], dim=1)
    # A border of zeros stands for everything outside: one row or column before, two after.
    grids = (unflatten(one, 1, hw) for one, hw in zip(maps, level_hw, strict=True))  # [B, h, w, A·D] each
    bordered = [F.pad(grid, (0, 0, 1, 2, 1, 2)).flatten(1, 2) for grid in grids]
    table = torch.cat(bordered, dim=1)  # [B, M, A·D]
    M = table.shape[1]
    at = bordered_layout(level_hw, A, P, value.device)
    # All points of a query lie in one dimension: loops over levels of a few points each would cost most of the time.
    x, y, weights = x.flatten(2), y.flatten(2), weights.flatten(2)  # [B, Q, A·L·P]
    x = torch.clamp(x, at.least, at.width)
    y = torch.clamp(y, at.least, at.height)
    left, top = x.detach().floor(), y.detach().floor()
    right_part, bottom_part = x - left, y - top
    bottom = weights * bottom_part
    upper = weights - bottom
    upper_right, bottom_right = upper * right_part, bottom * right_part
    # Below 0 is only what was NaN: its weights are NaN, so any row will do.
    row = torch.addcmul(left + at.first, top, at.stride).to(torch.int32).clamp_(min=0) * A + at.head  # [B, Q, A·L·P]
    if B > 1:
        row = row + torch.arange(B, dtype=torch.int32, device=value.device)[:, None, None] * (M * A)
    down = (at.stride * A).to(torch.int32)
    out = F.embedding_bag(
        corners(row, row + A, row + down, row + (down + A), heads=A),
        table.view(B * M * A, D),
        per_sample_weights=corners(upper - upper_right, upper_right, bottom - bottom_right, bottom_right, heads=A),
        mode="sum",
    )  # [B·Q·A, D]
    return out.view(B, Q, A * D)


def corners(*parts: Tensor, heads: int) -> Tensor:
    """Collect values of the four pixels of each point, for each query and head: [B, Q, A·L·P] -> [B·Q·A, 4·L·P]."""
    return torch.cat([unflatten(part, -1, (heads, -1)).flatten(0, 2) for part in parts], dim=1)


def short_softmax(scores: Tensor) -> Tensor:
    """Softmax over a last dimension of a few numbers, which torch's own on the CPU takes one by one."""
    if scores.device.type != "cpu":
        return scores.softmax(-1)
    powers = (scores - scores.detach().amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def sum_samples(value: Tensor, level_hw: Levels, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """`deformable_attention` with one `grid_sample` a level, which exports."""
    B, _, A, _ = value.shape
    sizes = [height * width for height, width in level_hw]
    maps = torch.split(value.permute(0, 2, 3, 1).flatten(0, 1), sizes, dim=-1)  # [B·A, D, h·w] each
    parts = []
    for level, (height, width) in enumerate(level_hw):
        grid = torch.stack(((x[..., level, :] * 2 + 1) / width - 1, (y[..., level, :] * 2 + 1) / height - 1), dim=-1)
        samples = F.grid_sample(
            unflatten(maps[level], -1, (height, width)),  # [B·A, D, h, w]
            grid.transpose(1, 2).flatten(0, 1),  # [B·A, Q, P, 2]
            align_corners=False,
        )  # [B·A, D, Q, P]
        weight = weights[..., level, :].transpose(1, 2).flatten(0, 1)[:, None]  # [B·A, 1, Q, P]
        parts.append((samples * weight).sum(-1))  # [B·A, D, Q]
    total = unflatten(sum(parts[1:], start=parts[0]), 0, (B, A))  # [B, A, D, Q]
    return total.permute(0, 3, 1, 2).flatten(2)  # [B, Q, A·D]


@dataclass(frozen=True)
class BorderedLayout:
    """Where the pixels of each level lie in one table of bordered maps, for each point of each head [A·L·P].

    In float32, which is exact up to 2²⁴, but for `head`.
    """

    least: Tensor
    width: Tensor
    height: Tensor
    stride: Tensor  # rows of the table from one line of pixels to the next
    first: Tensor  # row of the first pixel
    head: Tensor  # int32


@cached_tensors
def bordered_layout(level_hw: Levels, heads: int, points: int, device: torch.device) -> BorderedLayout:
    """Describe levels of which each has a border of one row or column before and two after."""
    starts_at, before = [], 0
    for height, width in level_hw:
        starts_at.append(before + width + 4)
        before += (height + 3) * (width + 3)
    columns = [
        (-1.0, float(w), float(h), float(w + 3), float(s)) for (h, w), s in zip(level_hw, starts_at, strict=True)
    ]
    each = torch.tensor(columns, device=device).t().repeat_interleave(points, dim=1).repeat(1, heads)  # [5, A·L·P]
    head = torch.arange(heads, dtype=torch.int32, device=device).repeat_interleave(len(level_hw) * points)
    least, wide, high, stride, first = each.unbind(0)
    return BorderedLayout(least, wide, high, stride, first, head)


@cached_tensors
def point_centers(level_hw: Levels, points: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`level_centers` as x and as y, repeated for each point of a level: [N, 1, L·P] each."""
    each = level_centers(level_hw, device).repeat_interleave(points, dim=1)[:, None]  # [N, 1, L·P, 2]
    return each[..., 0].contiguous(), each[..., 1].contiguous()


def level_centers(level_hw: Levels, device: torch.device) -> Tensor:
    """Where the centre of every pixel of every level falls in every level, in its pixels as (x, y): [N, L, 2]."""
    parts = []
    for height, width in level_hw:
        y = (torch.arange(height, dtype=torch.float32, device=device) + 0.5) / height
        x = (torch.arange(width, dtype=torch.float32, device=device) + 0.5) / width
        parts.append(torch.stack((x.repeat(height), y.repeat_interleave(width)), dim=-1))  # [h·w, 2]
    sizes = torch.tensor([(width, height) for height, width in level_hw], dtype=torch.float32, device=device)
    return torch.cat(parts)[:, None] * sizes - 0.5  # [N, L, 2]


def level_sizes(maps: Sequence[Tensor]) -> Levels:
    """(height, width) of each map [B, C, h, w]."""
    return tuple((m.shape[-2], m.shape[-1]) for m in maps)
