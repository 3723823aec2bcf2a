"""The kernels of the mask families equal plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.kernels.ways import WAYS, Way
from vitruvian.kernels import fused
from vitruvian.kernels.fused import add_layer_norm_, norm_and_place, norm_of_sum

pytestmark = pytest.mark.parametrize("way", WAYS)


@pytest.mark.parametrize("channels", [64, 96, 1152])
def test_layer_norms_of_sums(way: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way(way, fused, monkeypatch)
    x, branch, places = make.randn(2, 37, channels), make.randn(2, 37, channels), make.randn(37, channels)
    norm = nn.LayerNorm(channels, eps=1e-6).to(x).requires_grad_(False)
    norm.weight.copy_(make.randn(channels))
    norm.bias.copy_(make.randn(channels))

    def want(total: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(total.float(), (channels,), norm.weight.float(), norm.bias.float(), 1e-6)

    total = x.clone()
    make.close(add_layer_norm_(total, branch, norm), want(x + branch))
    make.close(total, x + branch)
    make.close(add_layer_norm_(total, None, norm), want(total))
    make.close(norm_of_sum(x, branch.transpose(0, 1).contiguous().transpose(0, 1), norm), want(x + branch))
    normed, placed = norm_and_place(x, branch, norm, places)
    make.close(normed, want(x + branch))
    make.close(placed, want(x + branch) + places)
