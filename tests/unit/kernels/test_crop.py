"""People cut out and normalised at once: what the processor makes of them one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.ways import WAYS, Way
from vitruvian.errors import InputError
from vitruvian.images import crop_boxes, rescale_and_normalize
from vitruvian.kernels import crop
from vitruvian.kernels.crop import constants, crop_and_normalize

SHRUNK, ENLARGED, BEYOND, FAR = [10, 12, 100, 80], [60, 40, 3, 4], [-30, 60, 70, 90], [-900, -900, 3000, 2500]
BOXES = torch.tensor([SHRUNK, ENLARGED, BEYOND, FAR, [500, 600, 40, 40], [1e9, 5, 20, 20]], dtype=torch.float32)
IMAGENET: dict[str, Any] = {"scale": 1 / 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("output_hw", [(11, 7), (1, 1), (3, 150)], ids=str)
def test_crops_are_those_of_the_processor(
    way: str, output_hw: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Way(way, crop, monkeypatch)
    device = "cuda" if make.on_gpu else "cpu"
    rows = BOXES if output_hw != (3, 150) else BOXES[:2]
    pixels = noise(110, 130, 3).permute(2, 0, 1)
    for picture in (pixels, pixels.contiguous(), pixels[:, 5:90, 3:]):
        want = rescale_and_normalize(crop_boxes(picture, rows, output_hw), **IMAGENET)
        got = crop_and_normalize(picture.to(device), rows, output_hw, **IMAGENET)
        assert (got.device.type, got.dtype, got.is_contiguous()) == (device, torch.float32, True)
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_data_types_and_options(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way(way, crop, monkeypatch)
    picture = noise(40, 30, 3).permute(2, 0, 1)
    for options in ({"scale": None, "mean": None, "std": None}, {"scale": 0.5, "mean": 3.0, "std": [1.0, 2.0, 4.0]}):
        want = rescale_and_normalize(crop_boxes(picture, BOXES[:1], (8, 6)), **options)  # type: ignore[arg-type]
        given = picture.to("cuda" if make.on_gpu else "cpu")
        got = crop_and_normalize(given, BOXES[:1].numpy(), (8, 6), dtype=torch.bfloat16, **options)  # type: ignore[arg-type]
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.cpu().float(), want, rtol=1 / 128, atol=1e-3)


@pytest.mark.parametrize("way", WAYS)
def test_nobody_and_nonsense(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way(way, crop, monkeypatch)
    picture = noise(40, 30, 3).permute(2, 0, 1).to("cuda" if make.on_gpu else "cpu")
    with pytest.raises(InputError, match="positive width"):
        crop_and_normalize(picture, torch.tensor([[0.0, 0, 0, 5]]), (8, 6), **IMAGENET)
    with pytest.raises(InputError, match="std: expected positive"):
        crop_and_normalize(picture, BOXES, (8, 6), scale=None, mean=None, std=0.0)
    with pytest.raises(InputError, match="mean: expected 1 or 3"):
        crop_and_normalize(picture, BOXES, (8, 6), scale=None, mean=[1.0, 2.0], std=None)
    if way == "kernel":
        assert crop_and_normalize(picture, BOXES[:0], (8, 6), **IMAGENET).shape == (0, 3, 8, 6)


def test_one_factor_and_one_shift_for_each_channel() -> None:
    factors, shifts = constants(0.5, [1.0, 2.0, 3.0], 2.0)
    assert factors == (0.25, 0.25, 0.25)
    assert shifts == (-0.5, -1.0, -1.5)
