"""The CPU ways equal plain torch: packed linear layers, Winograd's convolutions, chains of maps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.kernels import linear_cpu, maps_cpu
from vitruvian.kernels.linear_cpu import (
    PackedLinear,
    SevenProducts,
    even_chunks,
    has_packed,
    quarters,
    seven_factors,
    stamp,
)
from vitruvian.kernels.maps_cpu import MapChain, Moments, Stage, norm_of
from vitruvian.kernels.winograd import Winograd


@pytest.fixture(params=["packed", "plain", "packed in lanes", "plain in lanes"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With the operators of oneDNN where torch has them, and without; each in one lane and in several."""
    packed = request.param.startswith("packed")
    if packed and not has_packed():
        pytest.skip("torch has no packed linear layers here")
    monkeypatch.setattr(linear_cpu, "packing_pays", lambda: packed)
    before = torch.get_num_threads()
    torch.set_num_threads(3 if request.param.endswith("lanes") else 1)
    yield str(request.param)
    torch.set_num_threads(before)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("with_bias", [True, False])
def test_packed_linear(way: str, with_bias: bool) -> None:
    x, weight, other = randn(15, 12), randn(7, 12, seed=1), randn(15, 7, seed=2)
    bias = randn(7, seed=3) if with_bias else None
    linear, want, kept = PackedLinear(weight, bias), F.linear(x, weight, bias), other.clone()
    assert (linear.packed is not None) == way.startswith("packed")
    torch.testing.assert_close(linear(x), want)
    torch.testing.assert_close(linear(x.view(3, 5, 12)), want.view(3, 5, 7))
    torch.testing.assert_close(linear.silu(x), F.silu(want))
    torch.testing.assert_close(linear.add(x, other), want + other)
    assert torch.equal(other, kept)
    torch.testing.assert_close(linear.add_(x, other), want + kept)


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("with_bias", [True, False])
def test_seven_products(way: str, rows: int, with_bias: bool) -> None:
    x, weight = randn(rows, 12), randn(10, 12, seed=1)
    bias = randn(10, seed=2) if with_bias else None
    parts = quarters(x)
    kept = [part.clone() for part in parts]
    got, want = torch.full((rows, 10), torch.nan), F.linear(x, weight, bias)
    for room, found in zip(quarters(got), SevenProducts(weight, bias)(seven_factors(parts)), strict=True):
        room.copy_(found)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(parts, kept, strict=True))


def test_unpacked_weights_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_cpu, "packing_pays", lambda: False)
    weight = randn(10, 12)
    place = weight.untyped_storage().data_ptr()
    assert PackedLinear(weight).weight.data_ptr() == weight.data_ptr()
    sevens = SevenProducts(weight)
    linears = (sevens.above_left, sevens.above_right, sevens.below_right, *sevens.sums)
    assert sum(linear.weight.untyped_storage().data_ptr() == place for linear in linears) == 3
    assert sum(linear.weight.numel() for linear in linears) == 7 * weight.numel() // 4


@pytest.mark.parametrize(
    ("mkl", "capability", "pays"), [(True, "AVX2", False), (True, "AVX512", True), (False, "AVX2", True)]
)
def test_where_packing_pays(mkl: bool, capability: str, pays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert linear_cpu.packing_pays() == pays


def test_absent_operators_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> Tensor:
        raise AttributeError("no such operator")

    has_packed.cache_clear()
    monkeypatch.setattr(linear_cpu, "pack", absent)
    assert not has_packed()
    monkeypatch.undo()
    has_packed.cache_clear()


def test_wrong_operators_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    has_packed.cache_clear()
    monkeypatch.setattr(linear_cpu, "run", lambda x, *_: torch.zeros(3, 5))
    assert not has_packed()
    monkeypatch.undo()
    has_packed.cache_clear()


def test_chunks_cover_all_rows_evenly() -> None:
    for rows in (1, 7, 512, 513, 3081):
        chunks = even_chunks(rows, 512)
        assert [row for chunk in chunks for row in range(chunk.start, chunk.stop)] == list(range(rows))
        sizes = [chunk.stop - chunk.start for chunk in chunks]
        assert max(sizes) <= 512
        assert max(sizes) - min(sizes) <= 1


def test_stamp_tells_changed_tensors() -> None:
    tensor = torch.zeros(3)
    before = stamp([tensor])
    assert stamp([tensor]) == before
    tensor.add_(1)
    assert stamp([tensor]) != before
    with torch.inference_mode():
        stamp([torch.zeros(2)])


def convolve(conv: Winograd, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    size_hw = (x.shape[2], x.shape[3])
    whole, inside = conv.padded(size_hw, x.shape[1])
    inside.copy_(x[0].permute(1, 2, 0))
    out, seen = conv(whole, size_hw, lambda part: part)
    return out.permute(2, 0, 1)[None], seen


@pytest.mark.parametrize("size_hw", [(5, 7), (6, 4), (1, 1), (2, 3), (32, 30), (81, 70)])
def test_winograd_is_a_convolution(way: str, size_hw: tuple[int, int]) -> None:
    x = randn(1, 6, *size_hw)
    up, kernel, bias = randn(6, 5, 4, 4, seed=1), randn(8, 6, 3, 3, seed=2), randn(8, seed=3)
    plain = F.conv2d(x, kernel, bias, padding=1)
    for conv, want in (
        (Winograd(up, transposed=True), F.conv_transpose2d(x, up, stride=2, padding=1)),
        (Winograd(kernel, bias), plain),
        (Winograd(kernel, bias, shuffles=True), F.pixel_shuffle(plain, 2)),
    ):
        got, seen = convolve(conv, x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert sum(part.shape[0] for part in seen) == want.shape[2]
        torch.testing.assert_close(torch.cat(seen).permute(2, 0, 1)[None], got)


def test_moments_of_parts_far_from_zero() -> None:
    values = randn(13, 5, 6) * torch.arange(1, 7) + 300
    factor, summand = norm_of([Moments.of(part) for part in values.split(4)], 1e-5)
    want = F.instance_norm(values.permute(2, 0, 1)[None])[0].permute(1, 2, 0)
    torch.testing.assert_close(values * factor + summand, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("fewest", [4, 1000], ids=["winograd", "direct"])
def test_chain_of_maps(way: str, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps_cpu, "FEWEST_CHANNELS", fewest)
    monkeypatch.setattr(linear_cpu, "ROWS", 40)  # several chunks a map
    x = randn(1, 6, 5, 7)
    stages = [
        Stage(randn(6, 8, 4, 4, seed=1), padding=1, stride=2, transposed=True),
        Stage(randn(20, 8, 3, 3, seed=2), randn(20, seed=3), padding=1, shuffles=True),
        Stage(randn(9, 5, 1, 1, seed=4), randn(9, seed=5)),
        Stage(randn(5, 9, 3, 3, seed=6), randn(5, seed=7), padding=1),
    ]
    weight, bias = randn(3, 5, 1, 1, seed=8), randn(3, seed=9)
    want = F.silu(F.instance_norm(F.conv_transpose2d(x, stages[0].weight, stride=2, padding=1)))
    want = F.pixel_shuffle(F.conv2d(want, stages[1].weight, stages[1].bias, padding=1), 2)
    want = F.silu(F.instance_norm(want))
    want = F.silu(F.instance_norm(F.conv2d(want, stages[2].weight, stages[2].bias)))
    want = F.silu(F.instance_norm(F.conv2d(want, stages[3].weight, stages[3].bias, padding=1)))
    want = F.conv2d(want, weight, bias)
    chain = MapChain(stages, weight, bias)
    assert any(isinstance(ready, Winograd) for ready in chain.ready) == (fewest == 4)
    got = chain(x[0].permute(1, 2, 0))
    torch.testing.assert_close(got[None], want, rtol=1e-3, atol=1e-4)
