"""Mattes: straight and premultiplied, over other backgrounds, and as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.results.samples import HW, IMAGE, sample
from vitruvian.errors import InputError
from vitruvian.results import Matte


def half() -> Matte:
    """A red person who covers each pixel by half; nothing in the first column, all in the last."""
    alpha = np.full(HW, 0.5, np.float32)
    alpha[:, 0], alpha[:, -1] = 0, 1
    foreground = alpha[..., None] * np.array([1, 0.2, 0], np.float32)
    return Matte(size_hw=HW, alpha=alpha, foreground=foreground)


def test_straight_and_premultiplied() -> None:
    matte = half()
    np.testing.assert_allclose(matte.premultiplied()[0, 5], [0.5, 0.1, 0, 0.5], atol=1e-6)
    np.testing.assert_allclose(matte.straight()[0, 5], [1, 0.2, 0, 0.5], atol=1e-6)
    np.testing.assert_array_equal(matte.straight()[0, 0], [0, 0, 0, 0])
    np.testing.assert_array_equal(matte.rgba()[0, 5], [255, 51, 0, 128])
    assert matte.straight().dtype == matte.premultiplied().dtype == np.float32


def test_straight_color_stays_a_color() -> None:
    matte = Matte(size_hw=HW, alpha=np.full(HW, 0.1, np.float32), foreground=np.full((*HW, 3), 0.9, np.float32))
    assert matte.straight().max() == 1


@pytest.mark.parametrize("color", [(0, 0, 255), "blue", "#0000ff", "rgb(0, 0, 255)"])
def test_over_a_color(color: object) -> None:
    actual = half().over(color)  # type: ignore[arg-type]
    np.testing.assert_array_equal(actual[3, 0], [0, 0, 255])
    np.testing.assert_allclose(actual[3, 5], [127.5, 25.5, 127.5], atol=1)
    np.testing.assert_array_equal(actual[3, -1], [255, 51, 0])


def test_over_a_image(tmp_path: Path) -> None:
    matte = sample("matte")
    black = np.zeros((*HW, 3), np.uint8)
    expected = np.round(matte.foreground * 255 + (1 - matte.alpha[..., None]) * IMAGE)
    Image.fromarray(IMAGE).save(tmp_path / "a.png")
    for background in (IMAGE, Image.fromarray(IMAGE), tmp_path / "a.png", str(tmp_path / "a.png")):
        np.testing.assert_allclose(matte.over(background), expected, atol=1)
    np.testing.assert_allclose(matte.over(black), np.round(matte.foreground * 255), atol=1)


def test_a_background_of_another_size_covers_and_keeps_its_shape() -> None:
    wide = np.zeros((40, 200, 3), np.uint8)
    wide[:, 70:130] = 255  # of the middle 60 columns all is white
    empty = Matte(size_hw=HW, alpha=np.zeros(HW, np.float32), foreground=np.zeros((*HW, 3), np.float32))
    assert empty.over(wide)[:, 2:-2].min() >= 250


@pytest.mark.parametrize(
    ("background", "message"),
    [
        ((1, 2), "from 0 to 255, got"),
        ((1, 2, 300), "from 0 to 255, got"),
        (np.zeros((4, 4), np.uint8), r"background: .*\[h, w, 3\]"),
        (5, "expected a color or an image, got int"),
        ("nothing.png", "nothing.png"),
    ],
)
def test_backgrounds_that_are_none(background: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        half().over(background)  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["png", "webp"])
def test_files_have_straight_alpha(tmp_path: Path, ending: str) -> None:
    half().save(tmp_path / f"a.{ending}")
    image = Image.open(tmp_path / f"a.{ending}")
    assert image.mode == "RGBA"
    np.testing.assert_array_equal(np.asarray(image), half().rgba())
    ground = Image.new("RGBA", image.size, "blue")
    composite = np.asarray(Image.alpha_composite(ground, image.convert("RGBA")))[..., :3]
    np.testing.assert_allclose(composite.astype(int), half().over("blue"), atol=2)


def test_exr_is_premultiplied_and_linear(tmp_path: Path) -> None:
    exr = pytest.importorskip("OpenEXR")
    half().save(tmp_path / "a.exr")
    with exr.File(str(tmp_path / "a.exr")) as file:
        pixels = file.channels()["RGBA"].pixels
    np.testing.assert_allclose(pixels[3, 5], [0.5, 0.5 * 0.033105, 0, 0.5], atol=1e-5)
    np.testing.assert_array_equal(pixels[3, 0], 0)


def test_no_jpeg_and_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got '\.jpg'\. JPEG has no alpha: choose \.png"):
        half().save(tmp_path / "a.jpg")


def test_summary() -> None:
    assert half().to_dict()["coverage"] == pytest.approx((28 * 0.5 + 1) / 30, abs=1e-5)
