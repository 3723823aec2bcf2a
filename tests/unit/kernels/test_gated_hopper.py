"""The gated product for Hopper, its Python run with threads and tiny tiles."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.unit.kernels.groups import Chip, Descriptor, Pointer
from tests.unit.kernels.test_attention import HAS_GLUON

pytestmark = pytest.mark.skipif(not HAS_GLUON, reason="no Triton with Gluon for Hopper")
SIZES = {"_PARTS": 2, "_ROWS": 8, "_COLUMNS": 16, "_DEPTH": 16, "_STAGES": 4, "_GROUP": 2, "_REGISTERS": 0}


@pytest.mark.parametrize("steps", [1, 2, 6])
@pytest.mark.parametrize(
    ("rows", "across", "programs", "shares"),
    [
        (80, 3, 4, (15, 0, 0, 1)),  # whole tiles alone, as if one program were to take what follows
        (50, 4, 7, (12, 0, 4, 2)),  # two programs have time for the two last rows
        (24, 2, 7, (0, 4, 6, 7)),  # less than a round: all tiles in pieces
        (5, 2, 4, (0, 0, 2, 4)),
        (68, 3, 11, (11, 2, 5, 11)),  # a round, and the next in pieces
        (30, 5, 6, (5, 0, 5, 6)),  # too many last rows for the one with a tile less
    ],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_order_of_groups_of_warps(
    rows: int,
    across: int,
    programs: int,
    shares: tuple[int, ...],
    steps: int,
    has_bias: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All is written once, nothing is read too early or waited for in vain."""
    from vitruvian.kernels import gated_hopper

    monkeypatch.setattr(gated_hopper, "ROWS", SIZES["_ROWS"])
    assert gated_hopper.share_out(rows, across, programs) == shares
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 16 * steps, generator=generator)
    weight, bias = (torch.randn(16 * across, *size, generator=generator) for size in ((16 * steps,), ()))
    out = torch.full((rows, 8 * across), float("nan"))
    chip = Chip(gated_hopper, "_place", "_load", "_compute", "_gated")
    chip.names.update(SIZES)
    halves = weight.view(-1, 2, 16 * steps).transpose(0, 1)  # gate and up
    tensors = Descriptor(x), Descriptor(halves), Descriptor(out), Pointer(bias)
    chip("_gated", programs, *tensors, rows, steps, across, *shares, programs, has_bias)
    both = F.linear(x, weight, bias if has_bias else None)
    torch.testing.assert_close(out, F.silu(both[:, 0::2]) * both[:, 1::2], rtol=1e-4, atol=1e-4)
