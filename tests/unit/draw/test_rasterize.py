"""Lines and dots: exact colors, smooth edges, order, and nothing outside of the image."""

from __future__ import annotations

import numpy as np
import pytest

from vitruvian.draw import rasterize as module
from vitruvian.draw.rasterize import Strokes

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def black(height: int, width: int) -> np.ndarray:
    return np.zeros((height, width, 3), dtype=np.uint8)


def test_a_dot_is_centered_on_its_pixel_and_symmetric() -> None:
    canvas, strokes = black(21, 21), Strokes()
    strokes.dot((10, 10), radius=5.2, color=RED)
    strokes.paint(canvas)
    red = canvas[..., 0]
    assert red[10, 10] == 255
    assert (red == red[::-1]).all()
    assert (red == red.T).all()
    assert red[10, 10:17].tolist() == [255] * 5 + [178, 0]  # seven tenths of the sixth pixel


@pytest.mark.parametrize("x", [-40, 70])
def test_strokes_beside_the_image_leave_it_alone(x: int) -> None:
    canvas, strokes = black(21, 21), Strokes()
    strokes.dot((x, 10), radius=3, color=RED)
    strokes.paint(canvas)
    assert canvas.max() == 0
    strokes.line((x, 2), (x, 18), radius=2, color=RED)
    strokes.paint(canvas)
    assert canvas.max() == 0


def test_the_area_of_a_dot_is_that_of_a_disc() -> None:
    canvas, strokes = black(41, 41), Strokes()
    strokes.dot((20.3, 19.6), radius=9.0, color=RED)
    strokes.paint(canvas)
    assert canvas[..., 0].sum() / 255 == pytest.approx(np.pi * 81, rel=0.01)


def test_a_slanted_line_has_soft_edges_and_its_true_area() -> None:
    canvas, strokes = black(60, 60), Strokes()
    strokes.line((10, 12), (48, 41), radius=2.0, color=RED)
    strokes.paint(canvas)
    red = canvas[..., 0]
    length = np.hypot(38, 29)
    assert red.sum() / 255 == pytest.approx(length * 4 + np.pi * 4, rel=0.02)
    between = ((red > 0) & (red < 255)).sum()
    assert between > length  # both edges


@pytest.mark.parametrize(("start", "end"), [((5, 30), (50, 30)), ((30, 5), (30, 50)), ((50, 30), (5, 30))])
def test_straight_lines_cover_whole_rows(start: tuple[int, int], end: tuple[int, int]) -> None:
    canvas, strokes = black(60, 60), Strokes()
    strokes.line(start, end, radius=1.5, color=GREEN)
    strokes.paint(canvas)
    green = canvas[..., 1]
    across = green[:, 30] if start[1] == end[1] else green[30]
    assert across[27:34].tolist() == [0, 0, 255, 255, 255, 0, 0]


def test_hair_lines_fade_instead_of_breaking_up() -> None:
    canvas, strokes = black(20, 40), Strokes()
    strokes.line((2, 10), (37, 10), radius=0.2, color=RED)
    strokes.paint(canvas)
    assert set(canvas[10, 4:36, 0].tolist()) == {102}  # two fifths of a pixel


@pytest.mark.parametrize("large", [1, 10**9])
def test_later_strokes_lie_on_top(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE_STROKE_PIXELS", large)
    canvas, strokes = black(30, 30), Strokes()
    strokes.dot((15, 15), radius=10, color=RED)
    strokes.dot((15, 15), radius=6, color=GREEN, opacity=0.5)
    strokes.dot((15, 15), radius=2, color=BLUE)
    strokes.paint(canvas)
    assert canvas[15, 15].tolist() == [0, 0, 255]
    assert canvas[15, 19].tolist() in ([128, 128, 0], [127, 127, 0], [128, 127, 0], [127, 128, 0])
    assert canvas[15, 23].tolist() == [255, 0, 0]


def test_large_strokes_alone_and_together_come_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    images = []
    rows = [(random.uniform(-10, 90, 2), random.uniform(-10, 90, 2), random.uniform(0.3, 9)) for _ in range(40)]
    for large, most in ((1, 2**20), (10**9, 2**20), (10**9, 500), (100, 900)):
        monkeypatch.setattr(module, "_LARGE_STROKE_PIXELS", large)
        monkeypatch.setattr(module, "_MAX_PIXELS", most)
        canvas, strokes = black(80, 80), Strokes()
        for i, (start, end, radius) in enumerate(rows):
            strokes.line(start, end, radius=radius, color=(6 * i, 255 - 6 * i, 90), opacity=0.7)
        strokes.paint(canvas)
        images.append(canvas.astype(int))
    assert images[0].any()
    for other in images[1:]:  # rounding in between may move a level
        assert np.abs(other - images[0]).max() <= 3


def test_what_lies_outside_is_cut_off() -> None:
    canvas, strokes = black(10, 10), Strokes()
    strokes.dot((-50, 5), radius=3, color=RED)
    strokes.dot((5, 400), radius=3, color=RED)
    strokes.dot((-1, 5), radius=3, color=GREEN)
    strokes.line((-30, 8), (30, 8), radius=1, color=BLUE)
    strokes.paint(canvas)
    assert not canvas[..., 0].any()
    assert canvas[5, 0, 1] == 255
    assert canvas[8, :, 2].min() == 255
    assert not canvas[:, 9, 1].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_ends_that_are_nowhere_are_left_out(bad: float) -> None:
    canvas, strokes = black(10, 10), Strokes()
    strokes.line((5, 5), (bad, 5), radius=2, color=RED)
    strokes.dot((bad, bad), radius=2, color=RED)
    strokes.paint(canvas)
    assert not canvas.any()


def test_nothing_to_paint() -> None:
    canvas = black(4, 4)
    Strokes().paint(canvas)
    strokes = Strokes()
    strokes.dot((2, 2), radius=0, color=RED)
    strokes.dot((2, 2), radius=2, color=RED, opacity=0)
    strokes.paint(canvas)
    assert not canvas.any()


def test_one_pixel() -> None:
    canvas, strokes = black(1, 1), Strokes()
    strokes.line((-3, -3), (3, 3), radius=4, color=(1, 2, 3))
    strokes.paint(canvas)
    assert canvas.ravel().tolist() == [1, 2, 3]
