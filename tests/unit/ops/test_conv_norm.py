"""Convolution, pixel shuffle, instance norm and SiLU: every version against plain torch."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops import winograd
from vitruvian.ops.conv_norm import conv_norm_silu, fastest_memory_format
from vitruvian.ops.instance_norm import FeatureMaps
from vitruvian.ops.winograd import WinogradConv
from vitruvian.tensor_cache import WeightCache


@every_version
@pytest.mark.parametrize("kind", ["pointwise", "plain", "transposed", "shuffle"])
@pytest.mark.parametrize(("use_winograd", "eps"), [(True, 0.5), (False, 1e-5)])
def test_block(version: str, kind: str, use_winograd: bool, eps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_MIN_TILES", 1), ("_MIN_BATCH_TILES", 1), ("_MIN_BATCH", 2), ("_MIN_CPU_CHANNELS", 16)):
        monkeypatch.setattr(winograd, name, value)
    transforms = {taps: dataclasses.replace(one, min_intensity=1) for taps, one in winograd._TRANSFORMS.items()}
    monkeypatch.setattr(winograd, "_TRANSFORMS", transforms)
    x = randn(2, 64, 6, 5, version=version, seed=1)
    conv: nn.Conv2d | nn.ConvTranspose2d = nn.Conv2d(64, 64, 1) if kind == "pointwise" else nn.Conv2d(64, 64, 3, 1, 1)
    if kind == "transposed":
        conv = nn.ConvTranspose2d(64, 16, 4, 2, 1, bias=False)
    for seed, parameter in enumerate(conv.parameters(), start=2):
        parameter.data = randn(*parameter.shape, version=version, seed=seed) * 0.05
    plain = conv(x).float()
    want = F.silu(F.instance_norm(F.pixel_shuffle(plain, 2) if kind == "shuffle" else plain, eps=eps))
    cache = WeightCache[WinogradConv]() if use_winograd else None
    maps = FeatureMaps(x.contiguous(memory_format=fastest_memory_format(x, conv, batch=2, winograd=use_winograd)))
    out = conv_norm_silu(maps, conv, eps=eps, batch=2, shuffle=kind == "shuffle", winograd=cache)
    assert_close(out.activated(x.dtype), want, tolerance=5e-2 if version == "triton" else 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_block_of_the_version_for_the_cpu(eps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "_MIN_CPU_CHANNELS", 16)
    torch.manual_seed(0)
    conv, x, cache = nn.Conv2d(16, 16, 3, padding=1), torch.randn(2, 16, 6, 5), WeightCache[WinogradConv]()
    out = conv_norm_silu(FeatureMaps(x), conv, eps=eps, batch=2, winograd=cache)
    assert out.mean is not None  # deferred, as that of WinogradConv is
    assert_close(out.activated(x.dtype), F.silu(F.instance_norm(conv(x), eps=eps)))


def test_gradients_reach_the_weights() -> None:
    conv = nn.Conv2d(8, 16, 3, padding=1)
    out = conv_norm_silu(FeatureMaps(torch.randn(1, 8, 4, 4)), conv, eps=1e-5, batch=1, shuffle=True).values
    assert out.shape == (1, 4, 8, 8)
    out.square().sum().backward()
    assert conv.weight.grad is not None
