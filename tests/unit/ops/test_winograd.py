"""Winograd convolutions: every version against plain torch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.unit.ops.versions import every_version, randn
from vitruvian.ops import winograd
from vitruvian.ops.instance_norm import FeatureMaps
from vitruvian.ops.winograd import WinogradConv, suits_winograd

KINDS = ["plain", "shuffle", "transposed"]


def weights(kind: str, before: int, after: int, version: str) -> tuple[Tensor, Tensor | None]:
    if kind == "transposed":
        return randn(before, after, 4, 4, version=version, seed=2) * 0.1, None
    wide = 4 * after if kind == "shuffle" else after
    return randn(wide, before, 3, 3, version=version, seed=2) * 0.1, randn(wide, version=version, seed=3)


def winograd_conv(kind: str, weight: Tensor, bias: Tensor | None) -> WinogradConv:
    return WinogradConv(weight, bias, transposed=kind == "transposed", shuffle=kind == "shuffle")


def convolved(kind: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    x, weight = x.double(), weight.double()
    if kind == "transposed":
        return F.conv_transpose2d(x, weight, stride=2, padding=1)
    out = F.conv2d(x, weight, None if bias is None else bias.double(), padding=1)
    return F.pixel_shuffle(out, 2) if kind == "shuffle" else out


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def error(out: Tensor, want: Tensor) -> float:
    assert out.shape == want.shape
    return float((out.double() - want).norm() / want.norm())


@every_version
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "eps"), [((4, 8), 1e-5), ((5, 7), 0.5), ((1, 2), 1e-5), ((9, 3), 1e-5)])
def test_convolution_and_norm(version: str, kind: str, size: tuple[int, int], eps: float) -> None:
    x = channels_last(randn(2, 24, *size, version=version, seed=1))
    weight, bias = weights(kind, 24, 20, version)
    conv = winograd_conv(kind, weight, bias)
    out, want = conv(FeatureMaps(x), eps=eps), convolved(kind, x, weight, bias)
    limit = 3e-3 if version == "triton" else 2e-6
    assert error(out.values * conv.unit[:, None, None], want) < limit
    assert out.values.is_contiguous(memory_format=torch.channels_last)
    if size != (1, 2):  # the norm of two pixels has either sign
        assert error(out.activated(torch.float32), F.silu(F.instance_norm(want, eps=eps))) < 2 * limit


@every_version
@pytest.mark.parametrize("kind", KINDS)
def test_deferred_norm_and_rows_at_a_time(version: str, kind: str) -> None:
    x = channels_last(randn(2, 16, 6, 7, version=version, seed=1) * 3 + 20)
    weight, bias = weights(kind, 16, 12, version)
    variance, mean = torch.var_mean(x.float(), dim=(2, 3), correction=0)
    maps = FeatureMaps(x, mean, torch.rsqrt(variance + 1e-5))
    conv = winograd_conv(kind, weight, bias)
    whole = conv(maps)
    want = convolved(kind, F.silu(F.instance_norm(x.double())), weight, bias)
    assert error(whole.values * conv.unit[:, None, None], want) < (4e-3 if version == "triton" else 5e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "_MAX_BYTES", 1)
        patch.setattr(winograd, "_CPU_TILES", 1)
        parts = conv(maps)
    for a, b in ((whole.values, parts.values), (whole.mean, parts.mean), (whole.inv_std, parts.inv_std)):
        assert a is not None
        assert b is not None
        limit = 1e-3 if version == "triton" else 1e-5
        torch.testing.assert_close(a, b, rtol=limit, atol=limit)


@every_version
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_as_good_as_rounding(version: str, kind: str) -> None:
    x = channels_last(F.silu(randn(1, 64, 13, 10, version=version, seed=1)).bfloat16())
    weight, bias = (None if part is None else part.bfloat16() for part in weights(kind, 64, 24, version))
    assert weight is not None
    conv = winograd_conv(kind, weight, bias)
    out, want = conv(FeatureMaps(x)), convolved(kind, x, weight, bias)
    assert out.values.dtype == torch.float16
    assert error(out.values * conv.unit[:, None, None], want) < 2.5e-3
    assert error(out.activated(torch.bfloat16), F.silu(F.instance_norm(want))) < 4e-3


@every_version
def test_channels_of_any_scale_keep_their_precision(version: str) -> None:
    x = channels_last(randn(1, 32, 8, 8, version=version, seed=1).bfloat16())
    scale = torch.logspace(-8, 8, 16, device=x.device)
    weight = (randn(16, 32, 3, 3, version=version, seed=2).float() * scale[:, None, None, None]).bfloat16()
    weight[3] = 0
    conv = winograd_conv("plain", weight, None)
    maps, want = conv(FeatureMaps(x)), convolved("plain", x, weight, None)
    out = maps.values.double() * conv.unit[:, None, None]
    for channel in (*range(3), *range(4, 16)):
        assert error(out[:, channel], want[:, channel]) < 4e-3, channel
    assert not maps.activated(torch.float32)[:, 3].any()


@every_version
@pytest.mark.parametrize("kind", KINDS)
def test_large_values_stay_finite(version: str, kind: str) -> None:
    x = channels_last(torch.zeros_like(randn(1, 32, 8, 8, version=version)).bfloat16())
    x[:, :, 3, 4] = 1e5
    weight, bias = weights(kind, 32, 16, version)
    out = winograd_conv(kind, weight.bfloat16(), bias)(FeatureMaps(x))
    assert out.activated(torch.float32).isfinite().all()


@pytest.mark.parametrize(
    ("rows", "columns", "max_rows"), [(256, 48, 27), (512, 96, 24), (64, 12, 43), (172, 33, 59), (7, 5, 1)]
)
def test_rows_at_a_time(rows: int, columns: int, max_rows: int) -> None:
    step = winograd._rows_at_a_time(rows, columns, max_rows=max_rows)
    assert 1 <= step <= min(rows, 1.5 * max_rows)
    assert -(-rows // step) <= -(-rows // max_rows)
    if columns in (48, 96):
        assert step * columns % 128 == 0


def test_small_batches_use_little_temporary_memory() -> None:
    most = winograd._MAX_BYTES
    for weight, batch, want in (
        (2**20, 1, most // 4),
        (2**20, 8, most),
        (most // 3, 1, most // 3),
        (2 * most, 1, most),
    ):
        assert winograd._bytes_at_a_time(weight, batch) == want


@pytest.mark.parametrize(
    ("shape", "size", "images", "batch", "transposed", "want"),
    [
        ((6144, 1024, 3, 3), (64, 48), 8, 8, False, True),
        ((6144, 1024, 3, 3), (64, 48), 2, 8, False, True),
        ((6144, 1024, 3, 3), (64, 48), 2, 2, False, False),  # not worth the memory of the transformed weight
        ((3072, 1536, 3, 3), (128, 96), 2, 2, False, True),
        ((512, 256, 3, 3), (512, 384), 1, 1, False, True),
        ((64, 256, 3, 3), (1024, 768), 8, 8, False, False),
        ((6144, 1024, 3, 3), (16, 12), 8, 8, False, False),
        ((6144, 1024, 1, 1), (64, 48), 8, 8, False, False),
        ((1024, 1024, 4, 4), (64, 48), 8, 8, True, True),
        ((1024, 1024, 4, 4), (64, 48), 2, 4, True, True),
        ((1024, 768, 4, 4), (128, 96), 3, 3, True, False),
        ((1024, 1024, 2, 2), (64, 48), 8, 8, True, False),
        ((256, 128, 4, 4), (256, 192), 8, 8, True, False),
    ],
)
def test_where_it_is_used_on_a_gpu(
    shape: tuple[int, ...],
    size: tuple[int, int],
    images: int,
    batch: int,
    transposed: bool,
    want: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(winograd, "use_triton", lambda *_: True)
    x, weight = torch.empty(images, 8, *size, device="meta"), torch.empty(shape, device="meta")
    assert suits_winograd(x, weight, batch=batch, transposed=transposed) == want


@torch.no_grad()
def test_where_it_is_used_on_the_cpu() -> None:
    x = torch.empty(1, 256, 8, 8)
    assert suits_winograd(x, torch.empty(256, 256, 3, 3), batch=1)
    assert not suits_winograd(x, torch.empty(128, 256, 3, 3), batch=1)
    assert not suits_winograd(x.bfloat16(), torch.empty(256, 256, 3, 3), batch=1)
    with torch.enable_grad():
        assert not suits_winograd(x, torch.empty(256, 256, 3, 3), batch=1)
