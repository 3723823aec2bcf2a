"""Contact sheets, text and palettes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitruvian.draw import class_colors, contact_sheet
from vitruvian.draw.palettes import identity_colors
from vitruvian.draw.text import draw_text, line_height, text_size, text_width, truncate_text


def plain(height: int, width: int, value: int) -> np.ndarray:
    return np.full((height, width, 3), value, dtype=np.uint8)


def sheet(
    rows: list[list[np.ndarray]], titles: list[str], row_titles: list[str], height: int
) -> tuple[np.ndarray, int]:
    """Return a contact sheet, and the width of its margins for titles."""
    drawn = contact_sheet(rows, titles=titles, row_titles=row_titles, height=height)
    band = round(line_height(text_size((height, height), share=0.028)) * 1.35)
    return drawn, band


def test_a_sheet_aligns_its_columns() -> None:
    drawn, band = sheet([[plain(20, 10, 1), plain(40, 60, 2)], [plain(20, 20, 3)]], ["", ""], ["", ""], 20)
    inside = drawn[band:, band:]
    assert inside.shape == (42, 20 + 2 + 30, 3)
    assert (inside[:20, 5:15] == 1).all()  # centered in its cell
    assert (inside[:20, :5] == 255).all()
    assert (inside[:20, 22:] == 2).all()  # resized
    assert (inside[22:, :20] == 3).all()
    assert (inside[22:, 20:] == 255).all()
    assert (drawn[:band] == 255).all()
    assert (drawn[:, :band] == 255).all()


def test_titles_are_above_their_images_and_truncated() -> None:
    images = [[plain(100, 100, 10), plain(100, 60, 90)]]
    drawn, band = sheet(images, ["one", "a title far too long"], [""], 100)
    above = drawn[:band, band:]
    ink = np.nonzero((above[:, :100] < 100).any(-1))[1]
    assert abs(ink.mean() - 50) < 5
    assert (above[:, 102:] < 100).any()
    assert (drawn[band:, band:][:, :100] == 10).all()


def test_titles_of_rows_are_at_the_left_and_read_upwards() -> None:
    drawn, band = sheet([[plain(120, 50, 1)], [plain(120, 50, 2)]], [""], ["L", ""], 120)
    first, second = drawn[band : band + 120, :band], drawn[band + 122 :, :band]
    assert (second == 255).all()
    rows, columns = np.nonzero(first.max(-1) < 100)
    assert np.ptp(columns) > np.ptp(rows)  # the stem of the L lies flat
    assert (columns[rows == rows.min()] > np.median(columns)).all()  # and its foot points up, at the right
    assert abs(rows.mean() - 60) < 8


def test_one_pixel() -> None:
    image = plain(1, 1, 7)
    image.flags.writeable = False
    assert (contact_sheet([[image, image]], titles=["a", "b"], row_titles=["c"], height=1)[-1, -1] == 7).all()


def test_text_is_measured_as_it_is_written() -> None:
    image = Image.new("RGB", (300, 60), "white")
    draw_text(image, "Vitruvian gj", left_top=(20, 10), size=24, color=(0, 0, 0))
    canvas = np.asarray(image)
    rows, columns = np.nonzero(canvas[..., 0] < 200)
    assert 20 <= columns.min() <= 26
    assert columns.max() <= 20 + text_width("Vitruvian gj", 24)
    assert columns.max() >= 20 + text_width("Vitruvian gj", 24) - 6
    assert rows.min() >= 10
    assert rows.max() < 10 + line_height(24)
    assert ((canvas > 20) & (canvas < 235)).any()  # smooth


def test_shortened() -> None:
    assert truncate_text("two\n lines", 12, 500) == "two lines"
    cut = truncate_text("a rather long sentence", 12, 60)
    assert cut.endswith("…")
    assert text_width(cut, 12) <= 60
    assert truncate_text("word", 12, 1) == ""


def test_letters_are_never_too_small() -> None:
    assert text_size((8, 8)) == 10
    assert text_size((2000, 2000)) > text_size((500, 500)) > 10
    assert text_size((2000, 2000), count=100) < text_size((2000, 2000))


def perceived(rgb: np.ndarray) -> np.ndarray:
    """Convert RGB [N, 3] to OKLab, for normal vision and for deuteranopia: [N, 6]."""
    linear = (rgb / 255) ** 2.2
    blind = np.stack([linear @ (0.29, 0.71, 0.0), linear @ (0.29, 0.71, 0.0), linear @ (-0.02, 0.02, 1.0)], -1)
    return np.concatenate([oklab(linear), oklab(blind.clip(0, 1))], -1)


def oklab(linear: np.ndarray) -> np.ndarray:
    cones = linear @ np.array(
        [[0.4122214708, 0.2119034982, 0.0883024619],
         [0.5363325363, 0.6806995451, 0.2817188376],
         [0.0514459929, 0.1073969566, 0.6299787005]]
    )  # fmt: skip
    lab: np.ndarray = np.cbrt(cones) @ np.array(
        [[0.2104542553, 1.9779984951, 0.0259040371],
         [0.7936177850, -2.4285922050, 0.7827717662],
         [-0.0040720468, 0.4505937099, -0.8086757660]]
    )  # fmt: skip
    return lab


@pytest.mark.parametrize("count", [0, 1, 8, 9, 64, 133, 300])
def test_colors_are_distinct_and_the_same_for_every_count(count: int) -> None:
    colors = class_colors(count)
    assert colors.shape == (count, 3)
    assert colors.dtype == np.uint8
    assert len(np.unique(colors, axis=0)) == count
    np.testing.assert_array_equal(colors, class_colors(count + 50)[:count])


@pytest.mark.parametrize(("count", "gap"), [(8, 0.15), (20, 0.12)])
def test_the_first_colors_are_far_apart_for_all_eyes_together(count: int, gap: float) -> None:
    lab = perceived(class_colors(count).astype(float))
    normal, blind = (np.linalg.norm(eyes[:, None] - eyes[None], axis=-1) for eyes in (lab[:, :3], lab[:, 3:]))
    others = ~np.eye(count, dtype=bool)
    assert normal[others].min() > gap
    assert blind[others].min() > gap / 3


def test_more_colors_than_there_are_start_again() -> None:
    many = class_colors(5000)
    assert many.shape == (5000, 3)
    assert len(np.unique(many, axis=0)) > 1500


def test_identity_colors_identities() -> None:
    np.testing.assert_array_equal(identity_colors([3, 3 + 64, 0]), class_colors(64)[[3, 3, 0]])
    assert identity_colors([]).shape == (0, 3)
    assert identity_colors([-1]).shape == (1, 3)
