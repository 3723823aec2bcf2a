"""Attention with an unshifted softmax: every version against softmax."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops.unshifted_attention import has_bounded_scores, query_scale, unshifted_attention


@every_version
@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (4, 2)])
@pytest.mark.parametrize(("tokens", "head_dim"), [(37, 16), (64, 24), (70, 80)])
def test_attention(version: str, heads: int, groups: int, tokens: int, head_dim: int) -> None:
    q = randn(2, heads, tokens, head_dim, version=version, seed=1)
    k = randn(2, groups, tokens, head_dim, version=version, seed=2)
    v = randn(2, tokens, groups, head_dim, version=version, seed=3).transpose(1, 2)  # strided, as of a projection
    wide = [x.float().repeat_interleave(heads // x.shape[1], dim=1) for x in (q, k, v)]
    want = F.scaled_dot_product_attention(*wide).transpose(1, 2)
    assert_close(unshifted_attention(q * query_scale(head_dim), k, v), want)


def test_limits_of_scores() -> None:
    ones = torch.ones(64)
    assert has_bounded_scores(ones, ones)
    assert not has_bounded_scores(3 * ones, 3 * ones)  # 8 · 9 · log2(e) > 100
    assert has_bounded_scores(1.5 * ones, ones)
    assert not has_bounded_scores(1.5 * ones.half(), ones.half())  # 8 · 1.5 · log2(e) > 14
    assert query_scale(64) == pytest.approx(math.log2(math.e) / 8)
