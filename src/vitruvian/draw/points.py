"""Markers of points that were clicked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw.canvas import WHITE, image_hw, outline_width
from vitruvian.draw.rasterize import Strokes
from vitruvian.images.types import RgbImage

_ON, _OFF = (46, 160, 67), (218, 54, 51)  # green and red


def draw_points(image: RgbImage, points: NDArray[np.floating], labels: Sequence[int]) -> RgbImage:
    """Draw points over an image: a plus on green for those on an object, a minus on red for those off it.

    Args:
        image: uint8 [H, W, 3].
        points: x and y in pixels [N, 2].
        labels: [N], 1 for on and 0 for off the object.
    """
    canvas = np.array(image, order="C")
    radius = max(4.0, 5 * outline_width(image_hw(image)))
    strokes, arm = Strokes(), radius * 0.5
    for (x, y), label in zip(np.asarray(points, np.float64).tolist(), labels, strict=True):
        strokes.dot((x, y), radius=radius + max(1.0, radius * 0.2), color=WHITE)
        strokes.dot((x, y), radius=radius, color=_ON if label else _OFF)
        strokes.line((x - arm, y), (x + arm, y), radius=radius * 0.12, color=WHITE)
        if label:
            strokes.line((x, y - arm), (x, y + arm), radius=radius * 0.12, color=WHITE)
    strokes.paint(canvas)
    return canvas
