"""Masked attention: every version against attention with a boolean mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops.masked_attention import masked_attention


@every_version
@pytest.mark.parametrize(("queries", "keys", "heads"), [(9, 700, 2), (100, 65, 4), (3, 5, 1)])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_masked_attention(version: str, queries: int, keys: int, heads: int, implementation: str) -> None:
    q = randn(2, queries, heads * 16, version=version)
    k, v = (randn(2, keys, heads * 16, version=version, seed=seed) for seed in (1, 2))
    logits = randn(2, queries, keys, version=version, seed=3) - 1
    logits[0, 1] = -1.0  # an empty mask: the query attends everywhere
    logits[1, 2] = -1.0
    logits[1, 2, -1] = 0.0  # a mask of one token, exactly on the boundary
    visible = (logits >= 0) | (logits < 0).all(-1, keepdim=True)
    parts = (x.float().unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    want = F.scaled_dot_product_attention(*parts, attn_mask=visible[:, None]).transpose(1, 2).flatten(2)
    assert_close(masked_attention(q, k, v, logits, heads=heads, implementation=implementation), want)


def test_gradients_flow_to_everything_but_the_mask() -> None:
    q, k, v = (torch.randn(1, n, 8, requires_grad=True) for n in (3, 5, 5))
    logits = torch.randn(1, 3, 5, requires_grad=True)
    masked_attention(q, k, v, logits, heads=2).square().sum().backward()
    assert all(part.grad is not None for part in (q, k, v))
    assert logits.grad is None


def test_dropout_drops_weights() -> None:
    q, k, v = (torch.randn(1, n, 8) for n in (3, 5, 5))
    logits = torch.ones(1, 3, 5)
    plain = masked_attention(q, k, v, logits, heads=2)
    assert not torch.equal(masked_attention(q, k, v, logits, heads=2, dropout=0.5), plain)
