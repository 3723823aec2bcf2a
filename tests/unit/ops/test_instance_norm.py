"""Instance norm and SiLU of feature maps: every version against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops.instance_norm import FeatureMaps, instance_norm_silu


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@every_version
@pytest.mark.parametrize("size", [(3, 5), (20, 31)])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
def test_norm(version: str, size: tuple[int, int], has_bias: bool, shuffle: bool, inplace: bool) -> None:
    x = channels_last(randn(2, 24, *size, version=version, seed=1) * 2 + 30)
    bias = randn(24, version=version, seed=2) if has_bias else None
    want = x.float() if bias is None else x.float() + bias.float()[:, None, None]
    want = F.silu(F.instance_norm(F.pixel_shuffle(want, 2) if shuffle else want))
    before = x.clone()
    assert_close(
        instance_norm_silu(x, bias, shuffle=shuffle, inplace=inplace),
        want,
        tolerance=3e-2 if version == "triton" else 1e-4,
    )
    assert inplace or torch.equal(x, before)


@every_version
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_deferred_norm(version: str, dtype: torch.dtype) -> None:
    x = channels_last(randn(2, 24, 7, 9, version=version).half())
    variance, mean = torch.var_mean(x.float(), dim=(2, 3), correction=0)
    maps = FeatureMaps(x, mean, torch.rsqrt(variance + 1e-5))
    want = F.silu(F.instance_norm(x.float()))
    out = maps.activated(dtype)
    assert out.dtype == dtype
    assert_close(out, want, tolerance=1e-2 if dtype == torch.bfloat16 else 1e-4)
    reused = maps.activated(dtype, inplace=True)
    assert torch.equal(reused, out)
    assert (reused.data_ptr() == x.data_ptr()) == (version != "torch" and dtype == torch.bfloat16)


def test_complete_maps_are_returned_as_they_are() -> None:
    x = torch.randn(1, 8, 3, 3)
    assert FeatureMaps(x).activated(torch.bfloat16, inplace=True) is x
