"""Connected regions of binary masks: label them, fill small holes, remove small islands.

    mask [H, W] ─▶ runs (stretches of a row) ─▶ which runs of neighbouring rows touch ─▶ one number a region

All work after the first look at the pixels is on runs, of which a mask has a few thousand and not a million. Masks on
other devices are looked at on the CPU, one at a time, and answered where they came from.
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
    """Runs of a mask with the region each belongs to, numbered from 0 in reading order.

    Runs are positions [start, end) in the flat mask; `areas` has one entry a region.
    """

    starts: Ints
    ends: Ints
    region: Ints
    areas: Ints


def label_regions(masks: Tensor, *, connectivity: Connectivity = 8) -> tuple[Tensor, Tensor]:
    """Number the connected regions of masks [..., H, W].

    Returns:
        Labels [..., H, W], int32: 0 off the mask, and 1, 2, … in reading order in each mask.
        Areas [..., H, W], int32: at each pixel, how many pixels its region has; 0 off the mask.
    """
    flat = as_numpy_masks(masks, connectivity)
    labels, areas = (np.zeros(flat.shape, dtype=np.int32) for _ in range(2))
    for index, mask in enumerate(flat):
        found = find_regions(mask, connectivity)
        paint(labels[index].reshape(-1), found, found.region + 1)
        paint(areas[index].reshape(-1), found, found.areas[found.region])
    shaped = (torch.from_numpy(values).reshape(masks.shape).to(masks.device) for values in (labels, areas))
    first, second = shaped
    return first, second


def fill_holes(masks: Tensor, max_area: float, *, connectivity: Connectivity = 8) -> Tensor:
    """Fill the regions off the mask of up to `max_area` pixels: [..., H, W], bool in and out."""
    background = ~masks.bool().contiguous()
    return clear_small(background, max_area, connectivity, keep_largest=False).logical_not_()


def remove_islands(
    masks: Tensor, max_area: float, *, connectivity: Connectivity = 8, keep_largest: bool = False
) -> Tensor:
    """Clear the regions of up to `max_area` pixels: [..., H, W], bool in and out.

    `keep_largest` leaves a mask its largest region where all of them are small.
    """
    own = masks.bool().clone(memory_format=torch.contiguous_format)
    return clear_small(own, max_area, connectivity, keep_largest=keep_largest)


def clear_small(masks: Tensor, max_area: float, connectivity: Connectivity, *, keep_largest: bool) -> Tensor:
    """Clear the small regions of contiguous bool masks [..., H, W], in place where they are on the CPU."""
    if max_area < 1:
        return masks
    flat = as_numpy_masks(masks, connectivity)
    for mask in flat:
        found = find_regions(mask, connectivity)
        small = found.areas <= max_area
        if keep_largest and small.all() and len(small):
            small[found.areas.argmax()] = False
        gone = small[found.region]
        clear(mask.reshape(-1), found.starts[gone], found.ends[gone])
    if masks.device.type == "cpu":
        return masks  # numpy wrote into its memory
    return torch.from_numpy(flat).reshape(masks.shape).to(masks.device)


def as_numpy_masks(masks: Tensor, connectivity: int) -> Bools:
    """Return masks [..., H, W] as a bool array [N, H, W], sharing memory with a contiguous bool tensor on the CPU."""
    if masks.ndim < 2:
        raise InputError(f"masks: expected the shape [..., H, W], got {list(masks.shape)}.")
    if connectivity not in (4, 8):
        raise InputError(f"connectivity: expected 4 or 8 neighbours, got {connectivity!r}.")
    height, width = masks.shape[-2:]
    return masks.detach().bool().cpu().contiguous().numpy().reshape(masks.shape[:-2].numel(), height, width)


def find_regions(mask: Bools, connectivity: Connectivity = 8) -> Regions:
    """Find the connected regions of one mask [H, W]."""
    width = mask.shape[1]
    starts, ends = find_runs(mask)
    # A gap after each row keeps the last run of a row apart from the first of the next, diagonals included.
    shift = starts // width if width else starts
    left, right = starts + shift, ends + shift
    reach = 1 if connectivity == 8 else 0
    first = np.searchsorted(right, left + (width + 1) - reach, side="right")
    last = np.searchsorted(left, right + (width + 1) + reach, side="left")
    counts = np.maximum(last - first, 0)
    above = np.repeat(np.arange(len(starts)), counts)
    # Neighbours of a run below are consecutive: count up from the first of each.
    below = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    roots = join(len(starts), above, below)
    # A region's root is its first run, so counting roots numbers the regions in reading order.
    region = (np.cumsum(roots == np.arange(len(roots))) - 1)[roots]
    areas = np.bincount(region, weights=ends - starts).astype(np.int64) if len(region) else region
    return Regions(starts, ends, region, areas)


def find_runs(mask: Bools) -> tuple[Ints, Ints]:
    """Find the stretches of a mask [H, W] inside its rows, as positions [start, end) in the flat mask."""
    flat = np.ascontiguousarray(mask).reshape(-1)
    width = mask.shape[1]
    change = np.empty(flat.size + 1, dtype=np.bool_)
    change[0], change[-1] = flat[:1].any(), flat[-1:].any()
    np.not_equal(flat[1:], flat[:-1], out=change[1:-1])
    edges = np.flatnonzero(change)
    starts, ends = edges[0::2], edges[1::2]
    # Runs that go on in the next row are cut at the row's end.
    cuts = np.arange(width, flat.size, width)
    crossing = cuts[flat[cuts - 1] & flat[cuts]] if len(cuts) else cuts
    # Both parts are in order already, which a stable sort only merges.
    starts, ends = (np.sort(np.concatenate((edge, crossing)), kind="stable") for edge in (starts, ends))
    return starts, ends


def join(count: int, a: Ints, b: Ints) -> Ints:
    """Return for each of `count` things the least of those it is connected to through the pairs (a, b)."""
    parent = np.arange(count)
    while len(a):
        roots_a, roots_b = parent[a], parent[b]
        apart = roots_a != roots_b
        a, b, roots_a, roots_b = a[apart], b[apart], roots_a[apart], roots_b[apart]
        # Each root hangs itself under the least root it touches: no circles, and few rounds.
        np.minimum.at(parent, np.maximum(roots_a, roots_b), np.minimum(roots_a, roots_b))
        while True:
            grand = parent[parent]
            if np.array_equal(grand, parent):
                break
            parent = grand
    return parent


def paint(flat: npt.NDArray[np.int32], found: Regions, values: Ints) -> None:
    """Write one value a run into a flat map."""
    lengths = found.ends - found.starts
    flat[positions(found.starts, lengths)] = np.repeat(values, lengths)


def clear(flat: Bools, starts: Ints, ends: Ints) -> None:
    """Switch runs of a flat mask off."""
    flat[positions(starts, ends - starts)] = False


def positions(starts: Ints, lengths: Ints) -> Ints:
    """List the positions that runs cover."""
    before = np.cumsum(lengths) - lengths
    found: Ints = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return found
