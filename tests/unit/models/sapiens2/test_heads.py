"""Decode heads: kernels, Winograd convolutions and splitting of batches give the numbers of the plain head."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families.sapiens2 import tiny
from tests.unit.ops.versions import NO_INTERPRETER
from vitruvian.models.sapiens2.heads import DecodeHead
from vitruvian.ops import dispatch, winograd

SHUFFLE = {
    "upsample_out_channels": [16, 8],
    "upsample_kernel_sizes": [3, 3],
    "use_pixel_shuffle": True,
    "conv_out_channels": [16],
    "conv_kernel_sizes": [3],
}
DECONVOLUTION = {"upsample_out_channels": [16, 8], "conv_out_channels": [16]}
CHANNELS = 64
VERSIONS = ["torch", pytest.param("interpreter", marks=NO_INTERPRETER)]


@pytest.fixture
def winograd_for_small_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use Winograd for small maps and few channels too."""
    for name, value in (("_MIN_TILES", 1), ("_MIN_BATCH_TILES", 1), ("_MIN_BATCH", 2), ("_MIN_CPU_CHANNELS", 64)):
        monkeypatch.setattr(winograd, name, value)
    transforms = {taps: replace(one, min_intensity=20) for taps, one in winograd._TRANSFORMS.items()}
    monkeypatch.setattr(winograd, "_TRANSFORMS", transforms)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, winograd_for_small_maps: None) -> Iterator[str]:
    """Run kernels in plain torch, and by Triton's interpreter."""
    if request.param == "torch":
        yield "torch"
    else:
        with dispatch.interpret_triton():
            yield "interpreter"


def build(config: dict[str, Any]) -> DecodeHead:
    torch.manual_seed(0)
    head = DecodeHead(tiny(hidden_size=CHANNELS, num_labels=5, head_config=config)).eval()
    with torch.no_grad():
        for value in head.parameters():
            value.add_(torch.randn_like(value) * 0.05)
    return head


def features(batch: int = 2) -> Tensor:
    return torch.randn(batch, CHANNELS, 3, 2, generator=torch.Generator().manual_seed(1))


def plain(head: DecodeHead, x: Tensor) -> Tensor:
    """The prediction with gradients enabled, which takes no kernels."""
    with torch.enable_grad():
        out: Tensor = head(x.requires_grad_()).detach()
    return out


def assert_same(out: Tensor, want: Tensor) -> None:
    assert out.is_contiguous()
    assert out.shape == want.shape
    error = (out - want).norm() / want.norm()
    assert error < 1e-5, f"{error:.2g}"


def transformed(head: DecodeHead) -> list[bool]:
    return [block.winograd is not None and block.winograd._value is not None for block in head._blocks()]


@torch.no_grad()
@pytest.mark.parametrize("config", [SHUFFLE, DECONVOLUTION])
def test_heads(config: dict[str, Any], version: str) -> None:
    head = build(config)
    want = plain(head, features())
    assert_same(head(features()), want)
    assert not any(transformed(head))
    head.optimize_weights()
    assert_same(head(features()), want)
    assert transformed(head)[0]
    assert not transformed(head)[-1]  # too few channels


@torch.no_grad()
def test_batches_are_split(version: str) -> None:
    head = build(DECONVOLUTION)
    head.optimize_weights()
    want = plain(head, features(5))
    assert_same(head(features(5)), want)


@torch.no_grad()
def test_changed_weights_and_biases_take_effect(version: str) -> None:
    head = build(SHUFFLE)
    head.optimize_weights()
    before = head(features())
    for value in head.parameters():
        value.add_(torch.randn_like(value) * 0.1)
    assert_same(head(features()), plain(head, features()))
    assert not torch.allclose(before, head(features()), rtol=0.1)
    bias: Any = head.upsample_layers[0].convolution.bias
    bias.add_(torch.arange(len(bias)) % 4)  # different for each phase: the norm does not remove it
    assert_same(head(features()), plain(head, features()))


@torch.no_grad()
def test_copies_transform_their_own_weights(winograd_for_small_maps: None) -> None:
    head = build(DECONVOLUTION)
    head.optimize_weights()
    want = head(features())
    assert transformed(head)[0]
    for again in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert not any(transformed(again))
        assert_same(again(features()), want)
        again.upsample_layers[0].convolution.weight.neg_()
        assert not torch.allclose(again(features()), want, rtol=0.1)
    assert_same(head(features()), want)


def test_gradients_flow_after_preparation(winograd_for_small_maps: None) -> None:
    head = build(DECONVOLUTION)
    head.optimize_weights()
    head(features()).square().sum().backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in head.parameters())


@pytest.mark.parametrize(("height", "want"), [(64, 4), (256, 2), (512, 2)])
def test_fewer_images_at_a_time_if_maps_are_large(height: int, want: int) -> None:
    head = build({"upsample_out_channels": [160, 24], "conv_out_channels": [16]})
    assert head._images_at_a_time(torch.empty(0, CHANNELS, height, 256, device="meta")) == want
