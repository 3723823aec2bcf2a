"""Images, read back by Pillow and pypng."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitruvian.errors import InputError
from vitruvian.files.images import write_image, write_label_png, write_png16

RANDOM = np.random.default_rng(0)


def noise(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    return RANDOM.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("ending", ["png", "jpg", "webp"])
def test_images(tmp_path: Path, ending: str) -> None:
    ramp = np.stack(np.meshgrid(np.arange(40) * 6, np.arange(30) * 8), axis=-1).astype(np.uint8)
    image = np.concatenate([ramp, np.full((30, 40, 1), 90, np.uint8)], axis=-1)
    write_image(tmp_path / f"a.{ending}", image)
    with Image.open(tmp_path / f"a.{ending}") as written:
        assert written.format == {"png": "PNG", "jpg": "JPEG", "webp": "WEBP"}[ending]
        assert written.mode == "RGB"
        actual = np.asarray(written).astype(int)
    assert np.abs(actual - image).max() <= (0 if ending == "png" else 16)
    assert np.abs(actual - image).mean() < 2


@pytest.mark.parametrize("ending", ["png", "webp"])
def test_straight_rgba_keeps_every_value(tmp_path: Path, ending: str) -> None:
    image = noise(13, 11, 4)
    image[:4, ..., 3] = 0  # the color under full transparency stays too
    write_image(tmp_path / f"a.{ending}", image)
    with Image.open(tmp_path / f"a.{ending}") as written:
        assert written.mode == "RGBA"
        np.testing.assert_array_equal(np.asarray(written), image)


@pytest.mark.parametrize("count", [2, 5, 29, 256])
def test_label_maps_keep_numbers_and_show_colors(tmp_path: Path, count: int) -> None:
    labels, colors = RANDOM.integers(0, count, (17, 19)).astype(np.uint8), noise(count, 3)
    write_label_png(tmp_path / "a.png", labels, colors)
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == "P"
        np.testing.assert_array_equal(np.asarray(image), labels)
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), colors[labels])


@pytest.mark.parametrize(("shape", "mode"), [((5, 7), "I;16"), ((1, 1), "I;16")])
def test_gray_of_16_bits_in_pillow(tmp_path: Path, shape: tuple[int, ...], mode: str) -> None:
    image = noise(*shape, dtype=np.uint16)
    write_png16(tmp_path / "a.png", image)
    with Image.open(tmp_path / "a.png") as written:
        assert written.mode == mode
        np.testing.assert_array_equal(np.asarray(written), image)


@pytest.mark.parametrize("channels", [1, 3])
def test_16_bits_in_pypng(tmp_path: Path, channels: int) -> None:
    png = pytest.importorskip("png")
    image = noise(23, 31, channels, dtype=np.uint16)
    write_png16(tmp_path / "a.png", image[..., 0] if channels == 1 else image)
    width, height, rows, about = png.Reader(str(tmp_path / "a.png")).read()
    assert (width, height, about["bitdepth"], about["planes"]) == (31, 23, 16, channels)
    np.testing.assert_array_equal(np.array([list(row) for row in rows]).reshape(image.shape), image)


@pytest.mark.parametrize(
    "image", [np.zeros((2, 2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((2, 2), np.uint8), np.zeros((0, 2, 3), "u1")]
)
def test_what_is_not_an_image(tmp_path: Path, image: np.ndarray) -> None:
    with pytest.raises(InputError, match=rf"expected uint8 \[H, W, 3\] or \[H, W, 4\], got {image.dtype}"):
        write_image(tmp_path / "a.png", image)
    assert list(tmp_path.iterdir()) == []


def test_endings_and_sizes_that_do_not_fit(tmp_path: Path) -> None:
    image = np.zeros((2, 2, 3), np.uint8)
    with pytest.raises(InputError, match=r"expected an extension \.png, \.jpg"):
        write_image(tmp_path / "a.gif", image)
    with pytest.raises(InputError, match=r"expected an extension \.png, \.webp, got '\.jpg'"):
        write_image(tmp_path / "a.jpg", np.zeros((2, 2, 4), np.uint8))
    with pytest.raises(InputError, match="at most 16383 pixels a side for WEBP, got 20000"):
        write_image(tmp_path / "a.webp", np.zeros((1, 20000, 3), np.uint8))
