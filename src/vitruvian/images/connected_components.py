"""Connected components of binary masks: find them, fill small holes, remove small islands.

    mask [H, W] ─▶ runs of a row ─▶ pairs of runs of adjacent rows that touch ─▶ union-find ─▶ components

The computation is on runs, a few thousand for a mask of a million pixels, and on the CPU; results are on
the device of the masks.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitruvian.images.types import BoolArray, IntArray


class Components(NamedTuple):
    """Runs of a mask and the component of each, numbered from 0 in reading order.

    Runs are positions [start, end) in the flat mask; `areas` has one entry for each component.
    """

    starts: IntArray
    ends: IntArray
    component: IntArray
    areas: IntArray


def fill_holes(masks: Tensor, max_area: float) -> Tensor:
    """Fill 8-connected background components of up to `max_area` pixels: [..., H, W] -> bool [..., H, W]."""
    background = ~masks.bool().contiguous()
    return _clear_small(background, max_area, keep_largest=False).logical_not_()


def remove_islands(masks: Tensor, max_area: float, *, keep_largest: bool = False) -> Tensor:
    """Clear 8-connected components of up to `max_area` pixels: [..., H, W] -> bool [..., H, W].

    With `keep_largest` a mask keeps its largest component even if that is small.
    """
    copied = masks.bool().clone(memory_format=torch.contiguous_format)
    return _clear_small(copied, max_area, keep_largest=keep_largest)


def _clear_small(masks: Tensor, max_area: float, *, keep_largest: bool) -> Tensor:
    """Clear the small components of contiguous bool masks [..., H, W], in place on the CPU."""
    if max_area < 1 or not masks.numel():
        return masks
    flat = masks.cpu().flatten(0, -3).numpy() if masks.ndim > 2 else masks.cpu()[None].numpy()  # [N, H, W]
    for mask in flat:
        components = find_components(mask)
        small = components.areas <= max_area
        if keep_largest:
            small &= components.areas < components.areas.max(initial=0)
        cleared = small[components.component]
        starts, ends = components.starts[cleared], components.ends[cleared]
        mask.reshape(-1)[run_positions(starts, ends - starts)] = False
    if masks.device.type == "cpu":
        return masks  # NumPy shares its memory
    return torch.from_numpy(flat).reshape(masks.shape).to(masks.device)


def find_components(mask: BoolArray, connectivity: Literal[4, 8] = 8) -> Components:
    """Return the connected components of one mask [H, W]."""
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
    below = run_positions(first, counts)  # the neighbors of a run in the next row are consecutive
    roots = _connect(len(starts), above, below)
    # A component's root is its first run, so counting roots numbers the components in reading order.
    component = (np.cumsum(roots == np.arange(len(roots))) - 1)[roots]
    areas = np.bincount(component, weights=ends - starts).astype(np.int64) if len(component) else component
    return Components(starts, ends, component, areas)


def _find_runs(mask: BoolArray) -> tuple[IntArray, IntArray]:
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


def _connect(count: int, a: IntArray, b: IntArray) -> IntArray:
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


def run_positions(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return the positions that runs cover."""
    before = np.cumsum(lengths) - lengths
    positions: IntArray = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return positions
