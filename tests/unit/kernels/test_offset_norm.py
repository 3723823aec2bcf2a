"""Norms of tokens that lack an offset equal plain torch: some leave the tokens as they are, some add the offset."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.unit.kernels.ways import WAYS, Way
from vitruvian.kernels import available, fused
from vitruvian.kernels.fused import add_norm_, offset_norm

pytestmark = [
    pytest.mark.parametrize("way", WAYS),
    pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16]),
    pytest.mark.parametrize("shape", [(3, 5, 64), (1, 37, 96), (2, 3, 1280), (1, 2, 5000)]),
]


def test_offset_norm(way: str, dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way(way, fused, monkeypatch)
    if make.on_gpu:
        monkeypatch.setattr(available, "OFF", set())
    x, weight = make.randn(*shape), make.randn(shape[-1])
    offset = make.randn(shape[-1], scale=3.0).to(dtype)
    before = x.clone()
    got = offset_norm(x, offset, weight, eps=0.5)
    want = F.rms_norm(x.double() + offset.double(), shape[-1:], weight.double(), 0.5)
    assert got.dtype == x.dtype
    make.close(got, want)
    assert torch.equal(x, before)


@pytest.mark.parametrize(("with_branch", "with_scale"), [(True, True), (True, False), (False, False)])
def test_add_norm_with_an_offset(
    way: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    with_branch: bool,
    with_scale: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = Way(way, fused, monkeypatch)
    x, weight = make.randn(*shape), make.randn(shape[-1])
    branch = make.randn(*shape) if with_branch else None
    scale = make.randn(shape[-1]) if with_scale else None
    offset = make.randn(shape[-1], scale=3.0).to(dtype)
    want = x.double() + offset.double()
    if branch is not None:
        want += branch.double() * (1.0 if scale is None else scale.double())
    got = add_norm_(x, branch, scale, weight, eps=0.5, offset=offset)
    assert got.dtype == x.dtype
    make.close(x, want)
    make.close(got, F.rms_norm(want, shape[-1:], weight.double(), 0.5))
