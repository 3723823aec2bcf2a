from __future__ import annotations

import pytest
import torch

from vitruvian.errors import InputError
from vitruvian.layers.padding import OUTSIDE, check_pixel_mask, pictures_of


def masks(*sizes_hw: tuple[int, int], frame_hw: tuple[int, int] = (8, 12)) -> torch.Tensor:
    found = torch.zeros(len(sizes_hw), *frame_hw, dtype=torch.int64)
    for mask, (height, width) in zip(found, sizes_hw, strict=True):
        mask[:height, :width] = 1
    return found


def test_pictures_of_one_size_go_together_and_come_back_to_their_places() -> None:
    pixels = torch.randn(4, 3, 8, 12)
    sizes = [(8, 12), (5, 7), (8, 12), (3, 12)]
    frames = pictures_of(pixels, masks(*sizes))
    assert frames is not None
    assert [p.tolist() for p in frames.places] == [[0, 2], [1], [3]]
    cut = frames.cut(pixels)
    assert [tuple(part.shape) for part in cut] == [(2, 3, 8, 12), (1, 3, 5, 7), (1, 3, 3, 12)]
    whole = frames.maps(cut, (1, 1), OUTSIDE)
    for index, (height, width) in enumerate(sizes):
        assert torch.equal(whole[index, :, :height, :width], pixels[index, :, :height, :width])
        assert (whole[index, :, height:] == OUTSIDE).all()
        assert (whole[index, :, :, width:] == OUTSIDE).all()
    rows = torch.arange(8.0).view(4, 2)
    parts = [rows[places] for places in frames.places]
    assert torch.equal(frames.rows(parts), rows)
    assert torch.equal(frames.all_rows([[part, -part] for part in parts])[1], -rows)


def test_maps_at_a_stride() -> None:
    frames = pictures_of(torch.zeros(2, 3, 8, 12), masks((8, 12), (5, 7)))
    found = frames.all_maps([[torch.ones(1, 2, 2, 3)], [torch.ones(1, 2, 2, 2)]], [(4, 4)])[0]
    assert found.shape == (2, 2, 2, 3)
    assert found[1, 0].tolist() == [[1, 1, 0], [1, 1, 0]]


def test_nothing_to_leave_out() -> None:
    assert pictures_of(torch.zeros(2, 3, 8, 12), masks((8, 12), (8, 12))) is None


def test_bad_masks() -> None:
    with pytest.raises(InputError, match=r"pixel_mask\[1\]: expected some pixels"):
        pictures_of(torch.zeros(2, 3, 8, 12), masks((8, 12), (0, 0)))
    with pytest.raises(InputError, match=r"expected shape \[2, 8, 12\]"):
        check_pixel_mask(torch.zeros(2, 3, 8, 12), masks((8, 12)))
