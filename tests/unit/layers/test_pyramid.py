from __future__ import annotations

import torch
from torch import nn

from vitruvian.layers.pyramid import PointwiseNorm, conv_norm_relu, pointwise


def test_a_pointwise_convolution_is_a_matrix_product() -> None:
    convolution = nn.Conv2d(5, 7, 1)
    for maps in (torch.randn(2, 5, 3, 4), torch.randn(2, 12, 5).transpose(1, 2).unflatten(2, (3, 4))):
        found = pointwise(convolution, maps)
        torch.testing.assert_close(found, convolution(maps))
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_gradients_are_those_of_the_convolution() -> None:
    convolution, maps = nn.Conv2d(5, 7, 1).double(), torch.randn(2, 5, 3, 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 7, 3, 4, dtype=torch.float64)
    inputs = [maps, *convolution.parameters()]
    found = torch.autograd.grad((pointwise(convolution, maps) * weights).sum(), inputs)
    want = torch.autograd.grad((convolution(maps) * weights).sum(), inputs)
    torch.testing.assert_close(found, want)


def test_exports_keep_the_convolution() -> None:
    exported = torch.export.export(PointwiseNorm(32, 32, bias=True), (torch.randn(1, 32, 4, 4),))
    assert any("conv2d" in str(node.target) for node in exported.graph.nodes)


def test_names_and_starts() -> None:
    layer = PointwiseNorm(5, 32, bias=False, start="xavier")
    assert set(layer.state_dict()) == {"0.weight", "1.weight", "1.bias"}
    assert layer[0].init_kind == "xavier"
    maps = torch.randn(1, 5, 3, 4)
    torch.testing.assert_close(layer(maps), layer[1](layer[0](maps)))
    smooth = conv_norm_relu(32, 32)
    assert set(smooth.state_dict()) == {"0.weight", "1.weight", "1.bias"}
    assert smooth(torch.randn(1, 32, 3, 4)).min() >= 0
