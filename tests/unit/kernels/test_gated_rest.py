"""The last rows of a gated product, which programs take that have a tile less than others."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch.nn import functional as F

from tests.unit.kernels.ways import INTERPRETED

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")
ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


@pytest.mark.parametrize(
    ("rows", "across", "programs", "expected"),
    [
        (3081, 32, 132, 24),  # Sapiens2 0.4b, one picture: 768 tiles and 32 more for 9 rows
        (3081, 48, 132, 36),  # 1b
        (3081, 40, 132, 0),  # 0.8b: no round of their own
        (3081, 76, 132, 0),  # 5b: too many for the 24 that have time
        (8 * 3081, 32, 132, 0),  # 72 rows
        (3072, 32, 132, 0),
        (3072 + 64, 32, 132, 24),
        (3072 + 65, 32, 132, 0),
        (9, 32, 32, 0),
    ],
)
def test_who_takes_the_last_rows(rows: int, across: int, programs: int, expected: int) -> None:
    from vitruvian.kernels.gated_linear_triton import helpers

    assert helpers(rows, across, programs) == expected


@pytest.mark.skipif(not INTERPRETED and not ON_HOPPER, reason="no interpreter and no Hopper GPU")
@pytest.mark.parametrize(("rows", "hidden", "programs"), [(393, 256, 7), (265, 512, 10), (320, 256, 5)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_last_rows_are_as_the_others(
    rows: int, hidden: int, programs: int, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitruvian.kernels import gated_linear_triton as module

    generator = torch.Generator().manual_seed(0)
    device, dtype = ("cpu", torch.float32) if INTERPRETED else ("cuda", torch.bfloat16)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(device, dtype)
        for shape in ((rows, 64), (2 * hidden, 64), 2 * hidden)
    )
    monkeypatch.setattr(module, "processors", lambda device: programs)
    monkeypatch.setattr(module, "takes_kernel", lambda *tensors, name="": True)
    assert module.helpers(rows, 2 * hidden // module.COLUMNS, programs)
    got = module.gated_linear(x, weight, bias if with_bias else None)
    both = F.linear(x.float(), weight.float(), bias.float() if with_bias else None)
    want = F.silu(both[:, 0::2]) * both[:, 1::2]
    error = (got.float() - want).abs().amax(1) / want.abs().max()
    assert error.max() < (2e-2 if device == "cuda" else 1e-5), error
    monkeypatch.setattr(module, "takes_kernel", lambda *tensors, name="": False)
    torch.testing.assert_close(module.gated_linear(x, weight, bias if with_bias else None), got, rtol=1e-2, atol=1e-2)
