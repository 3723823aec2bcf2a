"""Mask logits on a model's coarse grid, resampled at the pixels of the image.

    logits [Q, h, w] ── without padding ──▶ content cells ── bilinear, once ──▶ pixels of the target [H, W]

A model computes masks of a resized and padded image on a grid with one cell for every few input pixels. `MaskGrid`
stores which cells hold the image, and between which two cells each target pixel lies, so that any window of any query
can be resampled without the rest. Values are those of `F.interpolate(..., align_corners=False)` on the content alone.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vitruvian.errors import InputError, VitruvianWarning
from vitruvian.images.types import SizeHW

Window = tuple[int, int, int, int]  # top, bottom, left, right in pixels; bottom and right exclusive

# Pixels of a strip: small enough for the cache of a CPU, large enough for a GPU.
_STRIP_PIXELS = {"cpu": 1 << 19, "cuda": 1 << 24}


@dataclasses.dataclass(frozen=True)
class Axis:
    """One side of the target: pixel i lies `weight[i]` of the way from cell `low[i]` to cell `high[i]`."""

    low: Tensor  # [pixels] int64
    high: Tensor  # [pixels] int64
    weight: Tensor  # [pixels] float32

    def __len__(self) -> int:
        return len(self.low)

    @property
    def cells(self) -> int:
        """Number of cells, from the first, that the pixels read."""
        return int(self.high[-1]) + 1


def make_axis(content: float, pixels: int, *, device: torch.device | None = None) -> Axis:
    """Distribute `pixels` pixels over the first `content` cells, which may end inside a cell."""
    last = math.ceil(content) - 1
    position = (torch.arange(pixels, dtype=torch.float64) + 0.5) * (content / pixels) - 0.5  # [pixels]
    position = position.clamp(0, last)
    low = position.floor()
    high = (low + 1).clamp(max=last)
    weight = (position - low).float()
    return Axis(low.long().to(device), high.long().to(device), weight.to(device))


@dataclasses.dataclass(frozen=True)
class MaskGrid:
    """Mask logits [Q, h, w] of one image, and the positions of its target pixels on them."""

    logits: Tensor
    rows: Axis
    columns: Axis

    @classmethod
    def make(
        cls, logits: Tensor, target_hw: SizeHW | None = None, content_hw: tuple[float, float] | None = None
    ) -> MaskGrid:
        """Map `target_hw` pixels to the top left `content_hw` cells of logits [Q, h, w].

        Without `content_hw` the whole grid is content; without `target_hw` every content cell is one pixel.
        """
        if logits.ndim != 3 or 0 in logits.shape[1:]:
            raise InputError(f"mask logits: expected the shape [Q, h, w], got {list(logits.shape)}.")
        height, width = logits.shape[1:]
        content_height, content_width = content_hw or (height, width)
        if not (0 < content_height <= height and 0 < content_width <= width):
            raise InputError(f"content: expected a part of the {height}×{width} mask grid, got {content_hw}.")
        target_height, target_width = target_hw or (math.ceil(content_height), math.ceil(content_width))
        rows = make_axis(content_height, target_height, device=logits.device)
        columns = make_axis(content_width, target_width, device=logits.device)
        return cls(logits[:, : rows.cells, : columns.cells], rows, columns)

    @property
    def size_hw(self) -> SizeHW:
        """Height and width of the target."""
        return len(self.rows), len(self.columns)

    def at(self, query: int, window: Window) -> Tensor:
        """Return one query's logits at the pixels of a window: float32 [bottom - top, right - left]."""
        top, bottom, left, right = window
        cells = self.logits[query, int(self.rows.low[top]) : int(self.rows.high[bottom - 1]) + 1].float()  # [c, w]
        # Columns first, while there are only the few rows of the grid.
        wide = torch.lerp(
            cells.index_select(1, self.columns.low[left:right]),
            cells.index_select(1, self.columns.high[left:right]),
            self.columns.weight[left:right],
        )  # [c, right - left]
        first = self.rows.low[top]
        return torch.lerp(
            wide.index_select(0, self.rows.low[top:bottom] - first),
            wide.index_select(0, self.rows.high[top:bottom] - first),
            self.rows.weight[top:bottom, None],
        )  # [bottom - top, right - left]

    def strips(self, window: Window) -> Iterator[Window]:
        """Cut a window into strips of full width and a bounded number of pixels."""
        top, bottom, left, right = window
        step = max(1, _STRIP_PIXELS.get(self.logits.device.type, _STRIP_PIXELS["cuda"]) // max(1, right - left))
        for start in range(top, bottom, step):
            yield start, min(start + step, bottom), left, right

    def windows(self, queries: Sequence[int], at_least: Tensor) -> list[Window]:
        """Return for each of n queries the smallest window outside of which its logits stay below `at_least` [n].

        A pixel is an average of its cells, so no pixel is high enough where no cell is. Windows of queries that are
        high enough nowhere are empty.
        """
        indices = torch.tensor(queries, dtype=torch.int64, device=self.logits.device)
        reached = self.logits[indices] >= at_least[:, None, None]  # [n, h, w]
        (top, bottom), (left, right) = _span(reached.any(2)), _span(reached.any(1))
        edges = torch.stack(
            [
                torch.searchsorted(self.rows.high, top),
                torch.searchsorted(self.rows.low, bottom, right=True),
                torch.searchsorted(self.columns.high, left),
                torch.searchsorted(self.columns.low, right, right=True),
            ],
            dim=1,
        )  # [n, 4]
        edges = torch.where(reached.flatten(1).any(1)[:, None], edges, 0)
        return [(top, bottom, left, right) for top, bottom, left, right in edges.tolist()]


def _span(flags: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and last true index of each row of flags [n, cells], as [n] each."""
    numbers = flags.to(torch.uint8)
    return numbers.argmax(1), flags.shape[1] - 1 - numbers.flip(1).argmax(1)


def cells_from_pixel_mask(pixel_mask: Tensor, count: int, grid_hw: SizeHW, stride: int) -> list[tuple[float, float]]:
    """Return how many rows and columns of the mask grid each image covers, from `pixel_mask` [B, H, W]."""
    mask = torch.as_tensor(pixel_mask).bool()
    if mask.ndim != 3 or len(mask) != count or not bool(mask.flatten(1).any(1).all()):
        raise InputError(
            f"pixel_mask: expected the shape [{count}, H, W] with some pixels in each image, got {list(mask.shape)}."
        )
    padded_hw = mask.shape[1:]
    # Models round inputs up to whole cells. A grid with another stride covers the input evenly.
    steps = [stride if math.ceil(p / stride) == g else p / g for p, g in zip(padded_hw, grid_hw, strict=True)]
    heights, widths = mask.any(2).sum(1).tolist(), mask.any(1).sum(1).tolist()
    return [(height / steps[0], width / steps[1]) for height, width in zip(heights, widths, strict=True)]


def cells_from_sizes(
    resized: Sequence[SizeHW], pad_hw: SizeHW | None, grid_hw: SizeHW, stride: int, *, must_match: bool
) -> list[tuple[float, float]] | None:
    """Return how many rows and columns of the mask grid each image covers, from the sizes before padding.

    Sizes are valid if a batch padded to the largest of them has the grid that the model returned. Others are an error
    with `must_match`; without it, return None (the whole grid), with a warning if the images of a batch differ.
    """
    padded = pad_hw or (max(height for height, _ in resized), max(width for _, width in resized))
    matches = all(math.ceil(p / stride) == g for p, g in zip(padded, grid_hw, strict=True)) and all(
        height <= padded[0] and width <= padded[1] for height, width in resized
    )
    if matches:
        return [(height / stride, width / stride) for height, width in resized]
    message = (
        f"images resized to {list(resized)} would give a mask grid of "
        f"{math.ceil(padded[0] / stride)}×{math.ceil(padded[1] / stride)}, but the model's is {grid_hw[0]}×{grid_hw[1]}"
    )
    if must_match:
        raise InputError(f"source_sizes: {message}. Give the sizes before resizing, or pixel_mask.")
    if len(set(resized)) > 1:
        warnings.warn(
            f"target_sizes: {message}; padding is not removed. Give source_sizes or pixel_mask to remove it.",
            VitruvianWarning,
            stacklevel=4,
        )
    return None
