"""The kernels of the mask families equal plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.kernels.ways import WAYS, Way
from vitruvian.kernels import deformable, fused, masked
from vitruvian.kernels.deformable import sample_points
from vitruvian.kernels.fused import add_layer_norm_, norm_and_place, norm_of_sum
from vitruvian.kernels.masked import attend_masked
from vitruvian.layers.deformable import level_centers, sum_samples

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


@pytest.mark.parametrize(("heads", "dim"), [(4, 8), (2, 32), (3, 24)])
def test_deformable(way: str, heads: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way(way, deformable, monkeypatch)
    levels, points = ((3, 4), (6, 7), (11, 13)), 4
    count = sum(h * w for h, w in levels)
    value = make.randn(2, count, heads * dim)
    projected = make.randn(2, count, heads * 3 * points * 3, scale=2.0)
    projected[0, 0, :4] = torch.tensor([1e9, -1e9, 50.0, 0.0])  # far outside
    got = sample_points(value, projected, levels, heads=heads, points=points)
    given = projected.float().cpu()
    offsets = given[..., : heads * 3 * points * 2].view(2, count, heads, 3, points, 2)
    weights = given[..., heads * 3 * points * 2 :].view(2, count, heads, -1).softmax(-1).unflatten(-1, (3, points))
    places = offsets + level_centers(levels, torch.device("cpu"))[:, None, :, None]
    want = sum_samples(value.float().cpu().unflatten(-1, (heads, -1)), levels, places[..., 0], places[..., 1], weights)
    make.close(got.cpu(), want)


@pytest.mark.parametrize(("queries", "keys", "heads"), [(9, 700, 2), (100, 65, 4), (3, 5, 1)])
def test_masked_attention(way: str, queries: int, keys: int, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way(way, masked, monkeypatch)
    q, k, v = (make.randn(2, n, heads * 16) for n in (queries, keys, keys))
    logits = make.randn(2, queries, keys) - 1
    logits[0, 1] = -1.0  # an empty mask: look everywhere
    logits[1, 2] = -1.0
    logits[1, 2, -1] = 0.0  # a mask of one place, on the border
    seen = (logits >= 0) | (logits < 0).all(-1, keepdim=True)
    parts = (x.float().unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    want = F.scaled_dot_product_attention(*parts, attn_mask=seen[:, None]).transpose(1, 2).flatten(2)
    make.close(attend_masked(q, k, v, logits, heads=heads), want)
