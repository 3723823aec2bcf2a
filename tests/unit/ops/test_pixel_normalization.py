"""Rescaling and normalizing: (pixels · scale − mean) / std."""

import pytest
import torch

from tests.unit.images.samples import photo
from vitruvian.errors import InputError
from vitruvian.images import image_to_tensor
from vitruvian.ops.pixel_normalization import rescale_and_normalize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def expected(pixels, scale, mean, std):
    column = [torch.as_tensor(v, dtype=torch.float64).reshape(-1, 1, 1) for v in (mean, std)]
    return ((pixels.double() * scale - column[0]) / column[1]).float()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.int16])
@pytest.mark.parametrize("shape", [(3, 24, 20), (2, 3, 24, 20), (2, 5, 3, 4, 4)])
def test_values_and_type(dtype, shape):
    pixels = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = pixels.clone()
    ours = rescale_and_normalize(pixels, scale=1 / 255, mean=MEAN, std=STD)
    assert ours.dtype == torch.float32
    assert ours.is_contiguous()
    torch.testing.assert_close(ours, expected(pixels, 1 / 255, MEAN, STD), atol=1e-6, rtol=1e-5)
    assert torch.equal(pixels, before)


def test_pixel_order_in_planes_out():
    packed = image_to_tensor(photo())
    ours = rescale_and_normalize(packed, scale=1 / 255, mean=MEAN, std=STD)
    assert ours.is_contiguous()
    torch.testing.assert_close(ours, expected(packed, 1 / 255, MEAN, STD), atol=1e-6, rtol=1e-5)


def test_parts_can_be_left_out():
    pixels = torch.tensor([10.0, 20.0, 30.0]).view(3, 1, 1)
    assert rescale_and_normalize(pixels, scale=None, mean=None, std=None).flatten().tolist() == [10, 20, 30]
    assert rescale_and_normalize(pixels, scale=0.5, mean=None, std=None).flatten().tolist() == [5, 10, 15]
    assert rescale_and_normalize(pixels, scale=None, mean=10, std=2.0).flatten().tolist() == [0, 5, 10]
    assert rescale_and_normalize(pixels, scale=None, mean=[10, 20, 30], std=None).flatten().tolist() == [0, 0, 0]
    per_channel = torch.tensor([1.0, 2.0, 5.0])
    assert rescale_and_normalize(pixels, scale=None, mean=None, std=per_channel).flatten().tolist() == [10, 10, 6]


def test_out_takes_the_result():
    pixels = torch.rand(3, 4, 5)
    wanted = rescale_and_normalize(pixels, scale=2, mean=MEAN, std=STD)
    out = torch.empty(3, 4, 5)
    assert rescale_and_normalize(pixels, scale=2, mean=MEAN, std=STD, out=out) is out
    assert torch.equal(out, wanted)
    assert rescale_and_normalize(pixels, scale=2, mean=MEAN, std=STD, out=pixels) is pixels
    assert torch.equal(pixels, wanted)


def test_mistakes_are_named():
    pixels = torch.zeros(3, 4, 5)
    with pytest.raises(InputError, match="mean: expected 1 or 3 numbers for 3 channels, got 2"):
        rescale_and_normalize(pixels, scale=1, mean=(0, 0), std=1)
    with pytest.raises(InputError, match="std: expected 1 or 3 numbers for 3 channels, got 4"):
        rescale_and_normalize(pixels, scale=1, mean=0, std=(1, 1, 1, 1))
    for std in (0, (1, 1, -1), float("nan")):
        with pytest.raises(InputError, match="std: expected positive numbers"):
            rescale_and_normalize(pixels, scale=1, mean=0, std=std)
    with pytest.raises(InputError, match=r"pixels: expected shape \[..., C, H, W\]"):
        rescale_and_normalize(torch.zeros(4, 5), scale=1, mean=0, std=1)
    for out in (torch.zeros(3, 4, 5, dtype=torch.float16), torch.zeros(3, 5, 4)):
        with pytest.raises(InputError, match="out: expected float32"):
            rescale_and_normalize(pixels, scale=1, mean=0, std=1, out=out)
