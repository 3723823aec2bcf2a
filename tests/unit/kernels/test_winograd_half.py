"""Convolutions by minimal filters on a GPU equal torch's: the twin here, the kernels where they can run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.unit.kernels.ways import WAYS, Way
from vitruvian.kernels import winograd_half
from vitruvian.kernels.winograd_half import BYTES, Maps, TiledConv, bytes_at_a_time, lines_at_a_time, pays

KINDS = ["plain", "shuffles", "transposed"]


def weights(way: Way, kind: str, before: int, after: int) -> tuple[Tensor, Tensor | None]:
    if kind == "transposed":
        return way.randn(before, after, 4, 4, scale=0.1), None
    wide = 4 * after if kind == "shuffles" else after
    return way.randn(wide, before, 3, 3, scale=0.1), way.randn(wide)


def tiled(kind: str, weight: Tensor, bias: Tensor | None) -> TiledConv:
    return TiledConv(weight, bias, transposed=kind == "transposed", shuffles=kind == "shuffles")


def convolved(kind: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same by torch, in float64."""
    x, weight = x.double(), weight.double()
    if kind == "transposed":
        return F.conv_transpose2d(x, weight, stride=2, padding=1)
    out = F.conv2d(x, weight, None if bias is None else bias.double(), padding=1)
    return F.pixel_shuffle(out, 2) if kind == "shuffles" else out


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def far(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(8, 12), (5, 7), (1, 2), (9, 3)])
def test_convolution_and_norm(way: str, kind: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    on = Way(way, winograd_half, monkeypatch)
    x = last(on.randn(2, 24, *size))
    weight, bias = weights(on, kind, 24, 20)
    conv = tiled(kind, weight, bias)
    found = conv(Maps(x))
    want = convolved(kind, x, weight, bias)
    limit = 3e-3 if on.on_gpu else 2e-6
    assert far(found.values * conv.unit[:, None, None], want) < limit
    assert found.values.is_contiguous(memory_format=torch.channels_last)
    if size != (1, 2):  # the norm of two pixels is either sign
        assert far(found.activated(torch.float32), F.silu(F.instance_norm(want))) < 2 * limit


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_norm_before_and_rows_at_a_time(way: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Way(way, winograd_half, monkeypatch)
    x = last(on.randn(3, 16, 6, 9) * 3 + 20)
    weight, bias = weights(on, kind, 16, 36)
    variance, mean = torch.var_mean(x.float(), dim=(2, 3), correction=0)
    maps = Maps(x, mean, torch.rsqrt(variance + 1e-5))
    conv = tiled(kind, weight, bias)
    whole = conv(maps)
    want = convolved(kind, F.silu(F.instance_norm(x.double())), weight, bias)
    assert far(whole.values * conv.unit[:, None, None], want) < (4e-3 if on.on_gpu else 5e-6)
    monkeypatch.setattr(winograd_half, "BYTES", 1)
    parts = conv(maps)
    for a, b in ((whole.values, parts.values), (whole.mean, parts.mean), (whole.spread, parts.spread)):
        assert a is not None
        assert b is not None
        torch.testing.assert_close(a, b, rtol=1e-3 if on.on_gpu else 1e-5, atol=1e-3 if on.on_gpu else 1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_as_good_as_rounding(way: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Way(way, winograd_half, monkeypatch)
    x = last(F.silu(on.randn(1, 64, 13, 10)).bfloat16())
    weight, bias = (None if part is None else part.bfloat16() for part in weights(on, kind, 64, 24))
    assert weight is not None
    conv = tiled(kind, weight, bias)
    found = conv(Maps(x))
    want = convolved(kind, x, weight, bias)
    assert found.values.dtype == torch.float16
    assert far(found.values * conv.unit[:, None, None], want) < 2.5e-3
    assert far(found.activated(torch.bfloat16), F.silu(F.instance_norm(want))) < 4e-3


@pytest.mark.parametrize("way", WAYS)
def test_channels_of_any_size_keep_their_precision(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Way(way, winograd_half, monkeypatch)
    x = last(on.randn(1, 32, 8, 8).bfloat16())
    scale = torch.logspace(-8, 8, 16, device=x.device)
    weight = (on.randn(16, 32, 3, 3).float() * scale[:, None, None, None]).bfloat16()
    weight[3] = 0
    conv = tiled("plain", weight, None)
    found = conv(Maps(x))
    want = convolved("plain", x, weight, None)
    got = found.values.double() * conv.unit[:, None, None]
    for channel in (*range(3), *range(4, 16)):
        assert far(got[:, channel], want[:, channel]) < 4e-3, channel
    assert not found.activated(torch.float32)[:, 3].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_wild_values_stay_finite(way: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Way(way, winograd_half, monkeypatch)
    x = last(torch.zeros_like(on.randn(1, 32, 8, 8)).bfloat16())
    x[:, :, 3, 4] = 1e5
    weight, bias = weights(on, kind, 32, 16)
    found = tiled(kind, weight.bfloat16(), bias)(Maps(x))
    assert found.activated(torch.float32).isfinite().all()


@pytest.mark.parametrize(
    ("lines", "across", "most"), [(256, 48, 27), (512, 96, 24), (64, 12, 43), (172, 33, 59), (7, 5, 1)]
)
def test_rows_at_a_time_cover_all_within_reason(lines: int, across: int, most: int) -> None:
    found = lines_at_a_time(lines, across, most=most)
    assert 1 <= found <= min(lines, 1.5 * most)
    assert -(-lines // found) <= -(-lines // most)
    if across in (48, 96):
        assert found * across % 128 == 0


def test_where_it_pays() -> None:
    def tells(shape: tuple[int, ...], size: tuple[int, int], pictures: int = 8, **options: Any) -> bool:
        return pays(torch.empty(shape, device="meta"), size, pictures=pictures, **options)

    assert tells((6144, 1024, 3, 3), (64, 48))
    assert tells((6144, 1024, 3, 3), (64, 48), pictures=2, batch=8)
    assert not tells((6144, 1024, 3, 3), (64, 48), pictures=2)  # not worth the memory of its factors
    assert tells((3072, 1536, 3, 3), (128, 96), pictures=2)
    assert tells((512, 256, 3, 3), (512, 384), pictures=1)
    assert not tells((64, 256, 3, 3), (1024, 768))
    assert not tells((6144, 1024, 3, 3), (16, 12))
    assert not tells((6144, 1024, 1, 1), (64, 48))
    assert tells((1024, 1024, 4, 4), (64, 48), transposed=True)
    assert tells((1024, 1024, 4, 4), (64, 48), pictures=2, batch=4, transposed=True)
    assert not tells((1024, 768, 4, 4), (128, 96), pictures=3, transposed=True)
    assert not tells((1024, 1024, 2, 2), (64, 48), transposed=True)
    assert not tells((256, 128, 4, 4), (256, 192), transposed=True)


def test_few_pictures_have_little_room() -> None:
    assert bytes_at_a_time(2**20, 1) == BYTES // 4
    assert bytes_at_a_time(2**20, 2) == BYTES // 2
    assert bytes_at_a_time(2**20, 8) == BYTES
    assert bytes_at_a_time(BYTES // 3, 1) == BYTES // 3  # weights are read again each time: not too often
    assert bytes_at_a_time(2 * BYTES, 1) == BYTES


@pytest.mark.parametrize("way", WAYS)
def test_activation_in_place(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Way(way, winograd_half, monkeypatch)
    x = last(on.randn(2, 24, 7, 9).half())
    variance, mean = torch.var_mean(x.float(), dim=(2, 3), correction=0)
    maps = Maps(x, mean, torch.rsqrt(variance + 1e-5))
    for dtype in (torch.float32, torch.bfloat16):
        want, place = maps.activated(dtype), maps.values.data_ptr()
        got = maps.activate_(dtype)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.is_contiguous(memory_format=torch.channels_last)
        assert (got.data_ptr() == place) == (way == "kernel" and dtype == torch.bfloat16)
    plain = Maps(last(on.randn(1, 8, 3, 3)))
    assert plain.activate_(plain.values.dtype) is plain.values
