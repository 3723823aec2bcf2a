"""Bounding boxes with identities, labels and scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw.canvas import BLACK, image_hw, outline_width
from vitruvian.draw.palettes import class_colors, identity_colors
from vitruvian.draw.text import Tag, draw_tags, tag_hw, text_size
from vitruvian.images.types import RgbImage


def captions(
    count: int,
    *,
    labels: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    ids: Sequence[int] | None = None,
) -> list[str]:
    """Return the captions of `count` objects, such as ``"#3 person 0.98"``."""
    columns = [
        [f"#{number}" for number in ids or ()],
        [*(labels or ())],
        [f"{score:.2f}" for score in scores or ()],
    ]
    return [" ".join(column[i] for column in columns if column) for i in range(count)]


def draw_boxes(
    image: RgbImage,
    boxes_xyxy: NDArray[np.floating],
    *,
    scores: Sequence[float] | None = None,
    ids: Sequence[int] | None = None,
    outline: bool = True,
) -> RgbImage:
    """Draw boxes over an image in distinct colors, by identity if there are `ids`, with tags that do not overlap.

    Args:
        image: uint8 [H, W, 3].
        boxes_xyxy: [N, 4]; edges lie between pixels, as COCO's do: (0, 0, 1, 1) is the first pixel. Boxes that are not
            finite are left out.
        scores: [N], written with two digits.
        ids: [N] identities, written as ``#3``.
        outline: Whether to draw the boxes or only their tags.
    """
    colors = class_colors(len(boxes_xyxy)) if ids is None else identity_colors(ids)
    width = max(1, round(outline_width(image_hw(image))))
    canvas = np.array(image, order="C")
    size = text_size(image_hw(image), count=len(boxes_xyxy))
    tags: list[Tag] = []
    texts = captions(len(boxes_xyxy), scores=scores, ids=ids)
    for box, text, (red, green, blue) in zip(boxes_xyxy, texts, colors.tolist(), strict=True):
        if not np.isfinite(box).all():
            continue
        if outline:
            _draw_box(canvas, box, width=width, color=(red, green, blue))
        if text:
            left, top, right, bottom = box.tolist()
            high, wide = tag_hw(text, size)
            positions = ((left, top - high), (left + width, top + width), (right - wide, top - high), (left, bottom))
            tags.append(Tag(text=text, color=(red, green, blue), positions=positions))
    draw_tags(canvas, tags, size=size)
    return canvas


def _draw_box(canvas: RgbImage, box: NDArray[np.floating], *, width: int, color: Sequence[int]) -> None:
    """Draw a box on whole pixels, in place: lines inside its edges, with a thin dark line on both sides."""
    height, wide = image_hw(canvas)
    left, top, right, bottom = np.rint(np.clip(box, 0, (wide, height, wide, height))).astype(int).tolist()
    right, bottom = max(right, left + 1), max(bottom, top + 1)
    for grow, ink, opacity in ((1, BLACK, 0.3), (0, color, 1.0)):
        thick = width + 2 * grow
        x0, y0, x1, y1 = left - grow, top - grow, right + grow, bottom + grow
        y2, y3 = min(y0 + thick, y1), max(y1 - thick, min(y0 + thick, y1))
        x2, x3 = min(x0 + thick, x1), max(x1 - thick, min(x0 + thick, x1))
        for rows, columns in (((y0, y2), (x0, x1)), ((y3, y1), (x0, x1)), ((y2, y3), (x0, x2)), ((y2, y3), (x3, x1))):
            part = canvas[max(rows[0], 0) : max(rows[1], 0), max(columns[0], 0) : max(columns[1], 0)]
            part[...] = np.rint(part + (np.array(ink) - part) * opacity).astype(np.uint8)


def enclosing_boxes(points: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the tight boxes around finite points: [N, J, 2] -> [N, 4], NaN where there are none."""
    known: NDArray[np.bool_] = np.all(np.isfinite(points), axis=-1, keepdims=True)  # [N, J, 1]
    low, high = np.where(known, points, np.inf).min(1), np.where(known, points, -np.inf).max(1)  # [N, 2]
    return np.where(known.any(1), np.concatenate([low, high], axis=1), np.nan)  # [N, 4]
