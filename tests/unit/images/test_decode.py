"""The shared collection of awkward files: each is read right, or refused in one line."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.helpers.shared_folder import SHARED, needs_shared
from vitruvian.errors import ImageError
from vitruvian.images import load_image

pytestmark = needs_shared
HARD = SHARED / "photos" / "hard"
ENTRIES = json.loads((HARD / "index.json").read_text())["files"] if HARD.is_dir() else []
VALID = [entry for entry in ENTRIES if entry["valid"]]
INVALID = [entry for entry in ENTRIES if not entry["valid"]]

EXACT = {"exif/orientation_6.png", "exif/orientation_6.webp", "rgb16.png", "photo.tif", "two_pages.tif", "photo.bmp"}
EXACT |= {"png_named.jpg", "animated.png", "reference.png", "reference_big.png"}
GRAY = {"gray.jpg", "gray.png", "gray16.png", "float32.tif"}
OTHER = {"rgba.png", "la.png", "palette_transparent.png", "bilevel.png", "rgba.webp"}
GOT = {
    "truncated.jpg": "got a truncated JPEG file",
    "truncated.png": "got a truncated PNG file",
    "empty.jpg": "an empty file",
    "empty.png": "an empty file",
    "text.jpg": "a text file",
    "header_only.jpg": "a damaged or unsupported JPEG file",
    "bomb_30000x30000.png": "30000×30000 = 900,000,000",
    "bad_huffman.jpg": "got a JPEG file with damaged pixel data",
    "zero_width.png": "a damaged or unsupported PNG file",
    "bad_crc.png": "a damaged or unsupported PNG file (broken PNG file",
    "drawing.svg": "an SVG drawing",
    "page.jpg": "an HTML page",
}


def read(name):
    if name.endswith(".heic"):
        pytest.importorskip("pillow_heif")
    if name.endswith(".avif") and "AVIF" not in Image.registered_extensions().values():
        pytest.skip("this Pillow has no AVIF decoder")
    image = load_image(HARD / name)
    assert image.mode == "RGB"
    return image


def values(image):
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("entry", VALID, ids=lambda entry: entry["file"])
def test_valid_files(entry):
    image = read(entry["file"])
    assert list(image.size) == entry["size_upright"]
    references = {(96, 120): "reference.png", (320, 240): "reference_big.png"}
    if image.size not in references or entry["file"] in OTHER:
        return
    reference = Image.open(HARD / references[image.size])
    if entry["file"] in GRAY:
        reference = reference.convert("L").convert("RGB")
    difference = np.abs(values(image) - values(reference))
    if entry["file"] in EXACT:
        assert difference.max() == 0
    else:
        assert difference.mean() < 7


@pytest.mark.parametrize("name", ["rgba.png", "rgba.webp", "la.png", "palette_transparent.png"])
@pytest.mark.parametrize("background", [(255, 255, 255), (0, 40, 200)])
def test_transparent_files_are_laid_over_the_background(name, background):
    with Image.open(HARD / name) as source:
        rgba = values(source.convert("RGBA"))
    alpha = rgba[..., 3:] / 255
    expected = rgba[..., :3] * alpha + np.array(background) * (1 - alpha)
    assert np.abs(values(load_image(HARD / name, background=background)) - expected).max() <= 1


def test_16_bit_gray_and_float_are_exact():
    gray = values(Image.open(HARD / "reference.png").convert("L"))[..., None]
    assert (values(read("gray16.png")) == gray).all()
    assert np.abs(values(read("float32.tif")) - gray).max() <= 1


def test_bilevel_is_black_and_white():
    assert set(np.unique(values(read("bilevel.png")))) == {0, 255}


def test_every_invalid_file_is_known():
    assert {entry["file"].removeprefix("invalid/") for entry in INVALID} == set(GOT)


@pytest.mark.parametrize("entry", INVALID, ids=lambda entry: entry["file"])
def test_invalid_files(entry):
    path = HARD / entry["file"]
    for source in (path, path.read_bytes()):
        with pytest.raises(ImageError) as caught:
            load_image(source)
        text = str(caught.value)
        assert GOT[path.name] in text
        assert "\n" not in text
        assert text.endswith(".")
        assert text.startswith(f"{path}: " if source is path else "image bytes: ")
