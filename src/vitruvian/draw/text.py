"""Text and tags: measured before they are drawn, so that they fit the picture and stay clear of one another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitruvian.draw.canvas import BLACK, WHITE, Colour, Picture, diagonal, luminance, size_of, tint

SMALLEST_TEXT = 10  # pixels; under it letters fall apart
Box = tuple[int, int, int, int]  # left, top, right, bottom


@lru_cache(maxsize=64)
def font(size: int) -> Any:
    """Return Pillow's own font at a size in pixels."""
    return ImageFont.load_default(size)


def text_size(size_hw: tuple[int, int], *, share: float = 0.018, count: int = 1) -> int:
    """Size of letters in pixels that suits a picture with `count` texts: a share of its diagonal, never unreadable."""
    crowded = min(1.0, max(0.6, math.sqrt(12 / max(count, 1))))
    return max(SMALLEST_TEXT, round(diagonal(size_hw) * share * crowded))


def text_width(text: str, size: int) -> int:
    """Width of one line of text in pixels."""
    return int(np.ceil(font(size).getlength(one_line(text))))


def line_height(size: int) -> int:
    """Height of one line of text in pixels, letters below the line included."""
    ascent, descent = font(size).getmetrics()
    return int(ascent + descent)


def one_line(text: str) -> str:
    """Put text on one line."""
    return " ".join(str(text).split())


def shortened(text: str, size: int, width: int) -> str:
    """Cut text so that it fits into `width` pixels, with dots where something is missing."""
    text = one_line(text)
    if text_width(text, size) <= width:
        return text
    kept = len(text)
    while kept and text_width(text[:kept].rstrip() + "…", size) > width:
        kept -= 1
    return text[:kept].rstrip() + "…" if kept else ""


def write(picture: Picture, text: str, *, left_top: tuple[int, int], size: int, colour: Sequence[int] = BLACK) -> None:
    """Write one line onto `picture` uint8 [H, W, 3], in place; what lies outside is cut off."""
    left, top = left_top
    _stamp(picture, _letters(text, size), left=left, top=top, colour=colour)


def _letters(text: str, size: int) -> Picture:
    """One line of text as cover uint8 [h, w]."""
    text = one_line(text)
    mask = Image.new("L", (max(1, text_width(text, size)), line_height(size)))
    ImageDraw.Draw(mask).text((0, 0), text, font=font(size), fill=255)
    return np.asarray(mask)


def _stamp(picture: Picture, cover: Picture, *, left: int, top: int, colour: Sequence[int]) -> None:
    """Lay a colour through a cover uint8 [h, w] onto a place of `picture`, in place."""
    height, width = size_of(picture)
    y0, x0 = max(top, 0), max(left, 0)
    y1, x1 = min(top + cover.shape[0], height), min(left + cover.shape[1], width)
    if y0 < y1 and x0 < x1:
        part = np.ascontiguousarray(cover[y0 - top : y1 - top, x0 - left : x1 - left])
        picture[y0:y1, x0:x1] = tint(picture[y0:y1, x0:x1], colour, part)


@dataclass(frozen=True)
class Tag:
    """A short text on a coloured ground.

    Attributes:
        text: What it says.
        colour: Of the ground; letters are black or white, whichever reads better.
        places: Left upper corners (x, y) in the order of preference, for a tag of the size that `tag_hw` gives.
    """

    text: str
    colour: Colour
    places: tuple[tuple[float, float], ...]


def tag_hw(text: str, size: int) -> tuple[int, int]:
    """Height and width of a tag in pixels."""
    pad = max(1, round(size * 0.28))
    return line_height(size) + pad, text_width(text, size) + 2 * max(2, round(size * 0.4))


def draw_tags(picture: Picture, tags: Sequence[Tag], *, size: int) -> None:
    """Draw tags onto `picture` in place, each at its first free place, or where it hides least."""
    taken: list[Box] = []
    for tag in tags:
        box = _place(tag, size_of(picture), taken, size=size)
        taken.append(box)
        _draw_tag(picture, tag, box, size=size)


def _place(tag: Tag, size_hw: tuple[int, int], taken: Sequence[Box], *, size: int) -> Box:
    height, width = tag_hw(tag.text, size)
    tries: list[Box] = []
    for down in (0, 1, -1, 2, -2, 3, -3):  # the places themselves, then a line further down or up
        for x, y in tag.places:
            left = round(min(max(x, 0), max(0, size_hw[1] - width)))
            top = round(min(max(y + down * (height + 1), 0), max(0, size_hw[0] - height)))
            tries.append((left, top, left + width, top + height))
            if not any(_overlap(tries[-1], other) for other in taken):
                return tries[-1]
    return min(tries, key=lambda box: sum(_overlap(box, other) for other in taken))


def _overlap(a: Box, b: Box) -> int:
    """Area that two boxes share."""
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(wide, 0) * max(high, 0)


def _draw_tag(picture: Picture, tag: Tag, box: Box, *, size: int) -> None:
    left, top, right, bottom = box
    ground = _rounded(bottom - top, right - left, radius=size * 0.28)
    _stamp(picture, ground, left=left, top=top, colour=tag.colour)
    ink = BLACK if luminance(tag.colour) > 0.3 else WHITE
    pad = (right - left - text_width(tag.text, size)) // 2
    write(
        picture, tag.text, left_top=(left + pad, top + (bottom - top - line_height(size)) // 2), size=size, colour=ink
    )


@lru_cache(maxsize=64)
def _rounded(height: int, width: int, *, radius: float) -> Picture:
    """A rectangle with round corners as cover uint8 [height, width]."""
    y = np.abs(np.arange(height) - (height - 1) / 2)[:, None] - (height / 2 - radius)
    x = np.abs(np.arange(width) - (width - 1) / 2)[None, :] - (width / 2 - radius)
    distance = np.hypot(np.maximum(x, 0), np.maximum(y, 0)) + np.minimum(np.maximum(x, y), 0) - radius
    cover: Picture = np.rint(np.clip(0.5 - distance, 0, 1) * 236).astype(np.uint8)  # the picture shimmers through
    return cover
