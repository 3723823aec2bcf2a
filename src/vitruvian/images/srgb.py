"""Convert between sRGB values, as image files hold them, and linear light."""

from __future__ import annotations

from torch import Tensor, where


def srgb_to_linear(values: Tensor) -> Tensor:
    """Convert sRGB values of any shape, 0 to 1, to linear light."""
    return where(values <= 0.04045, values / 12.92, ((values.clamp_min(0.0) + 0.055) / 1.055) ** 2.4)


def linear_to_srgb(values: Tensor) -> Tensor:
    """Convert linear light of any shape to sRGB values."""
    return where(values <= 0.0031308, values * 12.92, 1.055 * values.clamp_min(1e-8) ** (1 / 2.4) - 0.055)
