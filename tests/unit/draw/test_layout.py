"""Sheets of images, text and palettes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vitruvian.draw import class_colours, sheet
from vitruvian.draw.palettes import _perceived, colours_of
from vitruvian.draw.text import line_height, shortened, text_size, text_width, write
from vitruvian.errors import ImageError, InputError


def side_by_side(images: list[np.ndarray], **options: Any) -> np.ndarray:
    return sheet([images], **options)


def plain(height: int, width: int, value: int) -> np.ndarray:
    return np.full((height, width, 3), value, dtype=np.uint8)


def test_side_by_side_at_one_height() -> None:
    drawn = side_by_side([plain(40, 30, 10), plain(20, 30, 90)], gap=4)
    assert drawn.shape == (40, 30 + 4 + 60, 3)
    assert (drawn[:, :30] == 10).all()
    assert (drawn[:, 30:34] == 255).all()
    assert (drawn[:, 34:] == 90).all()
    assert side_by_side([plain(40, 30, 10)], height=80).shape == (80, 60, 3)


def test_titles_stand_above_their_images() -> None:
    drawn = side_by_side([plain(100, 100, 10), plain(100, 100, 90)], titles=["one", ""], gap=10)
    band = len(drawn) - 100
    assert band >= 10
    assert (drawn[:band, :100] < 100).any()
    assert (drawn[:band, 100:] == 255).all()
    assert (drawn[band:, :100] == 10).all()
    ink = np.nonzero((drawn[:band, :100] < 100).any(-1))[1]
    assert abs(ink.mean() - 50) < 5


def test_long_titles_are_cut_to_their_column() -> None:
    drawn = side_by_side([plain(100, 60, 10), plain(100, 60, 90)], titles=["a title far too long", ""], gap=10)
    band = len(drawn) - 100
    assert (drawn[:band, 60:] == 255).all()
    assert (drawn[:band, :60] < 100).any()


def test_a_sheet_lines_up_its_columns() -> None:
    drawn = sheet([[plain(20, 10, 1), plain(20, 30, 2)], [plain(20, 20, 3)]], gap=2)
    assert drawn.shape == (42, 20 + 2 + 30, 3)
    assert (drawn[:20, 5:15] == 1).all()  # centred in its cell
    assert (drawn[:20, :5] == 255).all()
    assert (drawn[:20, 22:] == 2).all()
    assert (drawn[22:, :20] == 3).all()
    assert (drawn[22:, 20:] == 255).all()


def test_titles_of_rows_stand_at_the_left_and_read_upwards() -> None:
    drawn = sheet([[plain(120, 50, 1)], [plain(120, 50, 2)]], row_titles=["L", ""], gap=0)
    band = drawn.shape[1] - 50
    assert (drawn[:120, :band] < 100).any()
    assert (drawn[120:, :band] == 255).all()
    rows, columns = np.nonzero(drawn[:120, :band].max(-1) < 100)
    assert np.ptp(columns) > np.ptp(rows)  # the stem of the L lies flat
    assert (columns[rows == rows.min()] > np.median(columns)).all()  # and its foot points up, at the right
    assert abs(rows.mean() - 60) < 8


def test_one_pixel_and_no_change_of_what_comes_in() -> None:
    image = plain(1, 1, 7)
    image.flags.writeable = False
    assert (side_by_side([image, image], titles=["a", "b"])[-1, 0] == 7).all()
    assert side_by_side([image], height=1) is not image


def test_bad_sheets_are_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        side_by_side([])
    with pytest.raises(InputError, match="at least one"):
        sheet([[], []])
    with pytest.raises(InputError, match="titles: expected 1, got 2"):
        side_by_side([plain(4, 4, 1)], titles=["a", "b"])
    with pytest.raises(InputError, match="row_titles"):
        sheet([[plain(4, 4, 1)]], row_titles=[])
    with pytest.raises(InputError, match="height"):
        side_by_side([plain(4, 4, 1)], height=0)
    with pytest.raises(ImageError, match="gray"):
        side_by_side([plain(4, 4, 1)[..., 0]])


def test_text_is_measured_as_it_is_written() -> None:
    canvas = plain(60, 300, 255)
    write(canvas, "Vitruvian gj", left_top=(20, 10), size=24)
    rows, columns = np.nonzero(canvas[..., 0] < 200)
    assert 20 <= columns.min() <= 26
    assert columns.max() <= 20 + text_width("Vitruvian gj", 24)
    assert columns.max() >= 20 + text_width("Vitruvian gj", 24) - 6
    assert rows.min() >= 10
    assert rows.max() < 10 + line_height(24)
    assert ((canvas > 20) & (canvas < 235)).any()  # smooth


@pytest.mark.parametrize("place", [(-30, 5), (90, 5), (10, -9), (10, 55), (500, 500), (-500, -500)])
def test_text_over_the_edge_is_cut(place: tuple[int, int]) -> None:
    canvas, large = plain(60, 100, 255), plain(1200, 1300, 255)
    write(canvas, "people", left_top=place, size=20, colour=(10, 20, 30))
    write(large, "people", left_top=(place[0] + 600, place[1] + 600), size=20, colour=(10, 20, 30))
    assert (large < 50).any()
    np.testing.assert_array_equal(canvas, large[600:660, 600:700])


def test_shortened() -> None:
    assert shortened("two\n lines", 12, 500) == "two lines"
    cut = shortened("a rather long sentence", 12, 60)
    assert cut.endswith("…")
    assert text_width(cut, 12) <= 60
    assert shortened("word", 12, 1) == ""


def test_letters_are_never_too_small() -> None:
    assert text_size((8, 8)) == 10
    assert text_size((2000, 2000)) > text_size((500, 500)) > 10
    assert text_size((2000, 2000), count=100) < text_size((2000, 2000))


@pytest.mark.parametrize("count", [0, 1, 8, 9, 64, 133, 300])
def test_colours_are_distinct_and_the_same_for_every_count(count: int) -> None:
    colours = class_colours(count)
    assert colours.shape == (count, 3)
    assert colours.dtype == np.uint8
    assert len(np.unique(colours, axis=0)) == count
    np.testing.assert_array_equal(colours, class_colours(count + 50)[:count])


@pytest.mark.parametrize(("count", "gap"), [(8, 0.15), (20, 0.12)])
def test_the_first_colours_are_far_apart_for_all_eyes_together(count: int, gap: float) -> None:
    seen = _perceived(class_colours(count).astype(float))
    normal, blind = (np.linalg.norm(eyes[:, None] - eyes[None], axis=-1) for eyes in (seen[:, :3], seen[:, 3:]))
    others = ~np.eye(count, dtype=bool)
    assert normal[others].min() > gap
    assert blind[others].min() > gap / 3


def test_more_colours_than_there_are_start_again() -> None:
    many = class_colours(5000)
    assert many.shape == (5000, 3)
    assert len(np.unique(many, axis=0)) > 1500


def test_colours_of_identities() -> None:
    np.testing.assert_array_equal(colours_of([3, 3 + 64, 0]), class_colours(64)[[3, 3, 0]])
    assert colours_of([]).shape == (0, 3)
    assert colours_of([-1]).shape == (1, 3)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(InputError, match="count"):
        class_colours(-1)
