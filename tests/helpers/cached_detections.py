"""People of the same few images, detected once for many tests: by the real detector, which takes a second."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vitruvian.images.types import RgbImage
from vitruvian.pipelines.people.sapiens2_detector import Sapiens2Detector
from vitruvian.results.base import People


@contextmanager
def cached_detections() -> Iterator[None]:
    """Cache what Sapiens2 detectors find in an image."""
    detect = Sapiens2Detector.detect
    found: dict[object, People] = {}

    def detect_once(self: Sapiens2Detector, image: RgbImage, /) -> People:
        pixels = hashlib.blake2b(image.tobytes()).digest()
        key = (self.name, self.threshold, self.model.dtype, image.shape, pixels)
        if key not in found:
            found[key] = detect(self, image)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sapiens2Detector, "detect", detect_once)
        yield
