"""Segmentation maps of any kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vitruvian.errors import InputError
from vitruvian.images.label_maps import read_label_maps

NUMBERS = np.array([[0, 1, 255], [7, 0, 3]], dtype=np.uint8)


def palette() -> Image.Image:
    image = Image.fromarray(NUMBERS).convert("L")
    image.putpalette([channel for i in range(256) for channel in (i, 255 - i, 0)])
    return image


@pytest.mark.parametrize(
    "source",
    [
        Image.fromarray(NUMBERS),
        palette(),
        Image.fromarray(NUMBERS.astype(np.int32)),
        Image.fromarray(NUMBERS.astype(np.uint16)),
        NUMBERS,
        NUMBERS.astype(">u2"),
        NUMBERS.astype(np.uint32),
        NUMBERS.astype(np.float32),
        NUMBERS[None],
        NUMBERS[..., None],
        torch.from_numpy(NUMBERS),
        torch.from_numpy(NUMBERS)[None].float(),
    ],
)
def test_any_kind_of_map(source: object) -> None:
    (labels,) = read_label_maps(source, [(2, 3)])
    assert labels.dtype in (torch.uint8, torch.int64)
    assert labels.tolist() == NUMBERS.tolist()


def test_black_and_white() -> None:
    (labels,) = read_label_maps(Image.fromarray(NUMBERS > 0), [(2, 3)])
    assert labels.tolist() == (NUMBERS > 0).tolist()


def test_several_maps() -> None:
    stack = np.stack([NUMBERS, NUMBERS + 1])
    for maps in (stack, torch.from_numpy(stack), list(stack), tuple(stack)):
        assert [labels.tolist() for labels in read_label_maps(maps, [(2, 3)] * 2)] == stack.tolist()
    (planes,) = read_label_maps(stack, [(2, 3)], planes=True)
    assert planes.tolist() == stack.tolist()
    assert [one.shape for one in read_label_maps(stack[:, None], [(2, 3)] * 2, planes=True)] == [(1, 2, 3)] * 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Image.new("RGB", (3, 2)), "mode RGB"),
        (np.zeros((2, 3, 3)), r"\[H, W\]"),
        (np.zeros((0, 3)), r"\[H, W\]"),
        (np.array([[0.5]]), "fractions"),
        ([[[1, 2]]], "got list"),
        (np.ones((2, 2), np.uint8), r"size of the image, \[2, 3\], got \[2, 2\]"),
        ([NUMBERS] * 2, "each of the 1 images"),
        (np.ones((2, 3), np.complex64), "integers"),
        (np.full((2, 3), np.inf), "integers"),
    ],
)
def test_maps_that_are_none(source: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_label_maps(source, [(2, 3)])
