"""A legend of colors and names beside an image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from vitruvian.draw.canvas import INK, WHITE, image_hw
from vitruvian.draw.text import draw_text, line_height, text_size, text_width
from vitruvian.images.types import RgbImage


def add_legend(image: RgbImage, names: Sequence[str], colors: RgbImage) -> RgbImage:
    """Add a legend on white at the right of an image, which grows downwards where it is too low for the legend.

    Args:
        image: uint8 [H, W, 3].
        names: [K]; without any there is no legend.
        colors: [K, 3] from 0 to 255.
    """
    if not names:
        return image.copy()
    height, width = image_hw(image)
    panel = _legend(
        [name.replace("_", " ") for name in names], colors, text_size((height, width), share=0.0165), height
    )
    canvas = Image.new("RGB", (width + panel.width, max(height, panel.height)), WHITE)
    canvas.paste(Image.fromarray(image), (0, 0))
    canvas.paste(panel, (width, 0))
    return np.array(canvas)


def _legend(names: Sequence[str], colors: RgbImage, size: int, height: int) -> Image.Image:
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
    for i, (name, color) in enumerate(zip(names, colors.tolist(), strict=True)):
        top, left = margin + (i % rows) * row, margin + (i // rows) * column
        y = top + (row - swatch) // 2
        rim = tuple(round(value * 0.72) for value in color)  # so that white is visible too
        corners = (left, y, left + swatch - 1, y + swatch - 1)
        ImageDraw.Draw(panel).rectangle(corners, fill=tuple(color), outline=rim)
        draw_text(
            panel, name, left_top=(left + swatch + gap, top + (row - line_height(size)) // 2), size=size, color=INK
        )
    return panel
