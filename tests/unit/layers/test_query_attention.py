from __future__ import annotations

import pytest
import torch
from torch import nn

from vitruvian.layers.query_attention import QueryAttention


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
