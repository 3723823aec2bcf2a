"""Queries → one class a pixel: score of a class = Σ over queries of P(class | query) · P(pixel in mask of query).

The argmax at full size is exact, yet most pixels are never computed. Between four neighbouring cells of the model's
grid a mask's probability stays between the lowest and the highest of the four, which bounds the score of each class. A
class whose upper bound lies below another's lower bound is out; where one class is left, all pixels between the four
cells have it. What remains are the borders between classes: computed in strips, for the classes still in play.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitruvian.images.mask_grid import MaskGrid
from vitruvian.images.segments import MARGIN, class_scores

# At most this many mask probabilities exist at once, and scores when all of them are asked for.
VALUES_AT_ONCE = 1 << 24


def semantic_map(class_logits: Tensor, grid: MaskGrid) -> Tensor:
    """Return the class of each pixel: int64 [H, W]."""
    shares = class_scores(class_logits, grid)[:, :-1]  # [Q, K]
    low, high = grid.columns.low, grid.columns.high
    result = torch.empty(grid.size_hw, dtype=torch.int64, device=shares.device)  # [H, W]
    most_rows = max(1, VALUES_AT_ONCE // (len(shares) * len(grid.columns)))
    for top, bottom in runs(grid.rows.low, most_rows):
        cells = grid.logits[:, [int(grid.rows.low[top]), int(grid.rows.high[top])]].float()  # [Q, 2, w]
        floor, possible = class_bounds(shares, cells)  # [w], [K, w]
        result[top:bottom] = floor[low]  # [W]
        open_columns = (possible.sum(0) > 1)[low].nonzero()[:, 0]  # [n]
        if len(open_columns) == 0:
            continue
        classes = possible[:, low[open_columns]].any(1).nonzero()[:, 0]  # [k]
        sides = torch.lerp(
            cells[..., low[open_columns]], cells[..., high[open_columns]], grid.columns.weight[open_columns]
        )  # [Q, 2, n]
        pixels = torch.lerp(sides[:, :1], sides[:, 1:], grid.rows.weight[top:bottom, None]).sigmoid_()  # [Q, rows, n]
        scores = shares[:, classes].T @ pixels.flatten(1)  # [k, rows · n]
        result[top:bottom, open_columns] = classes[scores.argmax(0)].view(bottom - top, -1)
    return result


def semantic_scores(class_logits: Tensor, grid: MaskGrid) -> Tensor:
    """Return the score of each class at each pixel: float32 [K, H, W], the only one of its size that is made."""
    shares = class_scores(class_logits, grid)[:, :-1]  # [Q, K]
    height, width = grid.size_hw
    result = torch.empty((shares.shape[1], height, width), device=shares.device)  # [K, H, W]
    step = max(1, VALUES_AT_ONCE // (len(shares) * width))
    for top in range(0, height, step):
        window = (top, min(top + step, height), 0, width)
        pixels = torch.stack([grid.at(query, window) for query in range(len(shares))]).sigmoid_()  # [Q, rows, W]
        result[:, top : top + step] = torch.einsum("qk,qhw->khw", shares, pixels)
    return result


def class_bounds(shares: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """Return, between each cell and its right neighbour, the class with the best lower bound and who may still win.

    shares [Q, K], cells [Q, 2, w] of two neighbouring rows -> classes [w], possible [K, w].
    """
    least, most = cells.amin(1), cells.amax(1)  # [Q, w]
    least = torch.cat([torch.minimum(least[:, :-1], least[:, 1:]), least[:, -1:]], dim=1).sigmoid_()
    most = torch.cat([torch.maximum(most[:, :-1], most[:, 1:]), most[:, -1:]], dim=1).sigmoid_()
    sure, best = (shares.T @ least).max(0)  # [w]
    return best, shares.T @ most >= sure - MARGIN  # [w], [K, w]


def runs(values: Tensor, most: int) -> list[tuple[int, int]]:
    """Return start and end of the stretches of equal neighbours in values [N], none longer than `most`."""
    counts = torch.unique_consecutive(values, return_counts=True)[1].tolist()
    result, start = [], 0
    for count in counts:
        result += [(at, min(at + most, start + count)) for at in range(start, start + count, most)]
        start += count
    return result
