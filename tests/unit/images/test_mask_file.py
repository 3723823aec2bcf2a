"""Masks of objects read from images of all kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitruvian.draw import davis_colors
from vitruvian.errors import InputError
from vitruvian.files.images import write_label_png, write_png16
from vitruvian.images.mask_file import read_mask

LABELS = np.zeros((6, 8), np.uint16)
LABELS[1:3, 2:5], LABELS[4:, 1:7] = 1, 3
FIRST, BOTH = LABELS == 1, LABELS > 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mask.png"


@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize("kind", ["palette", "gray", "16 bits"])
def test_labels_of_several_objects(kind: str, scale: int, path: Path) -> None:
    labels = LABELS * (1 if scale == 1 else 70)  # 70 and 210
    if kind == "palette":
        write_label_png(path, labels, davis_colors())
    elif kind == "gray":
        Image.fromarray(labels.astype(np.uint8)).save(path)
    else:
        labels = labels * scale
        write_png16(path, labels)
    number = int(labels.max()) // 3
    assert (read_mask(path, number) == FIRST).all()
    assert (read_mask(path, 3 * number) == (LABELS == 3)).all()
    with pytest.raises(InputError, match=f"expected pixels of object 2, got those of {number}, {3 * number}. Use one"):
        read_mask(path, 2)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "I;16", "soft", "one label", "one 16-bit label"])
def test_one_mask(mode: str, path: Path) -> None:
    image = Image.fromarray(BOTH.astype(np.uint8) * 255)
    if mode == "I;16":
        write_png16(path, BOTH.astype(np.uint16) * 65535)
    elif mode == "one label":
        write_label_png(path, BOTH.astype(np.uint8) * 7, davis_colors())
    elif mode == "one 16-bit label":
        write_png16(path, BOTH.astype(np.uint16) * 300)
    elif mode == "soft":  # gray at the edges
        soft = np.where(LABELS == 1, 90, BOTH * 255).astype(np.uint8)
        Image.fromarray(soft).save(path)
    else:
        image.convert(mode).save(path)
    assert (read_mask(path, 5) == BOTH).all()


def test_alpha(path: Path) -> None:
    pixels = np.full((*LABELS.shape, 4), 0, np.uint8)
    pixels[..., 3] = FIRST * 255  # black, but there
    Image.fromarray(pixels).save(path)
    assert (read_mask(path, 5) == FIRST).all()


def test_a_jpeg_that_is_rotated_and_no_file(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    mask = np.zeros((32, 16), np.uint8)
    mask[:16] = 255
    Image.fromarray(mask).save(tmp_path / "mask.jpg", exif=exif)
    assert read_mask(tmp_path / "mask.jpg", 1)[:, 16:].all()
    with pytest.raises(InputError, match="expected an image file, got none"):
        read_mask(tmp_path / "none.png", 1)
