"""Attention between the tokens of prompts and the cells of images: every version against plain attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops.two_way_attention import (
    ImageCells,
    _weight_and_bias,
    image_to_tokens,
    project_cells,
    tokens_to_image,
)

CELLS, CHANNELS = 600, 32


class CrossAttention(nn.Module):
    attn_implementation = "sdpa"

    def __init__(self, heads: int, version: str) -> None:
        super().__init__()
        self.heads = heads
        inner = CHANNELS // 2
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(CHANNELS, inner) for _ in range(3))
        self.o_proj = nn.Linear(inner, CHANNELS)
        for seed, parameter in enumerate(self.parameters()):
            parameter.data = randn(*parameter.shape, version=version, seed=seed) * 0.3

    def plain(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None = None) -> Tensor:
        """Project, attend and project, in float32: [B, P, N, C], [B, P, M, C] twice -> [B, P, N, C]."""
        q, k, v = (
            F.linear(x.float(), layer.weight.float(), layer.bias.float())
            .unflatten(-1, (self.heads, -1))
            .transpose(2, 3)
            for x, layer in ((queries, self.q_proj), (keys, self.k_proj), (values, self.v_proj))
        )
        out = F.scaled_dot_product_attention(q, k, v, bias).transpose(2, 3).flatten(3)
        return F.linear(out, self.o_proj.weight.float(), self.o_proj.bias.float())


@every_version
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("prompts", "images", "tokens", "heads"), [(3, 3, 8, 8), (3, 1, 9, 4), (1, 1, 7, 8)])
def test_both_directions(version: str, prompts: int, images: int, tokens: int, heads: int, shared: bool) -> None:
    if shared and images > 1:
        pytest.skip("a shared image is one")
    image, positions = (
        randn(2, images, CELLS, CHANNELS, version=version, seed=11),
        randn(CELLS, CHANNELS, version=version),
    )
    x, token_positions = (randn(2, prompts, tokens, CHANNELS, version=version, seed=seed) for seed in (12, 13))
    to_image, to_tokens = CrossAttention(heads, version), CrossAttention(heads, version)
    norm = nn.LayerNorm(CHANNELS).to(image)
    both = ImageCells(image, positions)
    if shared:
        both = project_cells(both, to_image, to_tokens, tokens=1000)
    assert (both.projected is not None) == shared

    cells = (image + positions).expand(2, prompts, -1, -1)
    got, weights = tokens_to_image(x, both, to_image)
    assert weights is None
    assert_close(
        got.float(), to_image.plain(x, cells, image.expand_as(cells)), tolerance=3e-2 if version == "triton" else 1e-5
    )

    back = image_to_tokens(both, x, token_positions, to_tokens, norm)
    want = F.layer_norm(image.float() + to_tokens.plain(cells, x + token_positions, x), (CHANNELS,))
    assert_close(back.float(), want, tolerance=3e-2 if version == "triton" else 1e-5)


@every_version
@pytest.mark.parametrize("shared", [False, True])
def test_bias_and_weights(version: str, shared: bool) -> None:
    image, positions = randn(1, 1, 20, CHANNELS, version=version), randn(20, CHANNELS, version=version, seed=1)
    x, bias = randn(1, 3, 5, CHANNELS, version=version, seed=2), randn(1, 3, 1, 1, 20, version=version, seed=3)
    layer = CrossAttention(4, version)
    both = ImageCells(image, positions)
    if shared:
        both = project_cells(both, layer, layer, tokens=1000)
    got, weights = tokens_to_image(x, both, layer, bias=bias, need_weights=True)
    assert weights is not None
    assert weights.shape == (1, 3, 4, 5, 20)
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    cells = (image + positions).expand(1, 3, -1, -1)
    assert_close(
        got.float(),
        layer.plain(x, cells, image.expand_as(cells), bias.float()),
        tolerance=3e-2 if version == "triton" else 1e-5,
    )


def test_a_shared_image_is_projected_where_that_is_less_work() -> None:
    image, positions, layer = torch.randn(1, 1, 20, CHANNELS), torch.randn(20, CHANNELS), CrossAttention(4, "torch")
    both, several = ImageCells(image, positions), ImageCells(image.expand(1, 2, -1, -1), positions)
    assert project_cells(both, layer, layer, tokens=4).projected is None
    assert project_cells(both, layer, layer, tokens=5).projected is not None
    assert project_cells(several, layer, layer, tokens=5).projected is None


@pytest.mark.parametrize("shared", [False, True])
def test_every_parameter_has_a_gradient(shared: bool) -> None:
    image = ImageCells(torch.randn(1, 1, 20, CHANNELS), torch.randn(20, CHANNELS))
    tokens, norm = torch.randn(1, 3, 5, CHANNELS), nn.LayerNorm(CHANNELS)
    layers = CrossAttention(4, "torch"), CrossAttention(4, "torch")
    image = project_cells(image, *layers, tokens=15) if shared else image
    attended, _ = tokens_to_image(tokens, image, layers[0])
    image_to_tokens(image, attended, tokens, layers[1], norm).square().sum().backward()
    assert all(parameter.grad is not None for layer in layers for parameter in layer.parameters())


class WithAdapter(nn.Module):
    """A linear layer with a low-rank addition, and the attributes that adapters of peft have."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)
        self.in_features = base.in_features
        self.weight = base.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("bias", [True, False])
def test_modules_around_a_linear_layer(bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(5, 3, bias=bias)
    module, x = WithAdapter(linear), torch.randn(4, 5)
    for layer in (linear, module):
        weight, found_bias = _weight_and_bias(layer)
        assert weight.shape == (3, 5)
        torch.testing.assert_close(F.linear(x, weight, found_bias), layer(x))
    weight.sum().backward()
    assert module.up.weight.grad is not None
