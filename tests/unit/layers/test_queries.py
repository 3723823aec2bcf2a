import pytest
import torch
from torch import nn

from vitruvian.layers.queries import (
    PackedAttention,
    QueryAttention,
    mask_head,
    mask_logits,
    split_heads,
    start_packed,
)


def test_heads_are_slices_of_channels() -> None:
    tokens = torch.arange(12.0).view(1, 2, 6)
    assert torch.equal(split_heads(tokens, 3)[0, 1], tokens[0, :, 2:4])


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


def test_packed_attention_is_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = PackedAttention(8, 2).eval(), nn.MultiheadAttention(8, 2, batch_first=True).eval()
    start_packed(ours, gain=0.5)
    assert ours.in_proj_weight.abs().max() <= 0.5 * (6 / 32) ** 0.5
    ours.load_state_dict(theirs.state_dict())
    queries, tokens = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    seen = torch.rand(2, 1, 3, 5) > 0.4
    seen[..., 0] = True
    blocked = ~seen.expand(2, 2, 3, 5).flatten(0, 1)
    want, _ = theirs(queries, tokens, tokens, attn_mask=blocked)
    torch.testing.assert_close(ours(queries, tokens, tokens, mask=seen), want)


def test_mask_head_and_logits() -> None:
    head = mask_head(4, 6)
    assert [name for name, _ in head.named_parameters()][::2] == ["0.0.weight", "1.0.weight", "2.0.weight"]
    vectors = head(torch.randn(2, 3, 4))
    assert vectors.shape == (2, 3, 6)
    features = torch.randn(2, 6, 5, 7)
    logits = mask_logits(vectors, features)
    torch.testing.assert_close(logits, torch.einsum("bqm,bmhw->bqhw", vectors, features))
