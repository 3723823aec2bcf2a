"""The memory that reading an image takes at most, in bytes a pixel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitruvian.errors import ImageError
from vitruvian.images import load_image
from vitruvian.images.decode import check_size, on_decode
from vitruvian.images.upright_rgb import to_array

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads /proc")

SIDE = 1200
_PEAK = """
import re, sys
from vitruvian.images.read import load_rgb

def status(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

load_rgb(sys.argv[1])  # imports the plugins
for path in sys.argv[2:]:
    before = status("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # VmHWM is the peak from here on
    load_rgb(path)
    print(status("VmHWM") - before)
"""


def _samples() -> dict[str, tuple[Image.Image, dict[str, Any]]]:
    pixels = np.random.default_rng(0).integers(0, 255, (SIDE // 16, SIDE // 16, 3), dtype=np.uint8)
    rgb = Image.fromarray(pixels).resize((SIDE, SIDE))
    gray = np.asarray(rgb.convert("L"))
    rgba = rgb.convert("RGBA")
    rgba.putalpha(rgb.convert("L"))
    rotated = Image.Exif()
    rotated[0x0112] = 6
    exif = rotated.tobytes()
    return {
        "rotated.jpg": (rgb, {"exif": exif}),
        "progressive.jpg": (rgb.convert("CMYK"), {"exif": exif, "progressive": True, "subsampling": 0}),
        "rotated.png": (rgba, {"exif": exif, "compress_level": 1}),
        "key.png": (rgb, {"transparency": (3, 3, 3), "compress_level": 1}),
        "16-bit.png": (Image.fromarray(gray.astype(np.uint16) * 257), {"exif": exif, "compress_level": 1}),
        "int.tiff": (Image.fromarray(gray.astype(np.int32)), {}),
        "float.tiff": (Image.fromarray(gray.astype(np.float32) / 255), {}),
        "lzw.tiff": (rgba, {"compression": "tiff_lzw"}),
        "lossless.webp": (rgba, {"lossless": True, "quality": 0, "method": 0}),
        "color.jp2": (rgb, {}),
    }


def test_peak_memory_is_what_is_reserved(tmp_path: Path) -> None:
    reserved = []
    token = on_decode.set(reserved.append)
    for name, (image, options) in _samples().items():
        image.save(tmp_path / name, **options)
        with Image.open(tmp_path / name) as opened:
            check_size(opened, subject=name, max_pixels=10**9)
    on_decode.reset(token)
    words = [sys.executable, "-c", _PEAK, tmp_path / "rotated.png", *(tmp_path / name for name in _samples())]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    peaks = [int(line) for line in printed.split()]
    spare = 5 << 20  # for bands, and what the allocator keeps
    rows = zip(_samples(), peaks, reserved, strict=True)
    over = {name: (peak, most) for name, peak, most in rows if peak > most + spare}
    assert not over


def test_decoders_that_take_more_memory_allow_fewer_pixels(tmp_path: Path) -> None:
    image = Image.new("RGB", (20, 30))
    for name, most in (("a.png", 600), ("a.jpg", 600), ("progressive.jpg", 540), ("a.webp", 284), ("a.jp2", 270)):
        image.save(tmp_path / name, **({"progressive": True} if name == "progressive.jpg" else {}))
        assert load_image(tmp_path / name, max_pixels=-(-600 * 600 // most)).size == (20, 30)
        if most < 600:
            with pytest.raises(ImageError, match=f"at most {most} pixels in "):
                load_image(tmp_path / name, max_pixels=600)


def test_arrays_by_bands_are_those_of_numpy() -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (70_000, 11, 3), dtype=np.uint8)  # more than one band
    for mode in ("RGB", "L", "RGBA"):
        image = Image.fromarray(pixels).convert(mode)
        assert np.array_equal(to_array(image), np.asarray(image))
