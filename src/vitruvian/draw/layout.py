"""Legends beside an image, and contact sheets with titles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from vitruvian.draw.canvas import RgbImage, checked_colours, checked_image, size_of
from vitruvian.draw.text import line_height, shortened, text_size, text_width, write
from vitruvian.errors import InputError

_INK = (24, 24, 28)
_PAPER = (255, 255, 255)


def add_legend(image: RgbImage, names: Sequence[str], colours: ArrayLike) -> RgbImage:
    """Add a legend on white at the right of an image, which grows downwards where it is too low for the legend.

    Args:
        image: uint8 [H, W, 3].
        names: [K]; without any there is no legend.
        colours: [K, 3] from 0 to 255.
    """
    image = checked_image(image)
    if not names:
        return image.copy()
    tones = checked_colours(colours)
    if len(names) != len(tones):
        raise InputError(f"names: expected one for each of {len(tones)} colours, got {len(names)}. Pair them up.")
    size = text_size(size_of(image), share=0.0165)
    panel = _panel([name.replace("_", " ") for name in names], tones, size, len(image))
    (height, width), (high, wide) = size_of(image), size_of(panel)
    canvas = _paper(max(height, high), width + wide)
    canvas[:high, width:] = panel
    canvas[:height, :width] = image
    return canvas


def _paper(height: int, width: int) -> RgbImage:
    return np.full((height, width, 3), _PAPER, dtype=np.uint8)


def _panel(names: Sequence[str], tones: RgbImage, size: int, height: int) -> RgbImage:
    """Return rows of a swatch and a name in as many columns as needed, uint8 [h, w, 3]."""
    row = round(line_height(size) * 1.22)
    swatch, gap, margin = round(size * 0.95), round(size * 0.5), round(size * 0.8)
    column = swatch + gap + max(text_width(name, size) for name in names) + round(size * 1.2)
    # Beside a low image the panel is about square rather than one long line.
    square = math.ceil(math.sqrt(len(names) * column / row / 2))
    rows = min(len(names), max(1, square, (height - 2 * margin) // row))
    columns = -(-len(names) // rows)
    rows = -(-len(names) // columns)  # even columns
    panel = _paper(2 * margin + rows * row, 2 * margin + columns * column)
    for i, (name, tone) in enumerate(zip(names, tones.tolist(), strict=True)):
        top, left = margin + (i % rows) * row, margin + (i // rows) * column
        _swatch(panel, left, top + (row - swatch) // 2, swatch, tone)
        write(panel, name, left_top=(left + swatch + gap, top + (row - line_height(size)) // 2), size=size, colour=_INK)
    return panel


def _swatch(panel: RgbImage, left: int, top: int, side: int, tone: Sequence[int]) -> None:
    """Draw a square of a colour with a thin rim, so that white is visible too."""
    panel[top : top + side, left : left + side] = [round(value * 0.72) for value in tone]
    panel[top + 1 : top + side - 1, left + 1 : left + side - 1] = tone


def sheet(
    rows: Sequence[Sequence[RgbImage]],
    *,
    titles: Sequence[str] | None = None,
    row_titles: Sequence[str] | None = None,
    height: int | None = None,
    gap: int | None = None,
) -> RgbImage:
    """Arrange rows of images on one white sheet; each image is centred in its cell.

    Args:
        rows: Images uint8 [H, W, 3] by row; rows may differ in length.
        titles: Above the columns; long ones are truncated.
        row_titles: At the left of the rows, rotated to read upwards.
        height: Of every image in the result; by default that of the tallest one of each row.
        gap: White pixels between two images; by default it follows the height.
    """
    grid = [[checked_image(image) for image in row] for row in rows]
    if not any(grid):
        raise InputError("images: expected at least one, got none. Pass images uint8 [H, W, 3].")
    for name, sizes in (("height", height), ("gap", gap)):
        if sizes is not None and sizes < (1 if name == "height" else 0):
            raise InputError(f"{name}: expected a number of pixels, got {sizes}. Leave it out for the default.")
    columns = max(len(row) for row in grid)
    _check_titles("titles", titles, columns)
    _check_titles("row_titles", row_titles, len(grid))
    grid = [[_at_height(p, height or max(len(q) for q in row)) for p in row] for row in grid]
    highs = [max((len(p) for p in row), default=0) for row in grid]
    wides = [max(p.shape[1] for row in grid for p in row[c : c + 1]) for c in range(columns)]
    tallest = max(highs)
    space = max(2, round(tallest * 0.015)) if gap is None else gap
    size = text_size((tallest, tallest), share=0.028)
    band = round(line_height(size) * 1.35)
    left, top = band if row_titles else 0, band if titles else 0
    canvas = np.full(
        (top + sum(highs) + space * (len(highs) - 1), left + sum(wides) + space * (columns - 1), 3), _PAPER, np.uint8
    )
    xs = [left + sum(wides[:c]) + space * c for c in range(columns)]
    ys = [top + sum(highs[:r]) + space * r for r in range(len(highs))]
    for y, high, row in zip(ys, highs, grid, strict=True):
        for x, wide, image in zip(xs, wides, row, strict=False):
            down, across = y + (high - len(image)) // 2, x + (wide - image.shape[1]) // 2
            canvas[down : down + len(image), across : across + image.shape[1]] = image
    for x, wide, title in zip(xs, wides, titles or (), strict=False):
        _centre(canvas, title, left=x, top=0, wide=wide, high=band, size=size)
    rotated = np.full((left, len(canvas), 3), _PAPER, dtype=np.uint8)  # written horizontally, then rotated
    for y, high, title in zip(ys, highs, row_titles or (), strict=False):
        _centre(rotated, title, left=len(canvas) - y - high, top=0, wide=high, high=band, size=size)
    if left:
        canvas[:, :left] = np.rot90(rotated)
    return canvas


def _check_titles(name: str, titles: Sequence[str] | None, count: int) -> None:
    if titles is not None and len(titles) != count:
        raise InputError(f"{name}: expected {count}, got {len(titles)}. Use an empty text where there is none.")


def _at_height(image: RgbImage, height: int) -> RgbImage:
    """Resize an image to a height, keeping its aspect ratio."""
    if len(image) == height:
        return image
    width = max(1, round(image.shape[1] * height / len(image)))
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS))


def _centre(canvas: RgbImage, text: str, *, left: int, top: int, wide: int, high: int, size: int) -> None:
    words = shortened(text, size, wide)
    x = left + (wide - text_width(words, size)) // 2
    write(canvas, words, left_top=(x, top + (high - line_height(size)) // 2), size=size, colour=_INK)
