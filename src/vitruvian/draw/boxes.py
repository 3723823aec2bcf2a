"""Bounding boxes with identities, labels and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitruvian.draw.canvas import BLACK, RgbImage, checked_colours, checked_image, fine_width, size_of
from vitruvian.draw.palettes import class_colours, colours_of
from vitruvian.draw.text import Tag, draw_tags, tag_hw, text_size
from vitruvian.errors import InputError


def checked_boxes(boxes_xyxy: ArrayLike, *, count: int | None = None) -> NDArray[np.float64]:
    """Return boxes as float64 [N, 4], exactly `count` of them if that is stated."""
    boxes = np.asarray(boxes_xyxy, dtype=np.float64)
    if boxes.size == 0:
        boxes = boxes.reshape(0, 4)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or (count is not None and len(boxes) != count):
        wanted = "N" if count is None else count
        raise InputError(
            f"boxes_xyxy: expected the shape [{wanted}, 4], got {list(boxes.shape)}. "
            "Give left, top, right and bottom of each box."
        )
    return boxes


def captions(
    count: int,
    *,
    labels: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    ids: Sequence[int] | None = None,
) -> list[str]:
    """Return the captions of `count` objects, such as ``"#3 person 0.98"``."""
    for name, values in (("labels", labels), ("scores", scores), ("ids", ids)):
        if values is not None and len(values) != count:
            raise InputError(f"{name}: expected one for each of {count} objects, got {len(values)}. Keep their order.")
    texts = []
    for i in range(count):
        words = [] if ids is None else [f"#{int(ids[i])}"]
        words += [str(labels[i])] if labels is not None else []
        words += [f"{float(scores[i]):.2f}"] if scores is not None else []
        texts.append(" ".join(words))
    return texts


def draw_boxes(
    image: RgbImage,
    boxes_xyxy: ArrayLike,
    *,
    labels: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    ids: Sequence[int] | None = None,
    colours: ArrayLike | None = None,
    line_width: float | None = None,
    outline: bool = True,
) -> RgbImage:
    """Draw boxes over an image, with tags that do not overlap.

    Args:
        image: uint8 [H, W, 3].
        boxes_xyxy: [N, 4]; edges lie between pixels, as COCO's do: (0, 0, 1, 1) is the first pixel. Boxes that are not
            finite are left out.
        labels: [N] names.
        scores: [N], written with two digits.
        ids: [N] identities, written as ``#3``.
        colours: [N, 3]; by default distinct ones, by identity if there are `ids`.
        line_width: In pixels; by default it follows the size of the image.
        outline: Whether to draw the boxes or only their tags.
    """
    image = checked_image(image)
    boxes = checked_boxes(boxes_xyxy)
    texts = captions(len(boxes), labels=labels, scores=scores, ids=ids)
    if colours is None:
        colours = colours_of(ids) if ids is not None else class_colours(len(boxes))
    tones = checked_colours(colours, count=len(boxes)) if len(boxes) else class_colours(0)
    if line_width is not None and not (math.isfinite(line_width) and line_width > 0):
        raise InputError(
            f"line_width: expected a number of pixels over 0, got {line_width}. Leave it out for the default."
        )
    size_hw = size_of(image)
    width = max(1, round(line_width or fine_width(size_hw)))
    canvas = np.array(image, order="C")
    size = text_size(size_hw, count=len(boxes))
    tags: list[Tag] = []
    for box, text, tone in zip(boxes, texts, tones.tolist(), strict=True):
        if not np.isfinite(box).all():
            continue
        if outline:
            _draw_box(canvas, box, width=width, colour=tone)
        if text:
            tags.append(
                Tag(text=text, colour=(tone[0], tone[1], tone[2]), positions=_tag_positions(box, text, size, width))
            )
    draw_tags(canvas, tags, size=size)
    return canvas


def _draw_box(canvas: RgbImage, box: NDArray[np.float64], *, width: int, colour: Sequence[int]) -> None:
    """Draw a box on whole pixels, in place: lines inside its edges, with a thin dark line on both sides."""
    height, wide = size_of(canvas)
    left, top, right, bottom = np.rint(np.clip(box, 0, (wide, height, wide, height))).astype(int).tolist()
    right, bottom = max(right, left + 1), max(bottom, top + 1)
    for grow, ink, opacity in ((1, BLACK, 0.3), (0, colour, 1.0)):
        thick = width + 2 * grow
        x0, y0, x1, y1 = left - grow, top - grow, right + grow, bottom + grow
        y2, y3 = min(y0 + thick, y1), max(y1 - thick, min(y0 + thick, y1))
        x2, x3 = min(x0 + thick, x1), max(x1 - thick, min(x0 + thick, x1))
        for rows, columns in (((y0, y2), (x0, x1)), ((y3, y1), (x0, x1)), ((y2, y3), (x0, x2)), ((y2, y3), (x3, x1))):
            part = canvas[max(rows[0], 0) : max(rows[1], 0), max(columns[0], 0) : max(columns[1], 0)]
            part[...] = np.rint(part + (np.array(ink) - part) * opacity).astype(np.uint8)


def _tag_positions(box: NDArray[np.float64], text: str, size: int, width: int) -> tuple[tuple[float, float], ...]:
    """Return positions for a tag: above the top left corner of the box, inside it, at its right, below it."""
    left, top, right, bottom = (float(value) for value in box)
    high, wide = tag_hw(text, size)
    return ((left, top - high), (left + width, top + width), (right - wide, top - high), (left, bottom))
