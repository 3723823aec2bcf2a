"""Semantic segmentation: score of a class = Σ over queries of P(class | query) · P(pixel in mask of query).

The argmax at full size is exact, yet most pixels are never computed. Between four neighboring cells of the model's
grid the probability of a mask lies between the lowest and the highest of the four, which bounds the score of each
class. A class whose upper bound lies below another's lower bound cannot win; where one class is left, all pixels
between the four cells have it. The rest, borders between classes, is computed block by block for the classes that can
still win.

A *block* is the area between a cell and its right, lower and lower right neighbors.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitruvian.models.mask_classification.mask_grid import Axis, MaskGrid
from vitruvian.models.mask_classification.segments import MARGIN, class_scores

# Largest number of mask probabilities or bounds in memory.
_MAX_VALUES = 1 << 22


def semantic_map(class_logits: Tensor, grid: MaskGrid) -> Tensor:
    """Return the class of each pixel: int64 [H, W]."""
    shares = class_scores(class_logits, grid)[:, :-1]  # [Q, K]
    height, width = grid.logits.shape[1:]
    best = torch.empty((height, width), dtype=torch.int64, device=shares.device)  # [h, w]
    possible = torch.empty((shares.shape[1], height, width), dtype=torch.bool, device=shares.device)  # [K, h, w]
    step = max(1, _MAX_VALUES // (max(shares.shape) * width))
    for top in range(0, height, step):
        cells = grid.logits[:, top : top + step + 1].float()  # [Q, rows + 1, w]; the last row is a neighbor only
        sure, maybe = _class_bounds(shares, cells)
        rows = min(step, height - top)
        best[top : top + rows], possible[:, top : top + rows] = sure[:rows], maybe[:, :rows]
    result = best[grid.rows.low].index_select(1, grid.columns.low)  # [H, W]
    _fill_open_blocks(result, possible, shares, grid)
    return result


def semantic_scores(class_logits: Tensor, grid: MaskGrid) -> Tensor:
    """Return the score of each class at each pixel: float32 [K, H, W], the only tensor of that size in memory."""
    shares = class_scores(class_logits, grid)[:, :-1]  # [Q, K]
    height, width = grid.size_hw
    result = torch.empty((shares.shape[1], height, width), device=shares.device)  # [K, H, W]
    step = max(1, _MAX_VALUES // (len(shares) * width))
    for top in range(0, height, step):
        window = (top, min(top + step, height), 0, width)
        pixels = torch.stack([grid.at(query, window) for query in range(len(shares))]).sigmoid_()  # [Q, rows, W]
        result[:, top : top + step] = torch.einsum("qk,qhw->khw", shares, pixels)
    return result


def _class_bounds(shares: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each block, the class with the best lower bound and whether each class may still win.

    shares [Q, K], cells [Q, h, w] -> classes [h, w], possible [K, h, w]. Blocks of the last row and column have no
    further neighbors.
    """
    least = _two_by_two(cells, torch.minimum).sigmoid_()  # [Q, h, w]
    sure, best = torch.einsum("qk,qhw->khw", shares, least).max(0)  # [h, w]
    highest = _two_by_two(cells, torch.maximum).sigmoid_()  # [Q, h, w]
    return best, torch.einsum("qk,qhw->khw", shares, highest) >= sure - MARGIN  # [h, w], [K, h, w]


def _two_by_two(cells: Tensor, choose: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the lowest or highest of each cell and its right, lower and lower right neighbors: [Q, h, w]."""
    result = cells.clone()
    result[:, :-1] = choose(cells[:, :-1], cells[:, 1:])
    result[:, :, :-1] = choose(result[:, :, :-1], result[:, :, 1:])
    return result


def _fill_open_blocks(result: Tensor, possible: Tensor, shares: Tensor, grid: MaskGrid) -> None:
    """Compute the pixels of blocks in which several classes are possible [K, h, w]; write them into result [H, W]."""
    (row_start, row_count), (column_start, column_count) = _block_pixels(grid.rows), _block_pixels(grid.columns)
    undecided = (possible.sum(0) > 1) & (row_count > 0)[:, None] & (column_count > 0)  # [h, w]
    rows, columns = undecided.nonzero(as_tuple=True)  # [n] each
    if len(rows) == 0:
        return
    # Blocks differ by a pixel in size; all are computed at the size of the largest, and surplus pixels are dropped.
    height, width = int(row_count.max()), int(column_count.max())
    rows_per_step = max(1, min(height, _MAX_VALUES // (len(shares) * width)))
    blocks_per_step = max(1, _MAX_VALUES // (len(shares) * width * rows_per_step))
    across = torch.arange(width, device=result.device)
    for start in range(0, len(rows), blocks_per_step):
        row, column = rows[start : start + blocks_per_step], columns[start : start + blocks_per_step]  # [m] each
        classes = possible[:, row, column].any(1).nonzero()[:, 0]  # [k]
        weights = shares[:, classes].T  # [k, Q]
        x = column_start[column, None] + across  # [m, width]
        for top in range(0, height, rows_per_step):
            down = torch.arange(top, min(top + rows_per_step, height), device=result.device)
            y = row_start[row, None] + down  # [m, height]
            pixels = _block_logits(grid, row, column, y, x).sigmoid_()  # [Q, m, height, width]
            winners = classes[(weights @ pixels.flatten(1)).max(0).indices].view(len(row), len(down), width)
            inside = (down < row_count[row, None])[:, :, None] & (across < column_count[column, None])[:, None]
            indices = (y * result.shape[1])[:, :, None] + x[:, None]  # [m, height, width]
            result.view(-1)[indices[inside]] = winners[inside]


def _block_logits(grid: MaskGrid, row: Tensor, column: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return the logits of m blocks [m] at pixel rows y [m, height] and columns x [m, width]: [Q, m, height, width]."""
    below = (row + 1).clamp(max=grid.logits.shape[1] - 1)
    beside = (column + 1).clamp(max=grid.logits.shape[2] - 1)
    down = grid.rows.weight[y.clamp(max=len(grid.rows) - 1)]  # [m, height]
    across = grid.columns.weight[x.clamp(max=len(grid.columns) - 1)]  # [m, width]
    left, right = (
        torch.lerp(grid.logits[:, row, at].float()[..., None], grid.logits[:, below, at].float()[..., None], down)
        for at in (column, beside)
    )  # [Q, m, height] each
    return torch.lerp(left[..., None], right[..., None], across[:, None])  # [Q, m, height, width]


def _block_pixels(axis: Axis) -> tuple[Tensor, Tensor]:
    """Return the first pixel and the number of pixels of each block along one side: [cells] each."""
    cells = torch.arange(axis.cells, device=axis.low.device)
    start = torch.searchsorted(axis.low, cells)
    return start, torch.searchsorted(axis.low, cells, right=True) - start
