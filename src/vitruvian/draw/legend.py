"""Legends: the colours in a picture and what they stand for, on a panel beside or below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from vitruvian.draw.canvas import Picture, checked_colours, checked_picture, size_of
from vitruvian.draw.text import line_height, text_size, text_width, write
from vitruvian.errors import InputError

LegendPlace = Literal["right", "below"]

INK = (24, 24, 28)
PAPER = (255, 255, 255)


def add_legend(picture: Picture, names: Sequence[str], colours: Any, *, place: LegendPlace = "right") -> Picture:
    """Put a legend on white beside or below a picture; the picture itself stays as it is.

    Args:
        picture: uint8 [H, W, 3].
        names: [K] what the colours stand for; with none the picture comes back alone.
        colours: [K, 3] from 0 to 255.
        place: "right" keeps the height and adds columns, "below" keeps the width and adds rows, as long as the picture
            is large enough for its legend; a smaller one is put on a larger white ground.
    """
    picture = checked_picture(picture)
    if place not in ("right", "below"):
        raise InputError(f"place: expected right or below, got {place!r}. Choose one of these.")
    if len(names) != len(colours):
        raise InputError(f"names: expected one a colour, {len(colours)}, got {len(names)}. Pair them up.")
    if not names:
        return picture.copy()
    tones = checked_colours(colours)
    size = text_size(size_of(picture), share=0.0165)
    panel = _panel([name.replace("_", " ") for name in names], tones, size, size_of(picture), place)
    (height, width), (high, wide) = size_of(picture), size_of(panel)
    if place == "right":
        canvas = _paper(max(height, high), width + wide)
        canvas[:high, width:] = panel
    else:
        canvas = _paper(height + high, max(width, wide))
        canvas[height:, :wide] = panel
    canvas[:height, :width] = picture
    return canvas


def _paper(height: int, width: int) -> Picture:
    return np.full((height, width, 3), PAPER, dtype=np.uint8)


def _panel(names: Sequence[str], tones: Picture, size: int, size_hw: tuple[int, int], place: LegendPlace) -> Picture:
    """Rows of a swatch and a name in as many columns as it takes, uint8 [h, w, 3]."""
    row = round(line_height(size) * 1.22)
    swatch, gap, margin = round(size * 0.95), round(size * 0.5), round(size * 0.8)
    column = swatch + gap + max(text_width(name, size) for name in names) + round(size * 1.2)
    if place == "right":
        # Beside a low picture the panel grows downwards rather than into one endless line.
        square = math.ceil(math.sqrt(len(names) * column / row / 2))
        rows = min(len(names), max(1, square, (size_hw[0] - 2 * margin) // row))
        columns = -(-len(names) // rows)
    else:
        columns = max(1, min(len(names), (size_hw[1] - 2 * margin) // column))
    rows = -(-len(names) // columns)  # even columns
    panel = _paper(2 * margin + rows * row, 2 * margin + columns * column)
    for i, (name, tone) in enumerate(zip(names, tones.tolist(), strict=True)):
        top, left = margin + (i % rows) * row, margin + (i // rows) * column
        _swatch(panel, left, top + (row - swatch) // 2, swatch, tone)
        write(panel, name, left_top=(left + swatch + gap, top + (row - line_height(size)) // 2), size=size, colour=INK)
    return panel


def _swatch(panel: Picture, left: int, top: int, side: int, tone: Sequence[int]) -> None:
    """A square of a colour with a thin rim, so that white shows too."""
    panel[top : top + side, left : left + side] = [round(value * 0.72) for value in tone]
    panel[top + 1 : top + side - 1, left + 1 : left + side - 1] = tone
