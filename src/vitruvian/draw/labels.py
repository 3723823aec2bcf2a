"""Label maps: body parts, semantic classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.draw.canvas import (
    BLACK,
    WHITE,
    Picture,
    blend,
    checked_colours,
    checked_map,
    checked_opacity,
    checked_picture,
    fine_width,
    size_of,
)
from vitruvian.draw.legend import LegendPlace, add_legend
from vitruvian.draw.outlines import lay_outline
from vitruvian.errors import InputError

VOID = (255, -1)  # labels that other tools use for "nothing here"


def draw_labels(
    picture: Picture | None,
    labels: Any,
    colours: Any,
    *,
    names: Sequence[str] | Mapping[int, str] | None = None,
    opacity: float = 0.55,
    legend: bool | LegendPlace = True,
    outline: bool = True,
    background: int | None = 0,
) -> Picture:
    """Colour a picture by its labels, with thin lines between them and a legend of the classes that occur.

    Args:
        picture: uint8 [H, W, 3], or None for the labels alone, in full colour.
        labels: [H, W] whole numbers. 255 and -1, where there are fewer colours, mark pixels without a label.
        colours: [K, 3] from 0 to 255, for instance `vitruvian.human.PART_COLOURS`.
        names: Names of the K classes; without them there is no legend.
        opacity: Of the colours over the picture.
        legend: True or "right": on a panel to the right; "below": under the picture; False: none, and the result has
            the size of the picture.
        outline: Draw the borders.
        background: The label that is left as the picture is and out of the legend; None: all are coloured.
    """
    opacity = checked_opacity(opacity)
    values = checked_labels(labels, size_hw=None if picture is None else size_of(checked_picture(picture)))
    tones = checked_colours(colours, count=1)
    present, _, slots = renumbered(values)  # few labels occur: their numbers fit a byte
    wrong = [label for label in present if not 0 <= label < len(tones) and label not in VOID]
    if wrong:
        raise InputError(
            f"labels: expected classes from 0 to {len(tones) - 1}, one a colour, got {wrong[:8]}. "
            "Give more colours, or mark pixels without a label with 255."
        )
    shown = [label for label in present if 0 <= label < len(tones) and label != background]
    palette = np.array([tones[label] if label in shown else BLACK for label in present], dtype=np.uint8)  # [slots, 3]
    strength = round(255 * (opacity if picture is not None else 1))
    weights = np.array([strength if label in shown else 0 for label in present], dtype=np.uint8)  # [slots]
    ground = np.zeros((*values.shape, 3), dtype=np.uint8) if picture is None else picture
    canvas = blend(ground, palette.take(slots, axis=0), weights.take(slots))
    if outline and shown:
        lay_outline(canvas, slots, colour=WHITE, width=fine_width(values.shape), opacity=0.8)
    if legend is False or names is None:
        return canvas
    words = [str(names[label]) for label in shown]
    return add_legend(canvas, words, tones[shown], place="right" if legend is True else legend)


def checked_labels(labels: Any, *, size_hw: tuple[int, int] | None, name: str = "labels") -> NDArray[Any]:
    """Return a map of whole numbers [H, W]."""
    values = checked_map(labels, name=name, size_hw=size_hw)
    if values.dtype.kind not in "uib":
        raise InputError(f"{name}: expected whole numbers, got {values.dtype}. Take the class of the largest score.")
    return values


def renumbered(values: NDArray[Any]) -> tuple[list[int], NDArray[np.int64], NDArray[Any]]:
    """Numbers that occur in a map [H, W] in order, their areas, and the map with 0, 1, 2 … in their place."""
    if values.dtype == np.uint8:
        counts = np.array(Image.fromarray(values).histogram())
        low = 0
    else:
        low, high = int(values.min()), int(values.max())
        if high - low >= 2**24:  # a table of this length would cost more than sorting
            found, dense, areas = np.unique(values, return_inverse=True, return_counts=True)
            return [int(number) for number in found], areas, dense.reshape(values.shape)
        values = values.astype(np.int64) - low
        counts = np.bincount(values.ravel())
    found = np.flatnonzero(counts)
    table = np.zeros(len(counts), dtype=np.uint8 if len(found) <= 256 else np.int32)
    table[found] = np.arange(len(found))
    return [int(number) + low for number in found], counts[found], table.take(values)
