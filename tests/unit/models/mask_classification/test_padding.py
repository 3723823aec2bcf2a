from __future__ import annotations

import pytest
import torch

from vitruvian.errors import InputError
from vitruvian.models.mask_classification.padding import PADDING_LOGIT, check_pixel_mask, group_by_size


def masks(*sizes_hw: tuple[int, int], padded_hw: tuple[int, int] = (8, 12)) -> torch.Tensor:
    masks_ = torch.zeros(len(sizes_hw), *padded_hw, dtype=torch.int64)
    for mask, (height, width) in zip(masks_, sizes_hw, strict=True):
        mask[:height, :width] = 1
    return masks_


def test_images_are_grouped_by_size_and_merged_in_their_order() -> None:
    pixels = torch.randn(4, 3, 8, 12)
    sizes = [(8, 12), (5, 7), (8, 12), (3, 12)]
    groups = group_by_size(pixels, masks(*sizes))
    assert groups is not None
    assert [p.tolist() for p in groups.indices] == [[0, 2], [1], [3]]
    cut = groups.crop(pixels)
    assert [tuple(part.shape) for part in cut] == [(2, 3, 8, 12), (1, 3, 5, 7), (1, 3, 3, 12)]
    (whole,) = groups.merge_maps([[part] for part in cut], [(1, 1)], fill=PADDING_LOGIT)
    for index, (height, width) in enumerate(sizes):
        assert torch.equal(whole[index, :, :height, :width], pixels[index, :, :height, :width])
        assert (whole[index, :, height:] == PADDING_LOGIT).all()
        assert (whole[index, :, :, width:] == PADDING_LOGIT).all()
    rows = torch.arange(8.0).view(4, 2)
    parts = [rows[index] for index in groups.indices]
    merged = groups.merge_rows([[part, -part] for part in parts])
    assert torch.equal(merged[0], rows)
    assert torch.equal(merged[1], -rows)


def test_maps_at_a_stride() -> None:
    groups = group_by_size(torch.zeros(2, 3, 8, 12), masks((8, 12), (5, 7)))
    masks_ = groups.merge_maps([[torch.ones(1, 2, 2, 3)], [torch.ones(1, 2, 2, 2)]], [(4, 4)])[0]
    assert masks_.shape == (2, 2, 2, 3)
    assert masks_[1, 0].tolist() == [[1, 1, 0], [1, 1, 0]]


def test_no_padding_no_groups() -> None:
    assert group_by_size(torch.zeros(2, 3, 8, 12), masks((8, 12), (8, 12))) is None


def test_bad_masks() -> None:
    with pytest.raises(InputError, match=r"pixel_mask\[1\]: expected some pixels"):
        group_by_size(torch.zeros(2, 3, 8, 12), masks((8, 12), (0, 0)))
    with pytest.raises(InputError, match=r"expected shape \[2, 8, 12\]"):
        check_pixel_mask(torch.zeros(2, 3, 8, 12), masks((8, 12)))
