"""Layer norm of a residual sum: every version against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops.layer_norm import add_layer_norm, layer_norm, layer_norm_of_sum, layer_norm_of_sum_and_positions


def norm_of(channels: int, version: str, *, bias: bool = True) -> nn.LayerNorm:
    norm = nn.LayerNorm(channels, eps=1e-5, bias=bias)
    norm.weight.data = randn(channels, version=version, seed=7)
    if bias:
        norm.bias.data = randn(channels, version=version, seed=8)
    return norm


@every_version
@pytest.mark.parametrize("channels", [16, 96, 257])
@pytest.mark.parametrize("bias", [True, False])
def test_sum_and_norm(version: str, channels: int, bias: bool) -> None:
    x, branch = (randn(2, 5, channels, version=version, seed=seed) for seed in (1, 2))
    norm = norm_of(channels, version, bias=bias)
    total, normed = add_layer_norm(x, branch, norm)
    assert_close(total, x + branch)
    assert_close(normed, norm(x + branch))
    assert_close(layer_norm_of_sum(x, branch, norm), norm(x + branch))


@every_version
@pytest.mark.parametrize(("rows", "channels"), [(1100, 4), (300, 16), (33, 64), (9, 256)])
@pytest.mark.parametrize("bias", [True, False])
def test_norm(version: str, rows: int, channels: int, bias: bool) -> None:
    x, norm = randn(2, channels, rows, version=version).transpose(1, 2), norm_of(channels, version, bias=bias)
    assert_close(layer_norm(x, norm), norm(x))


@every_version
def test_positions_repeat_over_the_batch(version: str) -> None:
    x, branch = (randn(3, 5, 32, version=version, seed=seed) for seed in (1, 2))
    positions, norm = randn(5, 32, version=version, seed=3), norm_of(32, version)
    normed, with_positions = layer_norm_of_sum_and_positions(x, branch, norm, positions)
    assert_close(normed, norm(x + branch))
    assert_close(with_positions, norm(x + branch) + positions)


@every_version
def test_without_a_branch_x_is_returned_as_it_is(version: str) -> None:
    x, norm = randn(2, 8, version=version), norm_of(8, version)
    total, normed = add_layer_norm(x, None, norm)
    assert total is x
    assert_close(normed, norm(x))


def test_gradients_flow_to_everything() -> None:
    x, branch = torch.randn(2, 8, requires_grad=True), torch.randn(2, 8, requires_grad=True)
    norm = nn.LayerNorm(8)
    total, normed = add_layer_norm(x, branch, norm)
    (total.sum() + normed.square().sum()).backward()
    assert all(value.grad is not None for value in (x, branch, norm.weight, norm.bias))
