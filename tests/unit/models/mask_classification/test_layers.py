from __future__ import annotations

import torch

from vitruvian.models.mask_classification.layers import PointwiseConvNorm, conv_norm_relu, mask_head, mask_logits


def test_mask_head_and_logits() -> None:
    head = mask_head(4, 6)
    assert [name for name, _ in head.named_parameters()][::2] == ["0.0.weight", "1.0.weight", "2.0.weight"]
    vectors = head(torch.randn(2, 3, 4))
    assert vectors.shape == (2, 3, 6)
    features = torch.randn(2, 6, 5, 7)
    logits = mask_logits(vectors, features)
    torch.testing.assert_close(logits, torch.einsum("bqm,bmhw->bqhw", vectors, features))


def test_exports_keep_the_convolution() -> None:
    exported = torch.export.export(PointwiseConvNorm(32, 32, bias=True), (torch.randn(1, 32, 4, 4),))
    assert any("conv2d" in str(node.target) for node in exported.graph.nodes)


def test_names_and_initialization() -> None:
    layer = PointwiseConvNorm(5, 32, bias=False, init="xavier")
    assert set(layer.state_dict()) == {"0.weight", "1.weight", "1.bias"}
    assert layer[0].init_kind == "xavier"
    maps = torch.randn(1, 5, 3, 4)
    torch.testing.assert_close(layer(maps), layer[1](layer[0](maps)))
    smooth = conv_norm_relu(32, 32)
    assert set(smooth.state_dict()) == {"0.weight", "1.weight", "1.bias"}
    assert smooth(torch.randn(1, 32, 3, 4)).min() >= 0
