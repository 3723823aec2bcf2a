"""Outlines of masks as polygons, in pixels whose edges are at integers: pixel x extends from x to x + 1."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

Polygon = NDArray[np.float32]  # [N, 2], x and y; the last point is joined with the first


def mask_polygons(mask: NDArray[np.bool_], *, tolerance: float = 1.0, holes: bool = False) -> list[Polygon]:
    """Return the outlines of the connected parts of a mask [H, W], the largest first.

    Args:
        mask: The mask. Pixels that touch at a corner alone are not connected.
        tolerance: How far a polygon may be from the outline, in pixels; 0 keeps every corner.
        holes: Whether the outlines of holes are returned too. Their points run the other way round.
    """
    loops = [_simplified(loop, tolerance) for loop in _edge_loops(mask)]
    areas = [_signed_area(loop) for loop in loops]
    order = np.argsort([-abs(area) for area in areas], kind="stable")
    return [loops[i] for i in order if areas[i] > 0 or (holes and areas[i] < 0)]


def _signed_area(polygon: Polygon) -> float:
    """Return the area of a polygon [N, 2]; negative if its points run counter-clockwise in the image."""
    x, y = polygon.astype(np.float64).T
    return float(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y) / 2)


def _edge_loops(mask: NDArray[np.bool_]) -> list[Polygon]:
    """Chain the edges between pixels in and out of a mask [H, W] to closed loops, with the mask at their right."""
    padded = np.pad(mask, 1)
    above, below = padded[:-1, 1:-1], padded[1:, 1:-1]  # [H + 1, W], of the horizontal edges
    left, right = padded[1:-1, :-1], padded[1:-1, 1:]  # [H, W + 1], of the vertical edges
    following: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # corner -> corners that edges lead to
    for inside, (dx0, dx1) in ((below & ~above, (0, 1)), (above & ~below, (1, 0))):
        for y, x in np.argwhere(inside).tolist():
            following[x + dx0, y].append((x + dx1, y))
    for inside, (dy0, dy1) in ((left & ~right, (0, 1)), (right & ~left, (1, 0))):
        for y, x in np.argwhere(inside).tolist():
            following[x, y + dy0].append((x, y + dy1))
    loops = []
    while following:
        start = next(iter(following))
        loop, point = [start], following[start].pop()
        last = start
        while point != start or any(_is_right_turn(last, point, choice) for choice in following.get(start, ())):
            loop.append(point)
            choices = following[point]
            # Where four edges meet, turn right: parts that touch at a corner stay apart.
            index = next((i for i, choice in enumerate(choices) if _is_right_turn(last, point, choice)), 0)
            last, point = point, choices.pop(index)
            if not choices:
                del following[last]
        if not following.get(start, True):
            del following[start]
        loops.append(np.array(loop, np.float32))
    return loops


def _is_right_turn(last: tuple[int, int], point: tuple[int, int], following: tuple[int, int]) -> bool:
    """Return whether the path turns right, seen in the direction of movement with y downwards."""
    (ax, ay), (bx, by), (cx, cy) = last, point, following
    return (bx - ax) * (cy - by) - (by - ay) * (cx - bx) > 0


def _simplified(loop: Polygon, tolerance: float) -> Polygon:
    """Remove points of a closed loop [N, 2] that are within `tolerance` of a line through others (Douglas-Peucker)."""
    step, back = np.roll(loop, -1, 0) - loop, loop - np.roll(loop, 1, 0)
    loop = loop[step[:, 0] * back[:, 1] != step[:, 1] * back[:, 0]]  # corners alone
    if tolerance <= 0 or len(loop) < 5:
        return loop
    far = int(np.argmax(((loop - loop[0]) ** 2).sum(1)))
    closed = np.concatenate([loop, loop[:1]])
    indices = {0, far}
    ranges = [(0, far), (far, len(loop))]
    while ranges:
        first, last = ranges.pop()
        if last - first < 2:
            continue
        (ax, ay), (bx, by) = closed[first], closed[last]
        points = closed[first + 1 : last]  # [n, 2]
        length = float(np.hypot(bx - ax, by - ay))
        if length:
            distance = np.abs((bx - ax) * (points[:, 1] - ay) - (by - ay) * (points[:, 0] - ax)) / length
        else:
            distance = np.hypot(points[:, 0] - ax, points[:, 1] - ay)
        worst = int(np.argmax(distance))
        if distance[worst] > tolerance:
            index = first + 1 + worst
            indices.add(index)
            ranges += [(first, index), (index, last)]
    simple = loop[sorted(indices)]
    return simple if len(simple) >= 3 else loop
