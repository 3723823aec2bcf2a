"""Attention with narrow values: every version against scaled dot-product attention."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops import narrow_value_attention as module
from vitruvian.ops.narrow_value_attention import narrow_value_attention


@every_version
@pytest.mark.parametrize(("queries", "keys", "channels", "value_channels"), [(130, 700, 32, 16), (5, 64, 24, 10)])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_narrow_value_attention(
    version: str, queries: int, keys: int, channels: int, value_channels: int, implementation: str
) -> None:
    q = randn(2, queries, channels, version=version) * 3
    k = randn(2, keys, channels, version=version, seed=1)
    v = randn(2, keys, value_channels, version=version, seed=2)
    want = F.scaled_dot_product_attention(*(part.float() for part in (q, k, v)))
    assert_close(narrow_value_attention(q, k, v, implementation=implementation), want)


def test_queries_and_keys_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = randn(2, 50, 16), randn(2, 70, 16, seed=1), randn(2, 70, 4, seed=2)
    monkeypatch.setattr(module, "_CPU_BLOCK", 16)
    k[:, 20:] *= 30  # the maximum of the scores rises
    with torch.no_grad():
        assert_close(narrow_value_attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


def test_gradients() -> None:
    q, k, v = (torch.randn(1, n, c, requires_grad=True) for n, c in ((3, 8), (5, 8), (5, 2)))
    narrow_value_attention(q, k, v).square().sum().backward()
    assert all(part.grad is not None for part in (q, k, v))
