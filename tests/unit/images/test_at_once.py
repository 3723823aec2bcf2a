"""Crops and normalising for pictures on a GPU: the numbers of the CPU's way, and no questions to the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitruvian.errors import InputError
from vitruvian.images import at_once, crop_boxes, rescale_and_normalize
from vitruvian.images.at_once import crop_at_once, normalize_at_once, sent

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
SHRUNK, ENLARGED, BEYOND, FAR = [10, 12, 150, 170], [100, 40, 20, 30], [-60, 90, 120, 200], [-900, -900, 3000, 2500]
BOXES = torch.tensor([SHRUNK, ENLARGED, BEYOND, FAR, [500, 600, 40, 40]], dtype=torch.float32)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("output_hw", [(64, 48), (1, 1), (300, 200)])
@pytest.mark.parametrize("rows", [[0], [1], [0, 2], [0, 1, 2, 3, 4]], ids=str)
def test_crops_are_those_of_one_box_at_a_time(device: str, output_hw: tuple[int, int], rows: list[int]) -> None:
    for picture in (noise(3, 190, 230), noise(190, 230, 3).permute(2, 0, 1), noise(3, 190, 230) / 255):
        want = crop_boxes(picture, BOXES[rows], output_hw)
        got = crop_at_once(picture.to(device), BOXES[rows], output_hw)
        assert got.device.type == device
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=5e-4)  # of 255: sums are rounded as they come


def test_many_boxes_are_cut_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = noise(3, 190, 230)
    groups: list[int] = []
    whole = at_once.crop_group

    def crop_group(pixels: torch.Tensor, columns: list, rows: list, *, out: torch.Tensor) -> None:
        groups.append(len(columns))
        whole(pixels, columns, rows, out=out)

    monkeypatch.setattr(at_once, "crop_group", crop_group)
    monkeypatch.setattr(at_once, "AT_ONCE", 2 * 3 * 190 * 48)
    found, wanted = crop_at_once(picture, BOXES, (64, 48)), crop_boxes(picture, BOXES, (64, 48))
    torch.testing.assert_close(found, wanted, rtol=0, atol=5e-4)
    assert groups == [2, 2, 1]


def test_the_device_is_asked_nothing() -> None:
    """A meta tensor has no values: whoever wants to know one fails, as `crop_boxes` does."""
    picture = noise(3, 190, 230).to("meta")
    crops = crop_at_once(picture, BOXES, (64, 48))
    found = normalize_at_once(crops, scale=1 / 255, mean=[0.5] * 3, std=[0.2] * 3, in_place=True)
    assert found.is_meta
    assert found.shape == (5, 3, 64, 48)
    with pytest.raises((RuntimeError, NotImplementedError)):
        crop_boxes(picture, BOXES, (64, 48))


@pytest.mark.parametrize(
    ("scale", "mean", "std"),
    [(1 / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), (None, 0.5, [1.0, 2.0, 3.0]), (0.5, None, None)],
)
def test_normalising_is_that_of_the_cpu(scale: float | None, mean: object, std: object) -> None:
    for pixels in (noise(3, 9, 7), noise(9, 7, 3).permute(2, 0, 1), torch.rand(2, 3, 5, 4)):
        want = rescale_and_normalize(pixels, scale=scale, mean=mean, std=std)  # type: ignore[arg-type]
        before = pixels.clone()
        got = normalize_at_once(pixels, scale=scale, mean=mean, std=std)  # type: ignore[arg-type]
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.is_contiguous()
        assert torch.equal(pixels, before)
    own = pixels.clone()
    assert normalize_at_once(own, scale=scale, mean=mean, std=std, in_place=True) is own  # type: ignore[arg-type]
    torch.testing.assert_close(own, want, rtol=0, atol=0)


def test_values_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="std: expected positive"):
        normalize_at_once(noise(3, 4, 4), scale=None, mean=None, std=0.0)
    with pytest.raises(InputError, match="mean: expected 1 or 3"):
        normalize_at_once(noise(3, 4, 4), scale=None, mean=[1.0, 2.0], std=None)
    with pytest.raises(InputError, match="one picture"):
        crop_at_once(noise(1, 3, 4, 4), BOXES, (8, 8))
    with pytest.raises(InputError, match="positive width"):
        crop_at_once(noise(3, 4, 4), torch.tensor([[0.0, 0, 0, 5]]), (8, 8))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_sent_arrives_and_is_a_copy(device: str) -> None:
    backwards = np.arange(12, dtype=np.int32).reshape(3, 4)[::-1]
    frozen = np.ones((2, 2), np.uint8)
    frozen.flags.writeable = False
    for values in (backwards, frozen, torch.arange(6.0).view(2, 3).T, torch.ones(0)):
        found = sent(values, torch.device(device))
        assert found.device.type == device
        np.testing.assert_array_equal(found.cpu().numpy(), np.asarray(values))
    found = sent(frozen, torch.device(device))
    found.fill_(7)
    assert frozen.max() == 1
