"""People cut out of a picture one by one, and their maps pasted back in source pixels.

    boxes ──▶ windows ── a model on each ──▶ maps [C, h, w] of any resolution ── Canvas ──▶ one map [H, W, C]

A pixel in several windows gets the weighted mean of their answers. Weights are one on the person's box and fall
smoothly to the window's edge, so each person's own crop decides over their body and no seam shows; for mattes and
labels a crop that sees a person there counts far more than one that sees background. Sums are kept only in blocks that
windows touch, and each block is finished and freed with its last window: memory follows the crops, not people ×
picture. All this is done on the device where the maps are, if the canvas is there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.resize import resize
from vitruvian.ops.crop import crop_params
from vitruvian.ops.pinned_copy import pinned_copy
from vitruvian.results.base import Picture

Blend = Literal["mean", "unit", "alpha", "labels"]
Block = tuple[int, int]
BLENDS: tuple[Blend, ...] = ("mean", "unit", "alpha", "labels")
BLOCK = 256  # pixels a side
GPU_BLOCK = 1024  # on a GPU, which wants few large steps
LEAST = 1e-4  # weight at the very edge of a window: little, but no pixel is left without an answer
BACKGROUND_COUNTS = 0.02  # for a crop that sees nothing but background


class Window(NamedTuple):
    """A part of a picture that a model looks at. Edges in pixels: pixel x reaches from x to x + 1."""

    top: float
    left: float
    height: float
    width: float

    def cut(self, picture: Picture) -> Picture:
        """Return the pixels of a window of whole pixels inside a picture [H, W, 3], without copying."""
        top, left, height, width = (int(side) for side in self)
        if (top, left, height, width) != tuple(self) or min(top, left) < 0:
            raise InputError(
                f"window: expected whole pixels inside the picture, got {tuple(self)}. Use person_windows."
            )
        return picture[top : top + height, left : left + width]

    def cut_tensor(self, pixels: Tensor) -> Tensor:
        """Return the pixels of such a window of a picture [C, H, W], without copying."""
        top, left, height, width = (int(side) for side in self)
        return pixels[:, top : top + height, left : left + width]

    def pixels(self, size_hw: tuple[int, int]) -> tuple[range, range]:
        """Return the rows and columns of a picture whose centres the window holds."""
        rows, columns = (
            range(max(0, math.ceil(start - 0.5)), min(side, math.ceil(start + length - 0.5)))
            for start, length, side in zip(self[:2], self[2:], size_hw, strict=True)
        )
        return rows, columns


class Pasted(NamedTuple):
    """A whole picture's map. For labels, `values` hold the score of each pixel's label."""

    values: NDArray[np.float32]  # [H, W, C]
    cover: NDArray[np.bool_]  # [H, W] where a window was
    labels: NDArray[np.uint8] | None = None  # [H, W]


def person_windows(
    boxes_xyxy: NDArray[np.float32], size_hw: tuple[int, int], *, padding: float = 1.25, aspect: float | None = 0.75
) -> list[Window]:
    """Lay windows of whole pixels around people, inside the picture.

    Args:
        boxes_xyxy: Boxes [P, 4]; they may lie outside or be tiny.
        size_hw: Size of the picture.
        padding: How much larger than the box a window is.
        aspect: Width / height of a window, as the model's input has it; windows that would stick out are shifted, and
            keep it as long as the picture is large enough. None keeps the box's own.
    """
    if not padding > 0 or (aspect is not None and not aspect > 0):
        raise InputError(f"padding, aspect: expected positive numbers, got {padding} and {aspect}.")
    windows = []
    for left, top, right, bottom in checked_boxes(boxes_xyxy).tolist():
        height, width = (bottom - top) * padding, (right - left) * padding
        if aspect is not None:
            height, width = max(height, width / aspect), max(width, height * aspect)
        spans = []
        for center, length, side in ((top + bottom, height, size_hw[0]), (left + right, width, size_hw[1])):
            whole = min(side, max(1, math.ceil(length)))
            spans.append((min(max(0, round(center / 2 - whole / 2)), side - whole), whole))
        windows.append(Window(spans[0][0], spans[1][0], spans[0][1], spans[1][1]))
    return windows


def crop_windows(boxes_xyxy: NDArray[np.float32], input_hw: tuple[int, int], *, padding: float = 1.25) -> list[Window]:
    """Return the windows [P] that `vitruvian.images.crop_boxes` samples for inputs of `input_hw`."""
    boxes = torch.from_numpy(checked_boxes(boxes_xyxy))
    if len(boxes) == 0:
        return []
    boxes[:, 2:] -= boxes[:, :2]
    center_xy, size_wh = crop_params(boxes, input_hw, padding)
    windows = []
    for center, size in zip(center_xy.tolist(), size_wh.tolist(), strict=True):
        # Its first and last samples lie on the box's edges, in coordinates where pixel x has its centre at x; the
        # pixels around these samples reach half a step further.
        steps = [length / max(1, count - 1) for length, count in zip(size, reversed(input_hw), strict=True)]
        left, top = (c - s / 2 - step / 2 + 0.5 for c, s, step in zip(center, size, steps, strict=True))
        windows.append(Window(top, left, steps[1] * input_hw[0], steps[0] * input_hw[1]))
    return windows


class Canvas:
    """Gathers the maps of windows into one of the whole picture.

    Args:
        size_hw: Size of the picture.
        windows: All windows that will come.
        channels: Channels of the maps.
        blend: ``"mean"`` for colours, points and the like; ``"unit"`` for vectors of length one; ``"alpha"`` for
            mattes, the last channel being alpha and the others premultiplied by it; ``"labels"`` for probabilities of
            classes, of which the first is background.
        boxes_xyxy: The people in the windows [P, 4], whose crops decide over their boxes. Left out for tiles.
        feather: Share of a window's side, at each edge inside the picture, in which its weight falls to nothing.
        fill: Value of pixels that no window covers.
        under: What lies under the windows: a map of the whole picture [H, W, C] or a number. Windows fade into it at
            their edges. None lets them end without fading. Not for labels.
        device: Where to paste; by default on the CPU.
    """

    def __init__(
        self,
        size_hw: tuple[int, int],
        windows: Sequence[Window],
        *,
        channels: int,
        blend: Blend = "mean",
        boxes_xyxy: NDArray[np.float32] | None = None,
        feather: float = 0.1,
        fill: float = 0.0,
        under: NDArray[np.float32] | float | None = None,
        device: torch.device | None = None,
    ) -> None:
        if blend not in BLENDS:
            raise InputError(f"blend: expected one of {', '.join(BLENDS)}, got {blend!r}.")
        if not 0 <= feather <= 0.5:
            raise InputError(f"feather: expected a share from 0 to 0.5, got {feather}.")
        if boxes_xyxy is not None and len(checked_boxes(boxes_xyxy)) != len(windows):
            raise InputError(f"boxes_xyxy: expected one for each of {len(windows)} windows, got {len(boxes_xyxy)}.")
        if blend == "labels" and (under is not None or channels > 256):
            raise InputError("labels: expected at most 256 classes and nothing under them.")
        if isinstance(under, np.ndarray) and under.shape != (*size_hw, channels):
            raise InputError(f"under: expected the shape {[*size_hw, channels]}, got {list(under.shape)}.")
        self.device = torch.device("cpu") if device is None else device
        self.block = GPU_BLOCK if self.device.type == "cuda" else BLOCK
        self.size_hw, self.windows, self.channels, self.blend = size_hw, list(windows), channels, blend
        self.boxes, self.feather, self.under = boxes_xyxy, feather, under
        self.added = [False] * len(self.windows)
        self.waiting = Counter(block for window in self.windows for block in self.blocks_of(window))
        self.sums: dict[Block, Tensor] = {}
        wide = 1 if blend == "labels" else channels
        self.values = torch.full((*size_hw, wide), fill, dtype=torch.float32, device=self.device)
        if under is not None:
            self.values[...] = pinned_copy(under, self.device) if isinstance(under, np.ndarray) else under
        self.cover = torch.zeros(size_hw, dtype=torch.bool, device=self.device)
        self.labels = torch.zeros(size_hw, dtype=torch.uint8, device=self.device) if blend == "labels" else None

    def add(self, index: int, values: Tensor | NDArray[Any], confidence: Tensor | NDArray[Any] | None = None) -> None:
        """Paste the map of a window.

        Args:
            index: Which of the windows.
            values: Map [C, h, w] of any resolution that spans the window. Pixels that are not finite do not count.
            confidence: How much each pixel counts [h, w], from 0 to 1.
        """
        if not 0 <= index < len(self.windows) or self.added[index]:
            raise InputError(f"index: expected a window that has no map yet, got {index} of {len(self.windows)}.")
        patch = self.weighted(values, confidence)  # [C + 1, h, w]
        window = self.windows[index]
        self.added[index] = True
        rows, columns = window.pixels(self.size_hw)
        if not rows or not columns:
            return
        small_hw = min(patch.shape[1], math.ceil(window.height)), min(patch.shape[2], math.ceil(window.width))
        patch = resize(patch, small_hw)  # shrinking averages; enlarging comes block by block
        weights = self.edge_weights(index, 0, rows), self.edge_weights(index, 1, columns)
        for block in self.blocks_of(window):
            part_rows, part_columns = self.overlap(rows, block[0]), self.overlap(columns, block[1])
            piece = sample(patch, window, part_rows, part_columns)  # [C + 1, r, c]
            down = weights[0][part_rows.start - rows.start : part_rows.stop - rows.start]  # [r]
            across = weights[1][part_columns.start - columns.start : part_columns.stop - columns.start]  # [c]
            sums = self.block_sums(block)[:, self.spot(part_rows), self.spot(part_columns)]  # [C + 2, r, c]
            sums += self.shares(piece, down[:, None] * across)
            self.waiting[block] -= 1
            if self.waiting[block] == 0:
                self.close_block(block)

    def finish(self) -> Pasted:
        """Return the whole map, once all windows have theirs."""
        found = {name: tensor.cpu().numpy() for name, tensor in self.tensors().items()}
        return Pasted(found["values"], found["cover"], found.get("labels"))

    def tensors(self) -> dict[str, Tensor]:
        """Return the same where it is: `values` [H, W, C], `cover` [H, W], and for labels `labels` [H, W]."""
        missing = [index for index, done in enumerate(self.added) if not done]
        if missing:
            raise InputError(f"Canvas: expected a map for every window, got none for {missing[:8]}. Add them first.")
        found = {"values": self.values, "cover": self.cover}
        return found if self.labels is None else found | {"labels": self.labels}

    # ------------------------------------------------------------------------------------------------ inside

    def weighted(self, values: Tensor | NDArray[Any], confidence: Tensor | NDArray[Any] | None) -> Tensor:
        """Check a map and multiply it by how much each pixel counts: float32 [C + 1, h, w], the factor last.

        Resampling the products, and dividing later, keeps what does not count out of its neighbours.
        """
        maps = torch.as_tensor(values).detach().float().to(self.device)
        if maps.ndim != 3 or len(maps) != self.channels or 0 in maps.shape:
            raise InputError(f"values: expected the shape [{self.channels}, h, w], got {list(maps.shape)}.")
        finite = maps.isfinite().all(0)  # [h, w]
        factor = finite.float()
        if confidence is not None:
            given = torch.as_tensor(confidence).detach().float().to(self.device)
            if given.shape != factor.shape:
                raise InputError(f"confidence: expected the shape {list(factor.shape)}, got {list(given.shape)}.")
            factor = factor * given
        return torch.cat((torch.where(finite, maps, 0.0) * factor, factor[None]))

    def shares(self, piece: Tensor, weight: Tensor) -> Tensor:
        """Return what a window adds to a block's sums: [C + 1, r, c] of `weighted` and weights [r, c] -> [C + 2, r, c].

        How much a crop counts for what it sees is settled here, at full size: it must not bend the resampling.
        """
        products, factor = piece[:-1], piece[-1]
        maps = products / torch.where(factor > 0, factor, 1.0)  # [C, r, c]
        weight = weight * factor
        counts = weight
        if self.blend == "alpha":  # squared: where two crops disagree, the one that sees someone is right
            counts = weight * (BACKGROUND_COUNTS + (1 - BACKGROUND_COUNTS) * maps[-1].clamp(0, 1) ** 2)
        elif self.blend == "labels":
            counts = weight * (1 - (1 - BACKGROUND_COUNTS) * maps[0].clamp(0, 1))
        return torch.cat((maps * counts, counts[None], weight[None]))

    def edge_weights(self, index: int, axis: int, pixels: range) -> Tensor:
        """Return the weights of one window's rows (axis 0) or columns: one at the person, almost none at the edges."""
        window, side = self.windows[index], self.size_hw[axis]
        start, stop = window[axis], window[axis] + window[axis + 2]
        low, high = start + self.feather * (stop - start), stop - self.feather * (stop - start)
        if self.boxes is not None:
            first, last = (float(self.boxes[index][1 - axis + 2 * end]) for end in (0, 1))
            # A core must be left even where box and window have little in common.
            low, high = min(max(low, first), high), max(min(high, last), low)
        places = torch.arange(pixels.start, pixels.stop) + 0.5  # [n]
        rise = torch.ones_like(places) if start <= 0 else (places - start) / max(low - start, 1e-6)
        fall = torch.ones_like(places) if stop >= side else (stop - places) / max(stop - high, 1e-6)
        ramp = torch.minimum(rise, fall).clamp(0, 1)
        return pinned_copy((ramp * ramp * (3 - 2 * ramp)).clamp(min=LEAST), self.device)

    def blocks_of(self, window: Window) -> Iterator[Block]:
        """Name the blocks of the picture that a window touches, by row and column."""
        rows, columns = window.pixels(self.size_hw)
        if rows and columns:
            for row in range(rows.start // self.block, (rows.stop - 1) // self.block + 1):
                for column in range(columns.start // self.block, (columns.stop - 1) // self.block + 1):
                    yield row, column

    def overlap(self, pixels: range, block: int) -> range:
        """Return those of the pixels that are in a block's row or column."""
        return range(max(pixels.start, block * self.block), min(pixels.stop, (block + 1) * self.block))

    def spot(self, pixels: range) -> slice:
        """Return where pixels of a block lie in it."""
        offset = pixels.start // self.block * self.block
        return slice(pixels.start - offset, pixels.stop - offset)

    def block_sums(self, block: Block) -> Tensor:
        """Return the sums of a block: [C + 2, r, c] of values, of how much they count, and of weights alone."""
        if block not in self.sums:
            sides = [min(self.block, side - at * self.block) for at, side in zip(block, self.size_hw, strict=True)]
            self.sums[block] = torch.zeros(self.channels + 2, *sides, device=self.device)
        return self.sums[block]

    def close_block(self, block: Block) -> None:
        """Turn the sums of a block into values, and let go of them."""
        sums = self.sums.pop(block)
        total, counts, weight = sums[:-2], sums[-2], sums[-1]
        answered = counts > 0  # [r, c]
        mean = total / torch.where(answered, counts, 1.0)  # [C, r, c]
        top, left = block[0] * self.block, block[1] * self.block
        spots = slice(top, top + sums.shape[1]), slice(left, left + sums.shape[2])
        self.cover[spots] |= answered
        held = self.values[spots].permute(2, 0, 1)  # [C, r, c] what is there now
        if self.labels is not None:
            score, label = best_label(mean)
            self.labels[spots] = label * answered
            mean = score[None]
        elif self.under is not None:
            mean = torch.lerp(held, mean, weight.clamp(0, 1))
        if self.blend == "unit":
            mean = mean / mean.square().sum(0).sqrt().clamp(min=1e-12)
        held.copy_(torch.where(answered, mean, held))


def sample(patch: Tensor, window: Window, rows: range, columns: range) -> Tensor:
    """Read a map [C, h, w] that spans a window at pixels of the picture, bilinearly: [C, rows, columns]."""
    if tuple(patch.shape[1:]) == window[2:] and all(start == int(start) for start in window[:2]):
        top, left = int(window.top), int(window.left)  # a sample for each pixel
        return patch[:, rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    down = spread_over(rows, window.top, window.height)  # [r]
    across = spread_over(columns, window.left, window.width)  # [c]
    across, down = pinned_copy(across, patch.device), pinned_copy(down, patch.device)
    grid = torch.stack(torch.meshgrid(across, down, indexing="xy"), dim=-1)  # [r, c, 2]
    # Many times faster on a CPU than gathering rows and columns.
    return F.grid_sample(patch[None], grid[None], mode="bilinear", padding_mode="border", align_corners=False)[0]


def spread_over(pixels: range, start: float, length: float) -> Tensor:
    """Return where the centres of pixels lie in a span, from -1 at its start to 1 at its end: [n]."""
    centres = torch.arange(pixels.start, pixels.stop, dtype=torch.float64) + 0.5  # [n]
    return ((centres - start) * (2 / length) - 1).float()


def best_label(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the highest of scores [K, r, c] and which it is: [r, c] each. Many times faster than `max` over planes."""
    best, label = scores[0].clone(), torch.zeros(scores.shape[1:], dtype=torch.uint8, device=scores.device)
    for number, score in enumerate(scores[1:], start=1):
        label.masked_fill_(score > best, number)
        torch.maximum(best, score, out=best)
    return best, label


def checked_boxes(boxes_xyxy: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a copy of boxes [P, 4], which must be finite and have some area."""
    boxes: NDArray[np.float32] = np.array(boxes_xyxy, np.float32)
    boxes = boxes.reshape(0, 4) if boxes.size == 0 else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise InputError(f"boxes_xyxy: expected the shape [P, 4], got {list(boxes.shape)}.")
    if not np.isfinite(boxes).all() or not (boxes[:, 2:] > boxes[:, :2]).all():
        raise InputError("boxes_xyxy: expected finite boxes with some area. Drop the others first.")
    return boxes
