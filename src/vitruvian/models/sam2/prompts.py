"""Prompts as people write them → tensors: nested lists, arrays or tensors, with levels left out where that is clear.

    points [image][object][point][x, y] · labels [image][object][point] · boxes [image][object][x1, y1, x2, y2]
        ─▶ [B, P, N, 2] · [B, P, N] · [B, P, 4] in pixels of the model's input, padded with -10

A level may be left out: ``[[[400, 650]]]`` is one point in one picture, whichever level is missing. All readings that
fit the number of pictures and the labels are tried; where more than one is left, the prompt is refused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.models.sam2.prompt_encoder import PADDING, POINT_LABELS

SizeHW = tuple[int, int]
LEVELS = ("picture", "object", "point")


def read_points(
    points: Any, labels: Any, sizes_hw: Sequence[SizeHW], target_hw: SizeHW, *, pad: int = PADDING
) -> tuple[Tensor, Tensor | None]:
    """Read points and labels in pixels of the pictures.

    Args:
        points: x and y, nested as [image][object][point]; a level may be left out where that is clear.
        labels: One number a point, nested alike, or None.
        sizes_hw: Height and width of each picture.
        target_hw: Height and width of the model's input.
        pad: Coordinates of points that only fill up.

    Returns:
        Points [B, P, N, 2] in pixels of the model's input, float32, and labels [B, P, N], int64, which are None
        where none were given and nothing was padded.
    """
    tree, marks = read_levels(points, labels, len(sizes_hw))
    count, most = widest(tree)
    out = np.full((len(tree), count, most, 2), pad, dtype=np.float32)
    kinds = np.full((len(tree), count, most), PADDING, dtype=np.int64)
    for image, objects in enumerate(tree):
        height, width = sizes_hw[image]
        for index, own in enumerate(objects):
            given = marks[image][index] if marks is not None else [1] * len(own)
            for place, ((x, y), kind) in enumerate(zip(own, given, strict=True)):
                kinds[image, index, place] = kind
                if kind != PADDING:
                    check_inside(x, y, height, width, image)
                    out[image, index, place] = x, y
    filled = torch.from_numpy(out)
    real = torch.from_numpy(kinds != PADDING)
    filled = torch.where(real[..., None], filled * scales(sizes_hw, target_hw)[:, None, None], filled)
    padded = not bool(real.all())
    return filled, torch.from_numpy(kinds) if marks is not None or padded else None


def read_boxes(boxes: Any, sizes_hw: Sequence[SizeHW], target_hw: SizeHW, *, pad: int = PADDING) -> Tensor:
    """Read boxes x1, y1, x2, y2 nested as [image][object]: [B, P, 4] in pixels of the model's input, float32."""
    tree = plain_nest(boxes, "input_boxes")
    levels = depth_of(tree, "input_boxes") - 1
    check_leaves(tree, levels, 4, "input_boxes")
    fits = unique([way for way in readings(tree, levels, 2) if len(way) == len(sizes_hw)])
    if len(fits) != 1:
        raise InputError(
            f"input_boxes: expected [image][object][x1, y1, x2, y2] for {len(sizes_hw)} pictures, got {levels + 1} "
            f"levels with {len(tree)} entries in the first. Add the missing level."
        )
    (tree,) = fits
    out = np.full((len(tree), max(len(own) for own in tree), 4), pad, dtype=np.float32)
    for image, own in enumerate(tree):
        for index, box in enumerate(own):
            if box != [pad] * 4:
                check_box(box, *sizes_hw[image], image)
            out[image, index] = box
    filled = torch.from_numpy(out)
    padding = (filled == pad).all(dim=-1, keepdim=True)
    return torch.where(padding, filled, filled * scales(sizes_hw, target_hw).tile(1, 2)[:, None])


def read_levels(points: Any, labels: Any, pictures: int) -> tuple[list[Any], list[Any] | None]:
    """Return points and labels as [image][object][point], with levels that were left out put in."""
    if points is None:
        raise InputError("input_labels: expected input_points with them, got none. Add the points.")
    tree = plain_nest(points, "input_points")
    levels = depth_of(tree, "input_points") - 1
    check_leaves(tree, levels, 2, "input_points")
    ways = unique([way for way in readings(tree, levels, 3) if len(way) == pictures])
    if not ways:
        raise InputError(
            f"input_points: expected [image][object][point][x, y] for {pictures} pictures, got {levels + 1} levels "
            f"with {len(tree)} entries in the first. Give points for each picture, nested so."
        )
    if labels is None:
        if len(ways) > 1:
            raise InputError(
                f"input_points: can be read as {' or as '.join(describe(way) for way in ways)}. "
                "Nest them as [image][object][point][x, y], or add input_labels nested as [image][object][point]."
            )
        return ways[0], None
    marks = plain_nest(labels, "input_labels")
    check_label_values(marks)
    kinds = readings(marks, depth_of(marks, "input_labels"), 3)
    fits = [(way, kind) for way in ways for kind in kinds if shape_of(way, 3) == shape_of(kind, 3)]
    if not fits:
        raise InputError(
            f"input_labels: expected one label for each point, nested like the points ({describe(ways[0])}). "
            "Give as many labels as points, in the same lists."
        )
    # Labels in one list speak of one object, so of several readings the one with the fewest objects is meant.
    return min(fits, key=lambda fit: sum(map(len, fit[0])))


def plain_nest(value: Any, name: str) -> Any:
    """Turn tensors, arrays, tuples and lists, mixed at will, into nested lists of numbers."""
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        if not value:
            raise InputError(f"{name}: expected at least one prompt in each list, got an empty one. Leave it out.")
        return [plain_nest(item, name) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise InputError(f"{name}: expected numbers in nested lists, an array or a tensor, got {value!r}.")


def depth_of(tree: Any, name: str) -> int:
    """Return how many lists lie inside each other; they must be equally many everywhere."""
    if not isinstance(tree, list):
        return 0
    if not tree:
        raise InputError(f"{name}: expected at least one prompt in each list, got an empty one. Leave it out.")
    depths = {depth_of(item, name) for item in tree}
    if len(depths) > 1:
        raise InputError(f"{name}: expected lists nested equally deep everywhere, got {depths} levels side by side.")
    return depths.pop() + 1


def check_leaves(tree: Any, levels: int, size: int, name: str) -> None:
    """Raise `InputError` unless all innermost lists hold `size` finite numbers, under no more levels than there are."""
    most = 3 if size == 2 else 2
    form = "[image][object][point][x, y]" if size == 2 else "[image][object][x1, y1, x2, y2]"
    if not 0 <= levels <= most:
        raise InputError(f"{name}: expected {form}, at most {most + 1} levels, got {levels + 1}.")
    leaves = [tree]
    for _ in range(levels):
        leaves = [item for leaf in leaves for item in leaf]
    for leaf in leaves:
        if len(leaf) != size:
            raise InputError(f"{name}: expected {size} numbers in each innermost list, got {leaf}. Use {form}.")
        if not all(math.isfinite(number) for number in leaf):
            raise InputError(f"{name}: expected finite numbers, got {leaf}.")


def readings(tree: Any, levels: int, wanted: int) -> list[Any]:
    """Return all ways to put the missing levels, of one entry each, into a tree of `levels` levels."""
    if levels > wanted:
        return []
    ways = []
    for places in itertools.combinations(range(wanted), wanted - levels):
        way = tree
        for place in places:
            way = wrap(way, place)
        ways.append(way)
    return ways


def wrap(tree: Any, level: int) -> Any:
    """Put a list of one around every entry that lies `level` levels down."""
    return [tree] if level == 0 else [wrap(item, level - 1) for item in tree]


def shape_of(tree: Any, levels: int) -> Any:
    """Return the number of entries of each list, nested."""
    return len(tree) if levels == 1 else [shape_of(item, levels - 1) for item in tree]


def unique(ways: list[Any]) -> list[Any]:
    """Drop repetitions."""
    return [way for index, way in enumerate(ways) if way not in ways[:index]]


def widest(tree: list[Any]) -> tuple[int, int]:
    """Return the most objects of a picture and the most points of an object."""
    return max(len(own) for own in tree), max(len(points) for own in tree for points in own)


def describe(tree: list[Any]) -> str:
    """Say how points are read."""
    objects = [len(own) for own in tree]
    points = [len(points) for own in tree for points in own]
    return f"{objects} objects a picture with {points} points each"


def check_label_values(labels: Any) -> None:
    """Raise `InputError` for a label that no point can have."""
    for label in labels if isinstance(labels, list) else [labels]:
        if isinstance(label, list):
            check_label_values(label)
        elif label not in POINT_LABELS:
            raise InputError(
                "input_labels: expected 1 (on the object), 0 (off it), 2 and 3 (corners of a box), -1 (no point) or "
                f"{PADDING} (padding), got {label}. Correct the label."
            )


def check_inside(x: float, y: float, height: int, width: int, image: int) -> None:
    """Raise `InputError` for a point outside its picture."""
    if not (0 <= x <= width and 0 <= y <= height):
        raise InputError(
            f"input_points: expected x in 0…{width} and y in 0…{height} for picture {image}, got ({x:g}, {y:g}). "
            "Points are in pixels of the original picture, x first."
        )


def check_box(box: Sequence[float], height: int, width: int, image: int) -> None:
    """Raise `InputError` for a box without area or beside its picture."""
    x1, y1, x2, y2 = box
    if x2 <= x1 or y2 <= y1:
        raise InputError(
            f"input_boxes: expected x1 < x2 and y1 < y2, got {list(box)} for picture {image}. "
            "Boxes are x1, y1, x2, y2, not x, y, width, height."
        )
    if x2 <= 0 or y2 <= 0 or x1 >= width or y1 >= height:
        raise InputError(
            f"input_boxes: expected a box that meets picture {image} ({width} × {height} pixels), got {list(box)}."
        )


def scales(sizes_hw: Sequence[SizeHW], target_hw: SizeHW) -> Tensor:
    """Factors from pixels of the pictures to pixels of the model's input, for x and y: [B, 2]."""
    return torch.tensor([(target_hw[1] / width, target_hw[0] / height) for height, width in sizes_hw])
