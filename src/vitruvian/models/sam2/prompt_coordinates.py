"""Points, labels and boxes as people write them to tensors in pixels of the model input.

    points [image][object][point][x, y] · labels [image][object][point] · boxes [image][object][x1, y1, x2, y2]
        ─▶ [B, P, N, 2] · [B, P, N] · [B, P, 4], padded with -10

Prompts are nested lists, arrays or tensors. A level may be omitted: ``[[[400, 650]]]`` is one point in one image,
whichever level is missing. All interpretations that match the number of images and the labels are tried; an ambiguous
prompt is refused.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vitruvian.errors import InputError, VitruvianWarning
from vitruvian.images.types import SizeHW
from vitruvian.models.sam2.prompt_encoder import PADDING, check_label_values

NestedList = list[Any]  # of lists, down to numbers

_POINTS, _BOXES = "[image][object][point][x, y]", "[image][object][x1, y1, x2, y2]"


def read_points(
    points: object,
    labels: object,
    sizes_hw: Sequence[SizeHW],
    target_hw: SizeHW,
    *,
    pad: int = PADDING,
    strict: bool = False,
    prefix: str = "input_",
) -> tuple[Tensor, Tensor | None]:
    """Read points and labels in pixels of the images.

    Args:
        points: x and y, nested as [image][object][point].
        labels: One number per point, nested alike, or None.
        sizes_hw: Height and width of each image.
        target_hw: Height and width of the model input.
        pad: Coordinates of padding.
        strict: A point outside of its image is an error; otherwise a warning, as transformers accepts it.
        prefix: What the names of arguments in messages begin with.

    Returns:
        Points [B, P, N, 2] in pixels of the model input, float32, and labels [B, P, N], int64, or None where there are
        neither labels nor padding.
    """
    nested_points, nested_labels = _match_labels(points, labels, len(sizes_hw), prefix)
    objects = max(len(image) for image in nested_points)
    max_points = max(len(item) for image in nested_points for item in image)
    coordinates = np.full((len(nested_points), objects, max_points, 2), pad, dtype=np.float32)
    kinds = np.full((len(nested_points), objects, max_points), PADDING, dtype=np.int64)
    for i, (height, width) in enumerate(sizes_hw):
        for j, item in enumerate(nested_points[i]):
            item_labels = [1] * len(item) if nested_labels is None else nested_labels[i][j]
            for n, ((x, y), label) in enumerate(zip(item, item_labels, strict=True)):
                kinds[i, j, n] = label
                if label == PADDING:
                    continue
                if not (0 <= x <= width and 0 <= y <= height):
                    problem = (
                        f"{prefix}points: expected x in 0…{width} and y in 0…{height} for image {i}, "
                        f"got ({x:g}, {y:g}). Points are in pixels of the original image, x first."
                    )
                    if strict:
                        raise InputError(problem)
                    warnings.warn(problem, VitruvianWarning, stacklevel=2)
                coordinates[i, j, n] = x * target_hw[1] / width, y * target_hw[0] / height
    has_labels = nested_labels is not None or bool((kinds == PADDING).any())
    return torch.from_numpy(coordinates), torch.from_numpy(kinds) if has_labels else None


def read_boxes(
    boxes: object, sizes_hw: Sequence[SizeHW], target_hw: SizeHW, *, pad: int = PADDING, name: str = "input_boxes"
) -> Tensor:
    """Read boxes x1, y1, x2, y2 nested as [image][object]: [B, P, 4] in pixels of the model input, float32."""
    nested_boxes = _interpretations(boxes, name, _BOXES, len(sizes_hw))[0]
    out = np.full((len(sizes_hw), max(len(image) for image in nested_boxes), 4), pad, dtype=np.float32)
    for i, (height, width) in enumerate(sizes_hw):
        for j, box in enumerate(nested_boxes[i]):
            if box != [pad] * 4:
                _check_box(box, height, width, i, name)
                x_scale, y_scale = target_hw[1] / width, target_hw[0] / height
                out[i, j] = np.multiply(box, (x_scale, y_scale, x_scale, y_scale))
    return torch.from_numpy(out)


def read_masks(masks: object, prompts: Mapping[str, Tensor]) -> Tensor:
    """Read masks [h, w] or [P, h, w] of one image, one for all objects of its prompts or for each: [1, P, h, w]."""
    tensor = masks if isinstance(masks, Tensor) else torch.as_tensor(np.asarray(masks))
    stacked = tensor[None] if tensor.ndim == 2 else tensor  # [P, h, w]
    if stacked.ndim != 3 or 0 in stacked.shape:
        raise InputError(f"masks: expected [h, w] or [P, h, w], got {list(tensor.shape)}.")
    counts = {prompt.shape[1] for prompt in prompts.values()}  # the same for all
    if counts and len(stacked) not in (1, *counts):
        raise InputError(f"masks: expected one mask, or one for each of {counts.pop()} objects, got {len(stacked)}.")
    return stacked[None]


def prompt_levels(value: object, name: str) -> int:
    """Return the number of levels of nested prompts; raise `InputError` where lists are nested unevenly."""
    return _to_lists(value, name)[1]


def _match_labels(
    points: object, labels: object, images: int, prefix: str
) -> tuple[list[list[NestedList]], list[NestedList] | None]:
    """Return points and labels as [image][object][point], with omitted levels inserted."""
    if points is None:
        raise InputError(f"{prefix}labels: expected {prefix}points with them, got none. Add the points.")
    readings = _interpretations(points, f"{prefix}points", _POINTS, images)
    if labels is None:
        if len(readings) > 1:
            raise InputError(
                f"{prefix}points: can be read as {' or as '.join(_describe(reading) for reading in readings)}. "
                f"Nest them as {_POINTS}, or add {prefix}labels nested as [image][object][point]."
            )
        return readings[0], None
    nested_labels, levels = cast(tuple[NestedList, int], _to_lists(labels, f"{prefix}labels"))
    check_label_values(_flatten(nested_labels, levels), f"{prefix}labels")
    matches = [
        (reading, label_reading)
        for reading in readings
        for label_reading in _insert_levels(nested_labels, levels, 3)
        if _counts(reading, 3) == _counts(label_reading, 3)
    ]
    if not matches:
        raise InputError(
            f"{prefix}labels: expected one label for each point, nested like the points ({_describe(readings[0])}), "
            f"got {labels!s:.80}. Give as many labels as points, in the same lists."
        )
    # Labels in one list belong to one object, so the interpretation with the fewest objects is the right one.
    return min(matches, key=lambda match: sum(len(image) for image in match[0]))


def _interpretations(value: object, name: str, form: str, images: int) -> list[NestedList]:
    """Return all ways to read prompts as nested lists of a form that has one entry for each image."""
    nested_lists, depth = cast(tuple[NestedList, int], _to_lists(value, name))
    levels, max_levels, size = depth - 1, form.count("]["), form.count(",") + 1
    if not 0 <= levels <= max_levels:
        raise InputError(f"{name}: expected {form}, at most {max_levels + 1} levels, got {depth}.")
    for prompt in _flatten(nested_lists, levels):
        if len(prompt) != size:
            raise InputError(f"{name}: expected {size} numbers in each innermost list, got {prompt}. Use {form}.")
        if not all(abs(number) <= sys.float_info.max for number in prompt):  # also of integers
            raise InputError(f"{name}: expected finite numbers, got {prompt}.")
    readings = [reading for reading in _insert_levels(nested_lists, levels, max_levels) if len(reading) == images]
    if not readings:
        raise InputError(
            f"{name}: expected {form} for {images} images, got {depth} levels with {len(nested_lists)} entries in the "
            "first. Give prompts for each image, nested like this."
        )
    return readings


def _to_lists(value: object, name: str) -> tuple[object, int]:
    """Convert tensors, arrays, tuples and lists, also mixed, to nested lists of numbers, with their depth."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (int, float)) and (name.endswith("labels") or not isinstance(value, bool)):
        return value, 0
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{name}: expected numbers in nested lists, an array or a tensor, got {value!r}.")
    if not value:
        raise InputError(f"{name}: expected at least one prompt in each list, got an empty one. Leave it out.")
    items, depths = zip(*(_to_lists(item, name) for item in value), strict=True)
    if len(set(depths)) > 1:
        raise InputError(
            f"{name}: expected lists nested equally deep everywhere, got {set(depths)} levels side by side."
        )
    return list(items), depths[0] + 1


def _flatten(value: NestedList, levels: int) -> NestedList:
    """Return the entries that lie `levels` levels down."""
    for _ in range(levels - 1):
        value = [item for entry in value for item in entry]
    return value if levels else [value]


def _insert_levels(value: NestedList, levels: int, wanted: int) -> list[NestedList]:
    """Return the distinct ways to insert missing levels, of one entry each, into lists of `levels` levels."""
    readings: list[NestedList] = []
    for inserted in itertools.combinations(range(wanted), wanted - levels) if levels <= wanted else ():
        reading = value
        for level in inserted:
            reading = _insert_level(reading, level)
        if reading not in readings:
            readings.append(reading)
    return readings


def _insert_level(value: NestedList, level: int) -> NestedList:
    """Wrap every entry that lies `level` levels down in a list."""
    return [value] if level == 0 else [_insert_level(item, level - 1) for item in value]


def _counts(value: NestedList, levels: int) -> object:
    """Return the number of entries of each list, nested."""
    return len(value) if levels == 1 else [_counts(item, levels - 1) for item in value]


def _describe(points: list[NestedList]) -> str:
    """Describe an interpretation of points in an error message."""
    counts = [len(item) for image in points for item in image]
    return f"{[len(image) for image in points]} objects an image with {counts} points each"


def _check_box(box: Sequence[float], height: int, width: int, image: int, name: str) -> None:
    """Raise `InputError` for a box without area or outside its image."""
    x1, y1, x2, y2 = box
    if x2 <= x1 or y2 <= y1:
        raise InputError(
            f"{name}: expected x1 < x2 and y1 < y2, got {list(box)} for image {image}. "
            "Boxes are x1, y1, x2, y2, not x, y, width, height."
        )
    if x2 <= 0 or y2 <= 0 or x1 >= width or y1 >= height:
        raise InputError(
            f"{name}: expected a box that meets image {image} ({width} × {height} pixels), got {list(box)}."
        )
