"""SwiGLU: every version against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops import swiglu as module
from vitruvian.ops.swiglu import gated_linear, swiglu


@every_version
@pytest.mark.parametrize(("channels", "hidden"), [(24, 40), (64, 128)])  # the second one has a fused kernel
@pytest.mark.parametrize("has_bias", [True, False])
def test_gated_linear(version: str, channels: int, hidden: int, has_bias: bool) -> None:
    x = randn(2, 7, channels, version=version, seed=1)
    weight = randn(2 * hidden, channels, version=version, seed=2) * 0.1
    bias = randn(2 * hidden, version=version, seed=3) if has_bias else None
    both = F.linear(x, weight, bias).float()
    assert_close(gated_linear(x, weight, bias), F.silu(both[..., 0::2]) * both[..., 1::2])


@pytest.mark.parametrize("grad", [True, False])
def test_chunks_of_rows_change_nothing(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    gate, up, down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
    x = torch.randn(2, 9, 8)
    want = down(F.silu(gate(x)) * up(x))
    monkeypatch.setattr(module, "_CPU_ROWS", 4)
    with torch.set_grad_enabled(grad):
        out = swiglu(x, gate, up, down)
    assert out.requires_grad == grad
    torch.testing.assert_close(out, want)
