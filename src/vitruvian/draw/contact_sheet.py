"""Contact sheets: rows of images on one sheet, with titles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from vitruvian.draw.canvas import INK, WHITE
from vitruvian.draw.text import draw_text, line_height, text_size, text_width, truncate_text
from vitruvian.images.types import RgbImage


def contact_sheet(
    rows: Sequence[Sequence[RgbImage]], *, titles: Sequence[str], row_titles: Sequence[str], height: int
) -> RgbImage:
    """Arrange rows of images on one white sheet; each image is centered in its cell.

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
    """Return text, truncated and centered on white."""
    strip = Image.new("RGB", (width, height), WHITE)
    text = truncate_text(text, size, width)
    centered = (width - text_width(text, size)) // 2, (height - line_height(size)) // 2
    draw_text(strip, text, left_top=centered, size=size, color=INK)
    return strip
