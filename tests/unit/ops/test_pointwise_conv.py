"""1×1 convolutions of plain maps, and of maps with a deferred norm."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vitruvian.ops import pointwise_conv
from vitruvian.ops.dispatch import disable_triton
from vitruvian.ops.instance_norm import FeatureMaps


@torch.no_grad()
@pytest.mark.parametrize("deferred", [True, False])
def test_rows_at_a_time(deferred: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise_conv, "_PIXELS", 20)
    x = (torch.randn(2, 16, 7, 9) * 3 + 20).contiguous(memory_format=torch.channels_last)
    maps, complete = FeatureMaps(x), x
    if deferred:
        variance, mean = torch.var_mean(x, dim=(2, 3), correction=0)
        maps, complete = FeatureMaps(x, mean, torch.rsqrt(variance + 1e-5)), F.silu(F.instance_norm(x))
    conv = nn.Conv2d(16, 12, 1, bias=False)
    normed = pointwise_conv.pointwise_conv_norm(maps, conv.weight, eps=1e-5).activated(torch.float32)
    torch.testing.assert_close(normed, F.silu(F.instance_norm(conv(complete))), rtol=1e-3, atol=1e-4)


def test_where_it_is_used() -> None:
    maps, conv = FeatureMaps(torch.empty(1, 8, 4, 4)), nn.Conv2d(8, 8, 1)
    with torch.no_grad():
        assert pointwise_conv.suits_pointwise(maps, conv)
        assert not pointwise_conv.suits_pointwise(maps, nn.Conv2d(8, 8, 3, padding=1))
        assert not pointwise_conv.suits_pointwise(maps, nn.Conv2d(8, 8, 1, stride=2))
        assert not pointwise_conv.suits_pointwise(FeatureMaps(maps.values.bfloat16()), conv)
        with disable_triton("pointwise_conv"):
            assert not pointwise_conv.suits_pointwise(maps, conv)
    assert not pointwise_conv.suits_pointwise(maps, conv)  # gradients


def test_a_pointwise_convolution_is_a_matrix_product() -> None:
    convolution = nn.Conv2d(5, 7, 1)
    for maps in (torch.randn(2, 5, 3, 4), torch.randn(2, 12, 5).transpose(1, 2).unflatten(2, (3, 4))):
        found = pointwise_conv.conv1x1(convolution, maps)
        torch.testing.assert_close(found, convolution(maps))
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_gradients_are_those_of_the_convolution() -> None:
    convolution, maps = nn.Conv2d(5, 7, 1).double(), torch.randn(2, 5, 3, 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 7, 3, 4, dtype=torch.float64)
    inputs = [maps, *convolution.parameters()]
    found = torch.autograd.grad((pointwise_conv.conv1x1(convolution, maps) * weights).sum(), inputs)
    want = torch.autograd.grad((convolution(maps) * weights).sum(), inputs)
    torch.testing.assert_close(found, want)
