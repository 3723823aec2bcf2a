"""The kernels of the mask families equal plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.kernels.ways import WAYS, Way
from vitruvian.kernels import draw, fused, two_way
from vitruvian.kernels.fused import add_layer_norm_, norm_and_place, norm_of_sum
from vitruvian.kernels.two_way import answer, look

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


@pytest.mark.parametrize(("prompts", "images", "tokens", "heads"), [(3, 3, 8, 8), (3, 1, 9, 4), (1, 1, 7, 8)])
def test_attention_between_tokens_and_image(
    way: str, prompts: int, images: int, tokens: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Way(way, two_way, monkeypatch)
    cells, channels, rows = 600, 32, heads * tokens
    image, places = make.randn(2, images, cells, channels), make.randn(cells, channels)
    folded = make.randn(2, prompts, rows, channels, scale=0.3)
    keys = (image + places).float().expand(2, prompts, -1, -1)
    wide = image.float().expand(2, prompts, -1, -1)
    want = (folded.float() @ keys.mT).softmax(-1) @ wide
    make.close(look(folded, image, places, heads=heads), want)

    bias, spoken = make.randn(2, prompts, rows), make.randn(2, prompts, rows, channels)
    weight, shift = make.randn(channels), make.randn(channels)
    scores = keys @ folded.float().mT + bias.float()[:, :, None]
    weights = scores.unflatten(-1, (heads, tokens)).softmax(-1).flatten(3)
    summed = wide + weights @ spoken.float()
    normed = F.layer_norm(summed, (channels,), weight.float(), shift.float(), 1e-5)
    make.close(answer(image, places, folded, bias, spoken, weight, shift, heads=heads, eps=1e-5), normed)


@pytest.mark.parametrize("kinds", [1, 3])
def test_drawing_is_two_transposed_convolutions(way: str, kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way(way, draw, monkeypatch)
    B, P, h, w = 2, 3, 6, 11
    cells = make.randn(B, P, h * w, 64)
    up1, up2 = make.randn(64, 16, 2, 2, scale=0.2), make.randn(16, 16, 2, 2, scale=0.3)
    finer, finest = make.randn(B, 16, 2 * h, 2 * w), make.randn(B, 16, 4 * h, 4 * w)
    weight, shift, vectors = make.randn(16), make.randn(16), make.randn(B, P, kinds, 16)
    maps = cells.float().transpose(2, 3).reshape(B * P, 64, h, w)
    x = F.conv_transpose2d(maps, up1.float(), stride=2) + finer.float().repeat_interleave(P, 0)
    x = F.layer_norm(x.movedim(1, -1), (16,), weight.float(), shift.float(), 1e-6).movedim(-1, 1)
    x = F.gelu(F.conv_transpose2d(F.gelu(x), up2.float(), stride=2) + finest.float().repeat_interleave(P, 0))
    want = torch.einsum("bpkc,bpchw->bpkhw", vectors.float(), x.unflatten(0, (B, P)))

    def by_cell(level: torch.Tensor, halvings: int) -> torch.Tensor:
        side = 2**halvings
        split = level.unflatten(3, (w, side)).unflatten(2, (h, side)).permute(0, 2, 4, 3, 5, 1)  # [B, h, w, y, x, C]
        if halvings == 2:  # quarters of quarters
            split = split.unflatten(4, (2, 2)).unflatten(3, (2, 2)).permute(0, 1, 2, 3, 5, 4, 6, 7)
        return split.reshape(B, -1, 16)

    got = draw.draw(
        cells, up1.permute(2, 3, 0, 1).flatten(0, 1), by_cell(finer, 1), weight, shift,
        up2.permute(2, 3, 0, 1).flatten(0, 1), by_cell(finest, 2), vectors, grid_hw=(h, w), eps=1e-6,
    )  # fmt: skip
    make.close(got, want)
