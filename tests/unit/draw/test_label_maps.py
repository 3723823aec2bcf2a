"""Label maps: mixed colors, borders, legends of what occurs."""

from __future__ import annotations

import numpy as np
import pytest

from vitruvian.draw import draw_labels
from vitruvian.draw.legend import add_legend
from vitruvian.draw.segmentation import _borders, _inner_point
from vitruvian.errors import InputError
from vitruvian.human import PART_COLORS, PART_NAMES

COLORS = np.array([[0, 0, 0], [255, 0, 0], [0, 200, 0], [0, 0, 255]], dtype=np.uint8)
NAMES = {0: "nothing", 1: "red", 2: "green", 3: "blue"}


def halves(height: int = 60, width: int = 80) -> np.ndarray:
    labels = np.zeros((height, width), dtype=np.uint8)
    labels[:, width // 2 :] = 2
    return labels


def gray(height: int = 60, width: int = 80, value: int = 100) -> np.ndarray:
    return np.full((height, width, 3), value, dtype=np.uint8)


def test_colors_mix_by_opacity_and_background_stays() -> None:
    drawn = draw_labels(gray(), halves(), COLORS, opacity=0.5, outline=False)
    assert drawn[30, 10].tolist() == [100, 100, 100]
    assert np.abs(drawn[30, 70].astype(int) - [50, 150, 50]).max() <= 1
    full = draw_labels(gray(), halves(), COLORS, opacity=1.0, outline=False)
    assert full[30, 70].tolist() == [0, 200, 0]
    np.testing.assert_array_equal(draw_labels(gray(), halves(), COLORS, opacity=0.0, outline=False), gray())


def test_without_an_image_the_labels_alone() -> None:
    drawn = draw_labels(None, halves(), COLORS, outline=False)
    assert drawn[30, 10].tolist() == [0, 0, 0]
    assert drawn[30, 70].tolist() == [0, 200, 0]


def test_any_label_can_be_the_background_or_none() -> None:
    drawn = draw_labels(gray(), halves(), COLORS + np.uint8(9), opacity=1, outline=False, background=None)
    assert drawn[30, 10].tolist() == [9, 9, 9]
    drawn = draw_labels(gray(), halves(), COLORS + np.uint8(9), opacity=1, outline=False, background=2)
    assert drawn[30, 70].tolist() == [100, 100, 100]
    assert drawn[30, 10].tolist() == [9, 9, 9]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.uint16])
def test_every_kind_of_number(dtype: type) -> None:
    expected = draw_labels(gray(), halves(), COLORS)
    np.testing.assert_array_equal(draw_labels(gray(), halves().astype(dtype), COLORS), expected)


def test_more_than_256_classes() -> None:
    labels = np.arange(40 * 40).reshape(40, 40) % 700
    colors = np.stack([np.arange(700) % 256, np.arange(700) // 256, np.full(700, 7)], -1).astype(np.uint8)
    drawn = draw_labels(None, labels, colors, outline=False, background=None)
    assert drawn[10, 15].tolist() == [(10 * 40 + 15) % 256, (10 * 40 + 15) // 256, 7]


def test_the_outline_lies_on_the_border_only() -> None:
    drawn = draw_labels(gray(), halves(), COLORS, opacity=0.5)
    plain = draw_labels(gray(), halves(), COLORS, opacity=0.5, outline=False)
    differs = np.flatnonzero((drawn != plain).any(-1).any(0))
    assert 37 <= differs.min() <= 39
    assert differs.max() <= 42
    assert drawn[30, 39].min() > 160


def test_outlines_grow_with_the_image() -> None:
    def width(side: int) -> int:
        labels = halves(side, side)
        with_line = draw_labels(None, labels, COLORS)
        return int((with_line != draw_labels(None, labels, COLORS, outline=False)).any(-1)[side // 2].sum())

    assert width(60) < width(1500)


def test_an_empty_map_changes_nothing() -> None:
    labels = np.zeros((60, 80), dtype=np.uint8)
    np.testing.assert_array_equal(draw_labels(gray(), labels, COLORS, names=NAMES), gray())


def test_one_pixel() -> None:
    drawn = draw_labels(gray(1, 1), np.array([[1]]), COLORS, opacity=1.0)
    assert drawn.tolist() == [[[255, 0, 0]]]


def swatches(panel: np.ndarray) -> set[tuple[int, ...]]:
    codes = np.unique(panel.astype(np.int64) @ (65536, 256, 1))
    return {(code >> 16, code >> 8 & 255, code & 255) for code in codes.tolist()}


def test_the_legend_shows_only_what_occurs() -> None:
    drawn = draw_labels(gray(200, 200), halves(200, 200), COLORS, names=NAMES)
    panel = drawn[:, 200:]
    assert drawn.shape[0] == 200
    assert (0, 200, 0) in swatches(panel)
    assert not {(255, 0, 0), (0, 0, 255)} & swatches(panel)
    np.testing.assert_array_equal(
        drawn[:, :200], draw_labels(gray(200, 200), halves(200, 200), COLORS, names=NAMES, legend=False)
    )


@pytest.mark.parametrize("size_hw", [(1, 1), (30, 30), (100, 900), (900, 100), (1200, 1600)])
def test_every_name_is_readable_at_any_size(size_hw: tuple[int, int]) -> None:
    image = np.full((*size_hw, 3), 100, dtype=np.uint8)
    drawn = add_legend(image, PART_NAMES, np.array(PART_COLORS))
    assert set(PART_COLORS) <= swatches(drawn)
    np.testing.assert_array_equal(drawn[: size_hw[0], : size_hw[1]], image)
    assert max(drawn.shape) < max(size_hw) + 1000
    ink = (drawn[..., :].max(-1) < 60)[:, size_hw[1] :]
    assert ink.sum() > 29 * 60  # letters of at least ten pixels


def test_nothing_in_the_legend() -> None:
    np.testing.assert_array_equal(add_legend(gray(), [], COLORS[:0]), gray())


def test_nothing_that_comes_in_changes() -> None:
    image, labels = gray(), halves()
    for array in (image, labels):
        array.flags.writeable = False
    draw_labels(image, labels, COLORS, names=NAMES)
    assert (image == 100).all()
    np.testing.assert_array_equal(labels, halves())


def test_an_opacity_over_1_is_an_error() -> None:
    with pytest.raises(InputError, match="opacity"):
        draw_labels(gray(), halves(), COLORS, opacity=1.5)


def test_borders() -> None:
    labels = np.array([[0, 0, 1], [0, 0, 1]])
    assert _borders(labels).tolist() == [[False, True, True]] * 2
    assert _borders(labels, both=False).tolist() == [[False, True, False]] * 2
    assert not _borders(np.zeros((1, 1))).any()


@pytest.mark.parametrize("scale", [1, 9])
def test_the_inner_point_lies_deep_inside(scale: int) -> None:
    mask = np.zeros((50, 60), dtype=bool)
    mask[5:45, 5:10] = True  # a thin handle
    mask[25:45, 5:35] = True  # and a broad body
    x, y = _inner_point(mask.repeat(scale, 0).repeat(scale, 1))
    assert 12 <= x / scale <= 28
    assert 30 <= y / scale <= 40


def test_the_inner_point_of_almost_nothing() -> None:
    assert _inner_point(np.ones((1, 1), dtype=bool)) == (0.0, 0.0)
    speck = np.zeros((300, 300), dtype=bool)
    speck[200, 100] = True
    x, y = _inner_point(speck)
    assert abs(x - 100) < 8
    assert abs(y - 200) < 8
