"""Norm and rotation of several heads at a time equal the twin, and one head at a time."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch.nn import functional as F

from tests.unit.kernels.ways import WAYS, Way
from vitruvian.kernels import fused
from vitruvian.kernels.fused import norm_rotate

HAS_TRITON = importlib.util.find_spec("triton") is not None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize(("heads", "groups", "head_dim"), [(8, 4, 64), (4, 2, 80), (3, 1, 16), (16, 16, 64)])
def test_heads_together(
    way: str, with_norm: bool, heads: int, groups: int, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Way(way, fused, monkeypatch)
    qkv = make.randn(2, 37, heads + 2 * groups, head_dim)
    weights = [make.randn(head_dim) for _ in range(2)] if with_norm else [None, None]
    angles = make.randn(37, head_dim // 2).float()
    cos, sin = angles.cos(), angles.sin()
    options = {"q_heads": heads, "k_heads": groups, "eps": 1e-6, "q_scale": 0.5}
    if way == "kernel":
        from vitruvian.kernels import fused_triton

        monkeypatch.setattr(fused_triton, "takes_kernel", lambda *tensors, name="": True)
    got = norm_rotate(qkv, weights[0], weights[1], cos, sin, **options)
    x = qkv[:, :, : heads + groups].double()
    for part, weight in ((x[:, :, :heads], weights[0]), (x[:, :, heads:], weights[1])):
        if weight is not None:
            part.copy_(F.rms_norm(part, (head_dim,), weight.double(), 1e-6))
    left, right = x.chunk(2, -1)
    c, s = cos.double()[:, None], sin.double()[:, None]
    want = torch.cat((left * c - right * s, right * c + left * s), -1)
    want[:, :, :heads] *= 0.5
    make.close(got, want.transpose(1, 2))
    if way == "kernel":
        monkeypatch.setattr(fused_triton, "takes_kernel", lambda *tensors, name="": False)
        alone = norm_rotate(qkv, weights[0], weights[1], cos, sin, **options)
        torch.testing.assert_close(alone, got, rtol=1e-2 if make.on_gpu else 1e-6, atol=1e-6)


@pytest.mark.skipif(not HAS_TRITON, reason="no Triton")
def test_a_program_has_queries_or_keys() -> None:
    from vitruvian.kernels.fused_triton import heads_together

    assert [heads_together(*heads) for heads in ((16, 8), (24, 12), (12, 6), (16, 1), (3, 3))] == [4, 4, 2, 1, 1]
