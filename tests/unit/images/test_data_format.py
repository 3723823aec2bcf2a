"""Arrays and tensors of both data formats."""

from __future__ import annotations

import numpy as np
import torch

from vitruvian.images.data_format import channels_first, pixels_of, size_of


def test_layouts() -> None:
    assert channels_first(torch.zeros(5, 7)).shape == (3, 5, 7)
    assert channels_first(torch.zeros(5, 7, 3)).shape == (3, 5, 7)


def test_pixels_of_an_image_share_its_memory_where_they_can() -> None:
    image = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    pixels = pixels_of(image)  # [3, H, W]
    assert size_of(pixels) == (5, 7)
    assert pixels[2, 4, 1] == image[4, 1, 2]
    image[4, 1, 2] = 255
    assert pixels[2, 4, 1] == 255
    mirrored = pixels_of(image[:, ::-1])  # torch has no negative strides
    assert mirrored[2, 4, 5] == 255
