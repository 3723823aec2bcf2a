"""Types of images, sizes and arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RgbImage = NDArray[np.uint8]  # [H, W, 3]
SizeHW = tuple[int, int]  # height and width in pixels
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
