"""Tiles: they cover, overlap, blend without seams, and a picture that fits is run whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.pipelines.crops import Window
from vitruvian.pipelines.tiles import plan_tiles, run_tiles
from vitruvian.results.base import Picture

Floats = NDArray[np.float32]


def as_map(picture: Picture) -> Floats:
    return picture.astype(np.float32).transpose(2, 0, 1)


@pytest.mark.parametrize(
    ("size_hw", "tile_hw"),
    [((1000, 700), (256, 256)), ((257, 256), (256, 256)), ((90, 3000), (100, 128)), ((5, 7), (2, 3))],
)
def test_tiles_cover_everything_and_overlap_enough(size_hw: tuple[int, int], tile_hw: tuple[int, int]) -> None:
    windows = plan_tiles(size_hw, tile_hw, overlap=0.25)
    count = np.zeros(size_hw, np.int64)
    for window in windows:
        part = window.cut(count[..., None])  # type: ignore[arg-type]
        assert part.shape[:2] == (min(size_hw[0], tile_hw[0]), min(size_hw[1], tile_hw[1]))
        part += 1
    assert count.min() >= 1
    for axis in (0, 1):
        starts = sorted({int(window[axis]) for window in windows})
        if len(starts) > 1 and tile_hw[axis] > 8:
            assert max(np.diff(starts)) <= 0.75 * tile_hw[axis] + 1
            assert np.ptp(np.diff(starts)) <= 1  # evenly spread


def test_a_picture_that_fits_is_one_exact_run() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    assert plan_tiles((60, 80), (64, 96)) == [Window(0, 0, 60, 80)]
    seen: list[Any] = []

    def run(part: Picture) -> Floats:
        seen.append(part)
        return as_map(part) / 7

    pasted = run_tiles(picture, run, tile_hw=(64, 96))
    assert len(seen) == 1
    assert np.array_equal(seen[0], picture)
    np.testing.assert_array_equal(pasted.values, picture.astype(np.float32) / 7)


def test_maps_of_pixels_come_back_whole() -> None:
    picture = np.random.default_rng(1).integers(0, 256, (300, 500, 3), dtype=np.uint8)
    steps: list[tuple[int, int]] = []
    pasted = run_tiles(picture, as_map, tile_hw=(128, 160), progress=lambda done, of: steps.append((done, of)))
    np.testing.assert_allclose(pasted.values, picture, rtol=1e-6, atol=1e-4)
    assert pasted.cover.all()
    assert steps[0] == (1, steps[-1][1])
    assert steps[-1][0] == steps[-1][1] > 4


@pytest.mark.parametrize("overlap", [0.25, 0.5])
def test_no_seam_shows_where_tiles_disagree(overlap: float) -> None:
    """Each tile answers with another constant; neighbouring pixels never differ by more than the overlap allows."""
    answers = iter(np.random.default_rng(2).permutation(1000) / 1000)

    def run(part: Picture) -> Floats:
        return np.full((1, 16, 16), next(answers), np.float32)

    values = run_tiles(np.zeros((400, 600, 3), np.uint8), run, tile_hw=(160, 160), overlap=overlap).values[..., 0]
    steepest = 2.2 / (overlap * 160)
    assert np.abs(np.diff(values, axis=0)).max() < steepest
    assert np.abs(np.diff(values, axis=1)).max() < steepest
    assert np.ptp(values) > 0.3


def test_labels_in_tiles() -> None:
    picture = np.zeros((200, 300, 3), np.uint8)
    picture[50:150, 60:260] = 255

    def run(part: Picture) -> Floats:
        inside = part[..., 0].astype(np.float32) / 255
        return np.stack((1 - inside, inside))

    pasted = run_tiles(picture, run, tile_hw=(96, 96), blend="labels")
    assert pasted.labels is not None
    np.testing.assert_array_equal(pasted.labels, picture[..., 0] // 255)


@pytest.mark.parametrize(
    "options", [{"tile_hw": (1, 64)}, {"tile_hw": (64, 64), "overlap": 0.9}, {"tile_hw": (64, 64), "overlap": -0.1}]
)
def test_impossible_tiles_are_refused(options: Any) -> None:
    with pytest.raises(InputError, match="expected"):
        plan_tiles((100, 100), **options)
