"""Bilinear interpolation of maps."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vitruvian.ops.interpolate import bilinear


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("shape", [(6, 9), (2, 6, 9), (3, 2, 6, 9)], ids=str)
def test_any_number_of_dimensions(shape: tuple[int, ...], antialias: bool) -> None:
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for size_hw in ((4, 5), (13, 20)):
        resized = bilinear(maps, size_hw, antialias=antialias)
        planes = maps.reshape(1, -1, 6, 9)
        wanted = F.interpolate(planes, size=size_hw, mode="bilinear", antialias=antialias)
        assert torch.equal(resized, wanted.reshape(*shape[:-2], *size_hw))


def test_maps_of_the_size_are_returned_themselves() -> None:
    maps = torch.randn(2, 6, 9)
    assert bilinear(maps, (6, 9)) is maps
    assert bilinear(maps, (9, 6)).shape == (2, 9, 6)


def test_pixel_centers_are_aligned() -> None:
    assert bilinear(torch.tensor([[0.0, 1.0]]), (1, 4)).tolist() == [[0.0, 0.25, 0.75, 1.0]]
