"""Regions: crops of people and tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vitruvian.errors import InputError
from vitruvian.pipelines.regions import Region, crop_regions, plan_tiles
from vitruvian.results.base import People


def test_no_crops_without_people() -> None:
    nobody = People(boxes_xyxy=np.zeros((0, 4), np.float32), scores=np.zeros(0, np.float32), detector="given")
    assert crop_regions(nobody, (64, 48)) == []


class TestTiles:
    @pytest.mark.parametrize(
        ("size_hw", "tile_hw"),
        [((1000, 700), (256, 256)), ((257, 256), (256, 256)), ((90, 3000), (100, 128)), ((5, 7), (2, 3))],
    )
    def test_they_cover_everything_and_overlap_enough(self, size_hw: tuple[int, int], tile_hw: tuple[int, int]) -> None:
        tiles = plan_tiles(size_hw, tile_hw, overlap=0.25)
        count = torch.zeros(1, *size_hw)
        for tile in tiles:
            part = tile.crop(count)
            assert part.shape[1:] == (min(size_hw[0], tile_hw[0]), min(size_hw[1], tile_hw[1]))
            part += 1
        assert count.min() >= 1
        for axis in (0, 1):
            starts = sorted({int(tile[axis]) for tile in tiles})
            if len(starts) > 1 and tile_hw[axis] > 8:
                assert max(np.diff(starts)) <= 0.75 * tile_hw[axis] + 1
                assert np.ptp(np.diff(starts)) <= 1  # evenly spaced

    def test_an_image_that_is_not_larger_is_one_tile(self) -> None:
        assert plan_tiles((60, 80), (64, 96)) == [Region(0, 0, 60, 80)]

    @pytest.mark.parametrize(
        "options", [{"tile_hw": (1, 64)}, {"tile_hw": (64, 64), "overlap": 0.9}, {"tile_hw": (64, 64), "overlap": -0.1}]
    )
    def test_impossible_ones_are_refused(self, options: Any) -> None:
        with pytest.raises(InputError, match="expected"):
            plan_tiles((100, 100), **options)
