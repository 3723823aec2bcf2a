"""Norms after a shuffle, and planes of one value each, equal plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.unit.kernels.ways import WAYS, Way
from vitruvian.kernels import available, fused
from vitruvian.kernels.fused import fill_planes_, norm_silu_shuffled

pytestmark = pytest.mark.parametrize("way", WAYS)
SHAPES = [(2, 8, 5, 7), (1, 12, 33, 40), (3, 132, 16, 16), (1, 260, 9, 31)]


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_norm_after_a_shuffle(
    way: str, shape: tuple[int, ...], with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Way(way, fused, monkeypatch)
    x, bias = last(make.randn(*shape)), make.randn(shape[1]) if with_bias else None
    moved = x.double() if bias is None else x.double() + bias.double()[:, None, None]
    want = F.silu(F.instance_norm(F.pixel_shuffle(moved, 2)))
    before = x.clone()
    got = norm_silu_shuffled(x, bias)
    assert got.shape == want.shape
    assert way == "twin" or got.is_contiguous(memory_format=torch.channels_last)
    assert (got.double() - want).abs().mean() < (2e-2 if make.on_gpu else 1e-5)
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", [(2, 5, 3, 7), (1, 308, 16, 12), (3, 2, 96, 100)])
def test_planes_of_one_value(way: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way(way, fused, monkeypatch)
    whole, values = make.randn(shape[0] + 2, *shape[1:]), make.randn(shape[1])
    before, want = whole.clone(), values[:, None, None].expand(shape)
    filled = fill_planes_(whole[1:-1], values)
    assert torch.equal(filled, want)
    assert torch.equal(whole[1:-1], want)
    assert torch.equal(whole[[0, -1]], before[[0, -1]])


def test_a_switch_leaves_the_kernel_out(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """VITRUVIAN_NO_TRITON=planes: plain torch, with the same results."""
    make = Way(way, fused, monkeypatch)
    x, values = make.randn(1, 16, 6, 5), make.randn(16)
    monkeypatch.setattr(fused, "takes_kernel", available.takes_kernel)
    monkeypatch.setattr(available, "OFF", {"planes"})
    assert torch.equal(fill_planes_(x, values), values[:, None, None].expand(x.shape))
