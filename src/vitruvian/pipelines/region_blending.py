"""Blending of the maps of regions into a map of the whole image.

    image ── regions ── model ──▶ maps [C, h, w] of any resolution ── RegionBlender ──▶ one map [H, W, C]

A pixel in several regions gets the weighted mean of their maps. The weight is one on a person's box and falls smoothly
to the edge of the region, so that each person's crop decides over their body and no seam is visible. For mattes and
labels, foreground weighs far more than background. Sums are allocated in blocks that regions touch, and each block is
freed with its last region: memory depends on the crops, not on people × image. Everything runs on one device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.cuda.pinned_copy import pinned_copy
from vitruvian.errors import InputError
from vitruvian.images.guided_filter import guided_upsample
from vitruvian.images.resize import resize
from vitruvian.images.types import SizeHW
from vitruvian.pipelines.regions import Region

Blend = Literal["mean", "unit", "alpha", "labels"]
Block = tuple[int, int]
_CPU_BLOCK = 256  # side of a block in pixels
_CUDA_BLOCK = 1024  # larger on a GPU, for fewer operations
_MIN_WEIGHT = 1e-4  # weight at the edge of a region: not 0, so that every pixel has a value
_BACKGROUND_WEIGHT = 0.02  # weight of a crop where it shows background only, relative to foreground
_MAX_BILINEAR_FACTOR = 1.5  # above this factor, bilinear upsampling blurs edges visibly


class RegionBlender:
    """Blends the maps of regions into one of the whole image.

    Args:
        size_hw: Size of the image.
        regions: All regions, whose maps are added one by one.
        channels: Channels of the maps.
        blend: ``"mean"`` for colors, points and other values; ``"unit"`` for unit vectors; ``"alpha"`` for mattes,
            with alpha as the last channel and the others premultiplied; ``"labels"`` for class probabilities, of which
            the first is background.
        boxes_xyxy: Boxes of the people in the regions [P, 4], on which their weight is one. None for tiles.
        feather: Share of a region's side, at each edge inside the image, over which its weight falls to zero.
        device: Device of the blender; by default the CPU.
        image: The image on that device [3, H, W], to upsample maps along its edges that are much smaller than their
            region. Not for labels.
    """

    def __init__(
        self,
        size_hw: SizeHW,
        regions: Sequence[Region],
        *,
        channels: int,
        blend: Blend = "mean",
        boxes_xyxy: NDArray[np.float32] | None = None,
        feather: float = 0.1,
        device: torch.device | None = None,
        image: Tensor | None = None,
    ) -> None:
        if not 0 <= feather <= 0.5:
            raise InputError(f"feather: expected a share from 0 to 0.5, got {feather}.")
        if blend == "labels" and not 2 <= channels <= 256:
            raise InputError(f"labels: expected 2 to 256 classes, got {channels}.")
        self.device = torch.device("cpu") if device is None else device
        self._block = _CUDA_BLOCK if self.device.type == "cuda" else _CPU_BLOCK
        self._size_hw, self._regions, self._channels, self._blend = size_hw, list(regions), channels, blend
        self._boxes, self._feather, self._image = boxes_xyxy, feather, image
        self._remaining = Counter(block for region in self._regions for block in self._blocks(region))
        self._sums: dict[Block, Tensor] = {}
        value_channels = 1 if blend == "labels" else channels
        self._values = torch.zeros((*size_hw, value_channels), dtype=torch.float32, device=self.device)
        self._cover = torch.zeros(size_hw, dtype=torch.bool, device=self.device)
        # The best class of each pixel, and the best one but the background.
        self._labels = torch.zeros(2, *size_hw, dtype=torch.uint8, device=self.device) if blend == "labels" else None

    def add(self, index: int, values: Tensor) -> None:
        """Add the map of a region.

        Args:
            index: Index of the region.
            values: Map [C, h, w] of any resolution that spans the region. Non-finite pixels have no weight.
        """
        patch, region = self._weighted(values), self._regions[index]  # [C + 1, h, w]
        rows, columns = region.pixels(self._size_hw)
        if not rows or not columns:
            return
        if self._image is not None and blurs_when_upsampled(patch, region[2:]):
            patch, region = self._upsampled_along_edges(patch, region)
        else:
            # Downsampling averages, and is done here; upsampling is done block by block.
            patch = resize(
                patch, (min(patch.shape[1], math.ceil(region.height)), min(patch.shape[2], math.ceil(region.width)))
            )
        row_weights, column_weights = self._edge_weights(index, 0, rows), self._edge_weights(index, 1, columns)
        for block in self._blocks(region):
            block_rows, block_columns = self._clip_to_block(rows, block[0]), self._clip_to_block(columns, block[1])
            piece = _sample(patch, region, block_rows, block_columns)  # [C + 1, r, c]
            down = row_weights[block_rows.start - rows.start : block_rows.stop - rows.start]  # [r]
            across = column_weights[block_columns.start - columns.start : block_columns.stop - columns.start]  # [c]
            area = (slice(None), self._in_block(block_rows), self._in_block(block_columns))
            self._block_sums(block)[area] += self._contribution(piece, down[:, None] * across)  # [C + 1, r, c]
            self._remaining[block] -= 1
            if self._remaining[block] == 0:
                self._close_block(block)

    def result(self) -> dict[str, Tensor]:
        """Return the whole map, once the maps of all regions have been added.

        Returns:
            `values` [H, W, C] (for labels the score of each pixel's label), `cover` [H, W] where there is a region,
            and for labels `labels` [H, W] and `foreground` [H, W], the best class but the background.
        """
        tensors = {"values": self._values, "cover": self._cover}
        return tensors if self._labels is None else tensors | {"labels": self._labels[0], "foreground": self._labels[1]}

    def _weighted(self, values: Tensor) -> Tensor:
        """Check a map, and append the weight of each pixel: float32 [C + 1, h, w], zero where it is not finite.

        Resampling the products and dividing later keeps pixels without weight out of their neighbors.
        """
        maps = values.detach().float().to(self.device)
        if maps.ndim != 3 or len(maps) != self._channels or 0 in maps.shape:
            raise InputError(f"values: expected the shape [{self._channels}, h, w], got {list(maps.shape)}.")
        finite = maps.isfinite().all(0)  # [h, w]
        return torch.cat((torch.where(finite, maps, 0.0), finite.float()[None]))

    def _upsampled_along_edges(self, patch: Tensor, region: Region) -> tuple[Tensor, Region]:
        """Upsample the result of `_weighted` for a region; return it for the pixels of the region in the image."""
        assert self._image is not None
        rows, columns = region.pixels(self._size_hw)
        inner = Region(rows.start, columns.start, len(rows), len(columns))
        sides = [max(1, round(patch.shape[i + 1] * inner[i + 2] / region[i + 2])) for i in (0, 1)]
        small = _sample_at(
            patch,
            _grid_coordinates(rows, region.top, region.height, sides[0]),
            _grid_coordinates(columns, region.left, region.width, sides[1]),
        )  # [C + 1, h, w]
        maps = guided_upsample(small[:-1], inner.crop(self._image))  # [C, r, c]
        known = resize(small[-1:], (len(rows), len(columns)), antialias=False) > 0.999  # [1, r, c]
        return torch.cat((maps * known, known.float())), inner

    def _contribution(self, piece: Tensor, edge_weight: Tensor) -> Tensor:
        """Return what a region adds to a block's sums: [C + 1, r, c] of `_weighted`, [r, c] -> [C + 1, r, c].

        Foreground is weighted here, at full resolution, so that it does not distort the resampling.
        """
        products, factor = piece[:-1], piece[-1]
        maps = products / torch.where(factor > 0, factor, 1.0)  # [C, r, c]
        weight = edge_weight * factor
        if self._blend == "alpha":  # squared: where two crops disagree, the one that sees someone is right
            weight = weight * (_BACKGROUND_WEIGHT + (1 - _BACKGROUND_WEIGHT) * maps[-1].clamp(0, 1) ** 2)
        elif self._blend == "labels":
            weight = weight * (1 - (1 - _BACKGROUND_WEIGHT) * maps[0].clamp(0, 1))
        return torch.cat((maps * weight, weight[None]))

    def _edge_weights(self, index: int, axis: int, pixels: range) -> Tensor:
        """Return the weights of one region's rows (axis 0) or columns: one at the person, almost zero at the edges."""
        region, side = self._regions[index], self._size_hw[axis]
        start, stop = region[axis], region[axis] + region[axis + 2]
        low, high = start + self._feather * (stop - start), stop - self._feather * (stop - start)
        if self._boxes is not None:
            first, last = (float(self._boxes[index][1 - axis + 2 * end]) for end in (0, 1))
            # A core remains even if box and region hardly overlap.
            low, high = min(max(low, first), high), max(min(high, last), low)
        centers = torch.arange(pixels.start, pixels.stop) + 0.5  # [n]
        rising = torch.ones_like(centers) if start <= 0 else (centers - start) / max(low - start, 1e-6)
        falling = torch.ones_like(centers) if stop >= side else (stop - centers) / max(stop - high, 1e-6)
        ramp = torch.minimum(rising, falling).clamp(0, 1)
        return pinned_copy((ramp * ramp * (3 - 2 * ramp)).clamp(min=_MIN_WEIGHT), self.device)

    def _blocks(self, region: Region) -> Iterator[Block]:
        """Yield row and column of each block that a region touches."""
        rows, columns = region.pixels(self._size_hw)
        if rows and columns:
            for row in range(rows.start // self._block, (rows.stop - 1) // self._block + 1):
                for column in range(columns.start // self._block, (columns.stop - 1) // self._block + 1):
                    yield row, column

    def _clip_to_block(self, pixels: range, block: int) -> range:
        """Return those of the pixels that are in a block's row or column."""
        return range(max(pixels.start, block * self._block), min(pixels.stop, (block + 1) * self._block))

    def _in_block(self, pixels: range) -> slice:
        """Return the indices of an image's pixels inside their block."""
        offset = pixels.start // self._block * self._block
        return slice(pixels.start - offset, pixels.stop - offset)

    def _block_sums(self, block: Block) -> Tensor:
        """Return the sums of a block: [C + 1, r, c] of weighted values, and of weights."""
        if block not in self._sums:
            sides = [min(self._block, side - at * self._block) for at, side in zip(block, self._size_hw, strict=True)]
            self._sums[block] = torch.zeros(self._channels + 1, *sides, device=self.device)
        return self._sums[block]

    def _close_block(self, block: Block) -> None:
        """Divide the sums of a block by their weights, and free them."""
        sums = self._sums.pop(block)
        total, weight = sums[:-1], sums[-1]
        covered = weight > 0  # [r, c]
        mean = total / torch.where(covered, weight, 1.0)  # [C, r, c]
        top, left = block[0] * self._block, block[1] * self._block
        area = slice(top, top + sums.shape[1]), slice(left, left + sums.shape[2])
        self._cover[area] |= covered
        if self._labels is not None:
            score, label = _argmax(mean[1:])
            foreground = (label + 1) * covered
            self._labels[1][area] = foreground
            self._labels[0][area] = foreground * (score > mean[0])
            mean = torch.maximum(score, mean[0])[None]
        if self._blend == "unit":
            mean = mean / mean.square().sum(0).sqrt().clamp(min=1e-12)
        self._values[area].permute(2, 0, 1).copy_(torch.where(covered, mean, 0.0))


def _sample(patch: Tensor, region: Region, rows: range, columns: range) -> Tensor:
    """Sample a map [C, h, w] that spans a region at pixels of the image, bilinearly: [C, r, c]."""
    if tuple(patch.shape[1:]) == region[2:] and all(start == int(start) for start in region[:2]):
        top, left = int(region.top), int(region.left)  # one sample per pixel
        return patch[:, rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    down = _grid_coordinates(rows, region.top, region.height, len(rows))  # [r]
    across = _grid_coordinates(columns, region.left, region.width, len(columns))  # [c]
    return _sample_at(patch, down, across)


def _sample_at(patch: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Sample a map [C, h, w] bilinearly at rows [r] and columns [c] from -1 to 1: [C, r, c]."""
    down, across = pinned_copy(down, patch.device), pinned_copy(across, patch.device)
    grid = torch.stack(torch.meshgrid(across, down, indexing="xy"), dim=-1)  # [r, c, 2]
    # Many times faster on a CPU than indexing rows and columns.
    return F.grid_sample(patch[None], grid[None], mode="bilinear", padding_mode="border", align_corners=False)[0]


def _grid_coordinates(pixels: range, start: float, length: float, count: int) -> Tensor:
    """Divide pixels into `count` cells; return their centers in a span, from -1 at its start to 1 at its end: [n]."""
    centers = pixels.start + (torch.arange(count, dtype=torch.float64) + 0.5) * (len(pixels) / count)  # [n]
    return ((centers - start) * (2 / length) - 1).float()


def blurs_when_upsampled(small_map: Tensor, size_hw: tuple[float, ...]) -> bool:
    """Return whether bilinear upsampling of a map [C, h, w] to a size blurs edges visibly."""
    return (
        size_hw[0] > _MAX_BILINEAR_FACTOR * small_map.shape[1] or size_hw[1] > _MAX_BILINEAR_FACTOR * small_map.shape[2]
    )


def _argmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum of scores [K, r, c] and its index: [r, c] each. Much faster than `max(0)` on a CPU."""
    best, label = scores[0].clone(), torch.zeros(scores.shape[1:], dtype=torch.uint8, device=scores.device)
    for number, score in enumerate(scores[1:], start=1):
        label.masked_fill_(score > best, number)
        torch.maximum(best, score, out=best)
    return best, label
