"""Text and tags, placed inside the image and without overlaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitruvian.draw.canvas import BLACK, WHITE, Color, image_hw
from vitruvian.images.types import RgbImage, SizeHW

_MIN_TEXT_SIZE = 10  # pixels
_Box = tuple[int, int, int, int]  # left, top, right, bottom


@lru_cache(maxsize=64)
def _font(size: int) -> ImageFont.FreeTypeFont:
    """Return Pillow's default font at a size in pixels."""
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # Pillow has FreeType in all wheels
    return font


def text_size(size_hw: SizeHW, *, share: float = 0.018, count: int = 1) -> int:
    """Return the text size in pixels for an image with `count` texts: a share of its diagonal, at least 10."""
    shrink = min(1.0, max(0.6, math.sqrt(12 / max(count, 1))))
    return max(_MIN_TEXT_SIZE, round(math.hypot(*size_hw) * share * shrink))


def text_width(text: str, size: int) -> int:
    """Return the width of one line of text in pixels."""
    return math.ceil(_font(size).getlength(_one_line(text)))


def line_height(size: int) -> int:
    """Return the height of one line of text in pixels, with descenders."""
    return sum(_font(size).getmetrics())


def _one_line(text: str) -> str:
    return " ".join(text.split())


def truncate_text(text: str, size: int, width: int) -> str:
    """Truncate text to `width` pixels, with an ellipsis."""
    text = _one_line(text)
    if text_width(text, size) <= width:
        return text
    length = len(text)
    while length and text_width(text[:length].rstrip() + "…", size) > width:
        length -= 1
    return text[:length].rstrip() + "…" if length else ""


def draw_text(image: Image.Image, text: str, *, left_top: tuple[int, int], size: int, color: Color) -> None:
    """Write one line onto an image, in place."""
    ImageDraw.Draw(image).text(left_top, _one_line(text), font=_font(size), fill=color)


@dataclass(frozen=True)
class Tag:
    """A short text on a colored background.

    Attributes:
        text: What it says.
        color: Of the background; letters are black or white, whichever has more contrast.
        positions: Top left corners (x, y) in the order of preference, for a tag of the size `tag_hw`.
    """

    text: str
    color: Color
    positions: tuple[tuple[float, float], ...]


def tag_hw(text: str, size: int) -> SizeHW:
    """Return height and width of a tag in pixels."""
    pad = max(1, round(size * 0.28))
    return line_height(size) + pad, text_width(text, size) + 2 * max(2, round(size * 0.4))


def draw_tags(image: RgbImage, tags: Sequence[Tag], *, size: int) -> None:
    """Draw tags onto `image` in place, each at its first free position, or where it overlaps least."""
    occupied: list[_Box] = []
    for tag in tags:
        box = _place(tag, image_hw(image), occupied, size=size)
        occupied.append(box)
        _draw_tag(image, tag, box, size=size)


def _place(tag: Tag, size_hw: SizeHW, occupied: Sequence[_Box], *, size: int) -> _Box:
    """Return the first free position of a tag inside the image, or the one that overlaps the least."""
    height, width = tag_hw(tag.text, size)
    candidates: list[_Box] = []
    for down in (0, 1, -1, 2, -2, 3, -3):  # the positions themselves, then shifted by lines
        for x, y in tag.positions:
            left = round(min(max(x, 0), max(0, size_hw[1] - width)))
            top = round(min(max(y + down * (height + 1), 0), max(0, size_hw[0] - height)))
            candidates.append((left, top, left + width, top + height))
            if not any(_overlap(candidates[-1], other) for other in occupied):
                return candidates[-1]
    return min(candidates, key=lambda box: sum(_overlap(box, other) for other in occupied))


def _overlap(a: _Box, b: _Box) -> int:
    """Return the area that two boxes share."""
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(wide, 0) * max(high, 0)


def _draw_tag(image: RgbImage, tag: Tag, box: _Box, *, size: int) -> None:
    """Draw a tag into its box, in place."""
    left, top, right, bottom = box
    height, width = bottom - top, right - left
    window = image[top:bottom, left:right]
    tile = Image.fromarray(np.ascontiguousarray(window))
    tile.paste(tag.color, (0, 0), Image.fromarray(_rounded_rectangle(height, width, radius=size * 0.28)))
    centered = (width - text_width(tag.text, size)) // 2, (height - line_height(size)) // 2
    draw_text(tile, tag.text, left_top=centered, size=size, color=BLACK if _luminance(tag.color) > 0.3 else WHITE)
    window[...] = np.asarray(tile)


def _luminance(color: Color) -> float:
    """Return the relative luminance of a color, 0 to 1."""
    red, green, blue = (math.pow(value / 255, 2.2) for value in color)
    return red * 0.2126 + green * 0.7152 + blue * 0.0722


@lru_cache(maxsize=64)
def _rounded_rectangle(height: int, width: int, *, radius: float) -> RgbImage:
    """Return a rectangle with smooth round corners as coverage uint8 [height, width]; Pillow's are not smooth."""
    y = np.abs(np.arange(height) - (height - 1) / 2)[:, None] - (height / 2 - radius)
    x = np.abs(np.arange(width) - (width - 1) / 2)[None, :] - (width / 2 - radius)
    distance = np.hypot(np.maximum(x, 0), np.maximum(y, 0)) + np.minimum(np.maximum(x, y), 0) - radius
    cover: RgbImage = np.rint(np.clip(0.5 - distance, 0, 1) * 236).astype(np.uint8)  # slightly transparent
    return cover
