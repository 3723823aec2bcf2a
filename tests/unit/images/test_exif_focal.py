"""Focal lengths in EXIF blocks: in pixels of the image, and none that no camera can have."""

from __future__ import annotations

import io

import pytest
from PIL import Image
from PIL.ExifTags import IFD, Base

from vitruvian.images.exif_focal import exif_focal


def jpeg(tags: dict[int, object]) -> bytes:
    exif = Image.Exif()
    exif.get_ifd(IFD.Exif).update(tags)
    file = io.BytesIO()
    Image.new("RGB", (300, 400)).save(file, "JPEG", exif=exif)
    return file.getvalue()


def test_length_of_35_mm_film() -> None:
    # The diagonal of the film is 43.27 mm, that of the image 500 pixels.
    assert exif_focal(jpeg({Base.FocalLengthIn35mmFilm: 26}), (400, 300)) == pytest.approx(26 / 43.27 * 500, rel=1e-3)


def test_resolution_of_the_sensor() -> None:
    tags = {Base.FocalLength: 4.0, Base.FocalPlaneXResolution: 100.0, Base.FocalPlaneResolutionUnit: 4}  # per mm
    assert exif_focal(jpeg(tags), (400, 300)) == pytest.approx(400)


@pytest.mark.parametrize("length", [1e59, 1e9, 0.0])
def test_impossible_lengths(length: float) -> None:
    block = Image.new("RGB", (300, 400))
    tags = {Base.FocalLength: length, Base.FocalPlaneXResolution: 100.0, Base.FocalPlaneResolutionUnit: 4}
    block.getexif().get_ifd(IFD.Exif).update(tags)
    assert exif_focal(block, (400, 300)) is None
