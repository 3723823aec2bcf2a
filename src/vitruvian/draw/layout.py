"""Pictures side by side and on contact sheets, with titles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from vitruvian.draw.canvas import Picture, checked_picture
from vitruvian.draw.legend import INK, PAPER
from vitruvian.draw.text import line_height, shortened, text_size, text_width, write
from vitruvian.errors import InputError


def side_by_side(
    pictures: Sequence[Picture],
    *,
    titles: Sequence[str] | None = None,
    height: int | None = None,
    gap: int | None = None,
) -> Picture:
    """Put pictures in a row on white, all at one height, titles above.

    Args:
        pictures: uint8 [H, W, 3] each, of any sizes; at least one.
        titles: One a picture; too long ones are cut.
        height: Of every picture in the result; None: of the tallest one.
        gap: White pixels between two pictures; None: fits the height.
    """
    return sheet([pictures], titles=titles, height=height, gap=gap)


def sheet(
    rows: Sequence[Sequence[Picture]],
    *,
    titles: Sequence[str] | None = None,
    row_titles: Sequence[str] | None = None,
    height: int | None = None,
    gap: int | None = None,
) -> Picture:
    """Put rows of pictures on one white sheet; columns line up, and each picture is centred in its cell.

    Args:
        rows: Pictures uint8 [H, W, 3] by row; rows may differ in length.
        titles: Above the columns.
        row_titles: Left of the rows, turned to read upwards.
        height: Of every picture in the result; None: of the tallest one of each row.
        gap: White pixels between two pictures; None: fits the height.
    """
    grid = [[checked_picture(picture) for picture in row] for row in rows]
    if not any(grid):
        raise InputError("pictures: expected at least one, got none. Pass pictures uint8 [H, W, 3].")
    for name, sizes in (("height", height), ("gap", gap)):
        if sizes is not None and sizes < (1 if name == "height" else 0):
            raise InputError(f"{name}: expected a number of pixels, got {sizes}. Leave it out to fit.")
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
        (top + sum(highs) + space * (len(highs) - 1), left + sum(wides) + space * (columns - 1), 3), PAPER, np.uint8
    )
    xs = [left + sum(wides[:c]) + space * c for c in range(columns)]
    ys = [top + sum(highs[:r]) + space * r for r in range(len(highs))]
    for y, high, row in zip(ys, highs, grid, strict=True):
        for x, wide, picture in zip(xs, wides, row, strict=False):
            down, across = y + (high - len(picture)) // 2, x + (wide - picture.shape[1]) // 2
            canvas[down : down + len(picture), across : across + picture.shape[1]] = picture
    for x, wide, title in zip(xs, wides, titles or (), strict=False):
        _centre(canvas, title, left=x, top=0, wide=wide, high=band, size=size)
    turned = np.full((left, len(canvas), 3), PAPER, dtype=np.uint8)  # written level, then turned to read upwards
    for y, high, title in zip(ys, highs, row_titles or (), strict=False):
        _centre(turned, title, left=len(canvas) - y - high, top=0, wide=high, high=band, size=size)
    if left:
        canvas[:, :left] = np.rot90(turned)
    return canvas


def _check_titles(name: str, titles: Sequence[str] | None, count: int) -> None:
    if titles is not None and len(titles) != count:
        raise InputError(f"{name}: expected {count}, got {len(titles)}. Use an empty text where there is none.")


def _at_height(picture: Picture, height: int) -> Picture:
    """Resize a picture to a height, keeping its shape."""
    if len(picture) == height:
        return picture
    width = max(1, round(picture.shape[1] * height / len(picture)))
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS))


def _centre(canvas: Picture, text: str, *, left: int, top: int, wide: int, high: int, size: int) -> None:
    words = shortened(text, size, wide)
    x = left + (wide - text_width(words, size)) // 2
    write(canvas, words, left_top=(x, top + (high - line_height(size)) // 2), size=size, colour=INK)
