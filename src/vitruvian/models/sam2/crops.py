"""Overlapping crops of an image and grids of points, for masks of everything in it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from vitruvian.images.types import SizeHW

CropXYXY = tuple[int, int, int, int]
_EDGE = 20.0  # masks closer than this to the edge of a crop, in pixels, count as cut by it


def overlapping_crops(size_hw: SizeHW, layers: int, overlap_ratio: float) -> Iterator[tuple[int, CropXYXY]]:
    """Yield layer and corners of each crop: the whole image, then 4, 16, … that overlap."""
    height, width = size_hw
    yield 0, (0, 0, width, height)
    for layer in range(1, layers + 1):
        count = 2**layer
        overlap = int(overlap_ratio * min(height, width) * 2 / count)
        crop_width, crop_height = (math.ceil((overlap * (count - 1) + side) / count) for side in (width, height))
        for column, row in itertools.product(range(count), repeat=2):
            x, y = column * (crop_width - overlap), row * (crop_height - overlap)
            if x < width and y < height:
                yield layer, (x, y, min(x + crop_width, width), min(y + crop_height, height))


def point_grid(side: int) -> Tensor:
    """Centers of the cells of a `side` × `side` grid over [0, 1]², row by row: [side², 2]."""
    centers = (torch.arange(side, dtype=torch.float32) + 0.5) / side
    y, x = torch.meshgrid(centers, centers, indexing="ij")
    return torch.stack((x, y), dim=-1).flatten(0, 1)  # [side², 2]


def touches_crop_edge(boxes_xyxy: Tensor, crop: CropXYXY, size_hw: SizeHW) -> Tensor:
    """Return which boxes [N, 4] touch an edge of their crop that is not an edge of the image: [N]."""
    at_crop = (boxes_xyxy - boxes_xyxy.new_tensor(crop)).abs() <= _EDGE
    at_image = (boxes_xyxy - boxes_xyxy.new_tensor((0, 0, size_hw[1], size_hw[0]))).abs() <= _EDGE
    return (at_crop & ~at_image).any(dim=-1)
