"""Connected components of binary masks: label them, fill small holes, remove small islands.

    mask [H, W] ─▶ runs of a row ─▶ pairs of runs of adjacent rows that touch ─▶ union-find ─▶ regions

The computation is on runs, a few thousand for a mask of a million pixels, and on the CPU; results are on
the device of the masks.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitruvian.errors import InputError

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Connectivity = Literal[4, 8]


class Regions(NamedTuple):
    """Runs of a mask and the region of each, numbered from 0 in reading order.

    Runs are positions [start, end) in the flat mask; `areas` has one entry for each region.
    """

    starts: Ints
    ends: Ints
    region: Ints
    areas: Ints


def label_regions(masks: Tensor, *, connectivity: Connectivity = 8) -> tuple[Tensor, Tensor]:
    """Number the connected regions of masks [..., H, W].

    Returns:
        Labels [..., H, W], int32: 0 for the background, and 1, 2, … in reading order in each mask.
        Areas [..., H, W], int32: the number of pixels of each pixel's region; 0 for the background.
    """
    flat = _as_numpy(masks, connectivity)
    labels, areas = (np.zeros(flat.shape, dtype=np.int32) for _ in range(2))
    for index, mask in enumerate(flat):
        regions = find_regions(mask, connectivity)
        _paint(labels[index].reshape(-1), regions, regions.region + 1)
        _paint(areas[index].reshape(-1), regions, regions.areas[regions.region])
    first, second = (torch.from_numpy(values).reshape(masks.shape).to(masks.device) for values in (labels, areas))
    return first, second


def fill_holes(masks: Tensor, max_area: float, *, connectivity: Connectivity = 8) -> Tensor:
    """Fill background regions of up to `max_area` pixels: [..., H, W] -> bool [..., H, W]."""
    background = ~masks.bool().contiguous()
    return _clear_small(background, max_area, connectivity, keep_largest=False).logical_not_()


def remove_islands(
    masks: Tensor, max_area: float, *, connectivity: Connectivity = 8, keep_largest: bool = False
) -> Tensor:
    """Clear regions of up to `max_area` pixels: [..., H, W] -> bool [..., H, W].

    With `keep_largest` a mask keeps its largest region even if that is small.
    """
    copied = masks.bool().clone(memory_format=torch.contiguous_format)
    return _clear_small(copied, max_area, connectivity, keep_largest=keep_largest)


def _clear_small(masks: Tensor, max_area: float, connectivity: Connectivity, *, keep_largest: bool) -> Tensor:
    """Clear the small regions of contiguous bool masks [..., H, W], in place on the CPU."""
    if max_area < 1:
        return masks
    flat = _as_numpy(masks, connectivity)
    for mask in flat:
        regions = find_regions(mask, connectivity)
        small = regions.areas <= max_area
        if keep_largest and small.all() and len(small):
            small[regions.areas.argmax()] = False
        cleared = small[regions.region]
        starts, ends = regions.starts[cleared], regions.ends[cleared]
        mask.reshape(-1)[run_positions(starts, ends - starts)] = False
    if masks.device.type == "cpu":
        return masks  # NumPy shares its memory
    return torch.from_numpy(flat).reshape(masks.shape).to(masks.device)


def _as_numpy(masks: Tensor, connectivity: int) -> Bools:
    """Return masks [..., H, W] as a bool array [N, H, W], sharing memory with a contiguous bool tensor on the CPU."""
    if masks.ndim < 2:
        raise InputError(f"masks: expected the shape [..., H, W], got {list(masks.shape)}.")
    if connectivity not in (4, 8):
        raise InputError(f"connectivity: expected 4 or 8 neighbours, got {connectivity!r}.")
    height, width = masks.shape[-2:]
    return masks.detach().bool().cpu().contiguous().numpy().reshape(masks.shape[:-2].numel(), height, width)


def find_regions(mask: Bools, connectivity: Connectivity = 8) -> Regions:
    """Return the connected regions of one mask [H, W]."""
    width = mask.shape[1]
    starts, ends = _find_runs(mask)
    # A gap after each row separates the last run of a row from the first of the next, also diagonally.
    shift = starts // width if width else starts
    left, right = starts + shift, ends + shift
    reach = 1 if connectivity == 8 else 0
    first = np.searchsorted(right, left + (width + 1) - reach, side="right")
    last = np.searchsorted(left, right + (width + 1) + reach, side="left")
    counts = np.maximum(last - first, 0)
    above = np.repeat(np.arange(len(starts)), counts)
    # The neighbours of a run in the next row are consecutive.
    below = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    roots = _connect(len(starts), above, below)
    # A region's root is its first run, so counting roots numbers the regions in reading order.
    region = (np.cumsum(roots == np.arange(len(roots))) - 1)[roots]
    areas = np.bincount(region, weights=ends - starts).astype(np.int64) if len(region) else region
    return Regions(starts, ends, region, areas)


def _find_runs(mask: Bools) -> tuple[Ints, Ints]:
    """Return the runs of the rows of a mask [H, W], as positions [start, end) in the flat mask."""
    flat = np.ascontiguousarray(mask).reshape(-1)
    width = mask.shape[1]
    change = np.empty(flat.size + 1, dtype=np.bool_)
    change[0], change[-1] = flat[:1].any(), flat[-1:].any()
    np.not_equal(flat[1:], flat[:-1], out=change[1:-1])
    edges = np.flatnonzero(change)
    starts, ends = edges[0::2], edges[1::2]
    # Split runs at the ends of rows.
    cuts = np.arange(width, flat.size, width)
    crossing = cuts[flat[cuts - 1] & flat[cuts]] if len(cuts) else cuts
    # Both parts are sorted already: a stable sort merges them.
    starts, ends = (np.sort(np.concatenate((edge, crossing)), kind="stable") for edge in (starts, ends))
    return starts, ends


def _connect(count: int, a: Ints, b: Ints) -> Ints:
    """Return for each of `count` nodes the smallest node that it is connected to through the edges (a, b)."""
    parent = np.arange(count)
    while len(a):
        roots_a, roots_b = parent[a], parent[b]
        apart = roots_a != roots_b
        a, b, roots_a, roots_b = a[apart], b[apart], roots_a[apart], roots_b[apart]
        # Each root is linked to the smallest root that it touches: no cycles, and few iterations.
        np.minimum.at(parent, np.maximum(roots_a, roots_b), np.minimum(roots_a, roots_b))
        while True:
            grand = parent[parent]
            if np.array_equal(grand, parent):
                break
            parent = grand
    return parent


def _paint(flat: npt.NDArray[np.int32], regions: Regions, values: Ints) -> None:
    """Write one value for each run into a flat map."""
    lengths = regions.ends - regions.starts
    flat[run_positions(regions.starts, lengths)] = np.repeat(values, lengths)


def run_positions(starts: Ints, lengths: Ints) -> Ints:
    """Return the positions that runs cover."""
    before = np.cumsum(lengths) - lengths
    positions: Ints = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return positions
