"""Legends beside an image, and contact sheets with titles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from vitruvian.draw.canvas import WHITE, RgbImage, size_of
from vitruvian.draw.text import line_height, shortened, text_size, text_width, write

_INK = (24, 24, 28)


def add_legend(image: RgbImage, names: Sequence[str], colours: RgbImage) -> RgbImage:
    """Add a legend on white at the right of an image, which grows downwards where it is too low for the legend.

    Args:
        image: uint8 [H, W, 3].
        names: [K]; without any there is no legend.
        colours: [K, 3] from 0 to 255.
    """
    if not names:
        return image.copy()
    height, width = size_of(image)
    panel = _legend(
        [name.replace("_", " ") for name in names], colours, text_size((height, width), share=0.0165), height
    )
    canvas = Image.new("RGB", (width + panel.width, max(height, panel.height)), WHITE)
    canvas.paste(Image.fromarray(image), (0, 0))
    canvas.paste(panel, (width, 0))
    return np.array(canvas)


def _legend(names: Sequence[str], colours: RgbImage, size: int, height: int) -> Image.Image:
    """Return rows of a swatch and a name, in as many columns as an image of this height needs."""
    row = round(line_height(size) * 1.22)
    swatch, gap, margin = round(size * 0.95), round(size * 0.5), round(size * 0.8)
    column = swatch + gap + max(text_width(name, size) for name in names) + round(size * 1.2)
    # Beside a low image the panel is about square rather than one long line.
    square = math.ceil(math.sqrt(len(names) * column / row / 2))
    rows = min(len(names), max(1, square, (height - 2 * margin) // row))
    columns = -(-len(names) // rows)
    rows = -(-len(names) // columns)  # even columns
    panel = Image.new("RGB", (2 * margin + columns * column, 2 * margin + rows * row), WHITE)
    for i, (name, colour) in enumerate(zip(names, colours.tolist(), strict=True)):
        top, left = margin + (i % rows) * row, margin + (i // rows) * column
        y = top + (row - swatch) // 2
        rim = tuple(round(value * 0.72) for value in colour)  # so that white is visible too
        corners = (left, y, left + swatch - 1, y + swatch - 1)
        ImageDraw.Draw(panel).rectangle(corners, fill=tuple(colour), outline=rim)
        write(panel, name, left_top=(left + swatch + gap, top + (row - line_height(size)) // 2), size=size, colour=_INK)
    return panel


def contact_sheet(
    rows: Sequence[Sequence[RgbImage]], *, titles: Sequence[str], row_titles: Sequence[str], height: int
) -> RgbImage:
    """Arrange rows of images on one white sheet; each image is centred in its cell.

    Args:
        rows: Images uint8 [H, W, 3] by row; rows may differ in length.
        titles: Above the columns; long ones are truncated.
        row_titles: At the left of the rows, rotated to read upwards.
        height: Of every image in the result.
    """
    grid = [[_at_height(image, height) for image in row] for row in rows]
    widths = [max(image.width for row in grid for image in row[c : c + 1]) for c in range(len(titles))]
    gap = max(2, round(height * 0.015))
    size = text_size((height, height), share=0.028)
    band = round(line_height(size) * 1.35)
    xs = [band + sum(widths[:c]) + gap * c for c in range(len(widths))]
    ys = [band + (height + gap) * r for r in range(len(grid))]
    canvas = Image.new("RGB", (xs[-1] + widths[-1], ys[-1] + height), WHITE)
    for y, row, row_title in zip(ys, grid, row_titles, strict=True):
        canvas.paste(_title(row_title, height, band, size).rotate(90, expand=True), (0, y))
        for x, width, image in zip(xs, widths, row, strict=False):
            canvas.paste(image, (x + (width - image.width) // 2, y))
    for x, width, title in zip(xs, widths, titles, strict=True):
        canvas.paste(_title(title, width, band, size), (x, 0))
    return np.array(canvas)


def _at_height(image: RgbImage, height: int) -> Image.Image:
    """Resize an image to a height, keeping its aspect ratio."""
    width = max(1, round(image.shape[1] * height / len(image)))
    return Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS)


def _title(text: str, width: int, height: int, size: int) -> Image.Image:
    """Return text, truncated and centred on white."""
    strip = Image.new("RGB", (width, height), WHITE)
    text = shortened(text, size, width)
    centred = (width - text_width(text, size)) // 2, (height - line_height(size)) // 2
    write(strip, text, left_top=centred, size=size, colour=_INK)
    return strip
