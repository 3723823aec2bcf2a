"""Outlines of masks as polygons."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from vitruvian.images.polygons import _signed_area, mask_polygons


def filled(polygons: list[np.ndarray], size_hw: tuple[int, int]) -> np.ndarray:
    """Pixels whose centers are inside of an odd number of polygons."""
    scale = 8
    total = np.zeros(size_hw, int)
    for polygon in polygons:
        image = Image.new("L", (size_hw[1] * scale, size_hw[0] * scale))
        ImageDraw.Draw(image).polygon([(x * scale - 0.5, y * scale - 0.5) for x, y in polygon.tolist()], fill=1)
        total += np.asarray(image)[scale // 2 :: scale, scale // 2 :: scale]
    return total % 2 == 1


@pytest.mark.parametrize("seed", range(6))
def test_any_mask_and_back(seed: int) -> None:
    generator = np.random.default_rng(seed)
    mask = generator.random((9, 12)) < 0.55
    polygons = mask_polygons(mask, tolerance=0, holes=True)
    assert sum(_signed_area(one) for one in polygons) == mask.sum()
    np.testing.assert_array_equal(filled(polygons, mask.shape), mask)


def test_a_rectangle_has_four_corners() -> None:
    mask = np.zeros((10, 12), bool)
    mask[2:6, 3:11] = True
    (polygon,) = mask_polygons(mask)
    assert {tuple(point) for point in polygon.tolist()} == {(3, 2), (11, 2), (11, 6), (3, 6)}
    assert _signed_area(polygon) == 32


def test_parts_by_size_and_corners_that_touch() -> None:
    mask = np.zeros((8, 8), bool)
    mask[:2, :2], mask[2:6, 2:6], mask[3, 3] = True, True, False
    assert [_signed_area(one) for one in mask_polygons(mask, tolerance=0)] == [16, 4]
    assert [_signed_area(one) for one in mask_polygons(mask, tolerance=0, holes=True)] == [16, 4, -1]
    assert mask_polygons(np.zeros((3, 3), bool)) == []


def test_a_disk_needs_few_points() -> None:
    rows, columns = np.mgrid[:80, :80]
    disk = (rows - 40) ** 2 + (columns - 40) ** 2 < 30**2
    (exact,), (simple,) = mask_polygons(disk, tolerance=0), mask_polygons(disk)
    assert len(simple) < len(exact) / 4
    assert (filled([simple], disk.shape) ^ disk).sum() < 0.04 * disk.sum()
