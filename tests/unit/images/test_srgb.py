"""sRGB values and linear light."""

from __future__ import annotations

import pytest
import torch

from vitruvian.images.srgb import linear_to_srgb, srgb_to_linear


def test_srgb_to_linear_and_back() -> None:
    values = torch.linspace(0, 1, 101)
    assert torch.allclose(srgb_to_linear(linear_to_srgb(values)), values, atol=1e-5)
    assert srgb_to_linear(torch.tensor(0.5)).item() == pytest.approx(0.214, abs=1e-3)
