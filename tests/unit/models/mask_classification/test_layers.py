from __future__ import annotations

import pytest
import torch
from torch import nn

from vitruvian.models.mask_classification.layers import (
    PointwiseNorm,
    QueryAttention,
    conv_norm_relu,
    mask_head,
    mask_logits,
)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_query_attention_is_torchs(dropout: float) -> None:
    torch.manual_seed(0)
    ours, theirs = QueryAttention(8, 2, dropout=dropout).eval(), nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat((ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight)))
        theirs.in_proj_bias.copy_(torch.cat((ours.q_proj.bias, ours.k_proj.bias, ours.v_proj.bias)))
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    queries, keys, values = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    want, weights = theirs(queries, keys, values, average_attn_weights=False)
    torch.testing.assert_close(ours(queries, keys, values)[0], want)
    found = ours(queries, keys, values, need_weights=True)
    torch.testing.assert_close(found[0], want)
    torch.testing.assert_close(found[1], weights)
    if dropout:
        assert not torch.allclose(ours.train()(queries, keys, values)[0], want)


def test_mask_head_and_logits() -> None:
    head = mask_head(4, 6)
    assert [name for name, _ in head.named_parameters()][::2] == ["0.0.weight", "1.0.weight", "2.0.weight"]
    vectors = head(torch.randn(2, 3, 4))
    assert vectors.shape == (2, 3, 6)
    features = torch.randn(2, 6, 5, 7)
    logits = mask_logits(vectors, features)
    torch.testing.assert_close(logits, torch.einsum("bqm,bmhw->bqhw", vectors, features))


def test_exports_keep_the_convolution() -> None:
    exported = torch.export.export(PointwiseNorm(32, 32, bias=True), (torch.randn(1, 32, 4, 4),))
    assert any("conv2d" in str(node.target) for node in exported.graph.nodes)


def test_names_and_initialization() -> None:
    layer = PointwiseNorm(5, 32, bias=False, init="xavier")
    assert set(layer.state_dict()) == {"0.weight", "1.weight", "1.bias"}
    assert layer[0].init_kind == "xavier"
    maps = torch.randn(1, 5, 3, 4)
    torch.testing.assert_close(layer(maps), layer[1](layer[0](maps)))
    smooth = conv_norm_relu(32, 32)
    assert set(smooth.state_dict()) == {"0.weight", "1.weight", "1.bias"}
    assert smooth(torch.randn(1, 32, 3, 4)).min() >= 0
