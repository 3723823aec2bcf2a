"""sRGB values ⇄ linear light."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def srgb_to_linear(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turn sRGB values of any shape, 0 to 1, into linear light, 0 to 1."""
    held = np.clip(values, 0, 1)
    return np.where(held <= 0.04045, held / 12.92, ((held + 0.055) / 1.055) ** 2.4).astype(np.float32)
