"""JPEG files that simplejpeg decodes have the pixels that Pillow decodes; the others go to Pillow."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitruvian.errors import ImageError
from vitruvian.images import jpeg, load_image
from vitruvian.images.jpeg import decode_jpeg
from vitruvian.images.read import load_rgb

pytest.importorskip("simplejpeg")


def photo(height: int = 61, width: int = 83, mode: str = "RGB") -> Image.Image:
    """Return a smooth image with noise."""
    generator = np.random.default_rng(height * width)
    small = Image.fromarray(generator.integers(0, 256, (5, 7, 3), np.uint8))
    pixels = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = (pixels + generator.integers(-9, 9, pixels.shape)).clip(0, 255).astype(np.uint8)
    return Image.fromarray(noisy).convert(mode)


def jpeg_bytes(image: Image.Image, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", **options)
    return stream.getvalue()


def fast(data: bytes) -> np.ndarray[Any, Any] | None:
    """Return what simplejpeg decodes, None for what is left to Pillow."""
    stream = io.BytesIO(data)
    return decode_jpeg(Image.open(stream), stream)


@pytest.fixture
def without_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    jpeg._decoder.cache_clear()
    yield
    jpeg._decoder.cache_clear()


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 95},
        {"quality": 30, "subsampling": 0},
        {"quality": 75, "subsampling": 1},
        {"quality": 75, "subsampling": 2},
        {"progressive": True, "subsampling": 2},
        {"keep_rgb": True, "quality": 80},
        {"restart_marker_blocks": 2},
        {"icc_profile": b"a profile", "comment": b"a comment"},
    ],
    ids=str,
)
@pytest.mark.parametrize("size_hw", [(61, 83), (64, 96), (1, 1), (3, 200)], ids=str)
def test_pixels_are_those_of_pillow(size_hw: tuple[int, int], options: dict[str, Any]) -> None:
    data = jpeg_bytes(photo(*size_hw), **options)
    pixels = fast(data)
    assert pixels is not None
    assert pixels.flags.writeable
    assert np.array_equal(pixels, np.asarray(Image.open(io.BytesIO(data))))
    assert np.array_equal(load_rgb(data), pixels)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_modes_are_left_to_pillow(mode: str) -> None:
    data = jpeg_bytes(photo(mode=mode))
    assert fast(data) is None
    assert np.array_equal(load_rgb(data), np.asarray(load_image(data)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg_bytes(photo(), exif=exif.tobytes())
    assert np.array_equal(load_rgb(data), np.asarray(load_image(data)))


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg_bytes(photo()))
    expected = np.asarray(load_image(path))
    assert np.array_equal(load_rgb(path), expected)
    with path.open("rb") as stream:
        stream.seek(3)
        assert np.array_equal(load_rgb(stream), expected)


def test_damaged_files_give_the_errors_of_pillow() -> None:
    data = jpeg_bytes(photo(200, 300), quality=95)
    for damaged in (data[: len(data) // 2], data[:-2], data[: data.index(b"\xff\xda") + 14]):
        assert fast(damaged) is None
        with pytest.raises(ImageError) as expected:
            load_image(damaged)
        with pytest.raises(ImageError) as caught:
            load_rgb(damaged)
        assert str(caught.value) == str(expected.value)


def test_a_second_header_of_another_size_does_not_write_beyond_the_array() -> None:
    data = jpeg_bytes(photo(16, 16), quality=90)
    start = data.index(b"\xff\xc0")
    size = start + 5  # height and width
    larger = data[:size] + (400).to_bytes(2, "big") + (400).to_bytes(2, "big") + data[size + 4 :]
    stream = io.BytesIO(larger)
    assert decode_jpeg(Image.open(io.BytesIO(data)), stream) is None  # a file that changes between two reads
    stream = io.BytesIO(data)
    assert decode_jpeg(Image.open(io.BytesIO(larger)), stream) is None


def test_of_files_with_much_else_in_them_only_the_image_is_read() -> None:
    data = jpeg_bytes(photo())
    assert fast(data + bytes(1000)) is not None
    assert fast(data + bytes(2 << 20)) is None
    assert np.array_equal(load_rgb(data + bytes(2 << 20)), load_rgb(data))


@pytest.mark.usefixtures("without_simplejpeg")
def test_without_simplejpeg_pillow_decodes() -> None:
    data = jpeg_bytes(photo())
    assert fast(data) is None
    assert np.array_equal(load_rgb(data), np.asarray(Image.open(io.BytesIO(data))))
