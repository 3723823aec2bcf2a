"""Joined linear layers: the numbers of the layers, in one memory."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from vitruvian.layers.joined_linear import JoinedLinear


def build(biases: tuple[bool, ...], *, interleave: bool) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(4, 3 if interleave else 2 + number, bias=bias) for number, bias in enumerate(biases)]


@torch.no_grad()
@pytest.mark.parametrize("biases", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("interleave", [False, True])
def test_joined(biases: tuple[bool, ...], interleave: bool) -> None:
    linears, x = build(biases, interleave=interleave), torch.randn(5, 4)
    want = [linear(x) for linear in linears]
    joined = JoinedLinear(linears, interleave=interleave)
    out = joined(x)
    torch.testing.assert_close(out, torch.stack(want, -1).flatten(1) if interleave else torch.cat(want, 1))
    for linear, expected in zip(linears, want, strict=True):
        torch.testing.assert_close(linear(x), expected)
        assert linear.weight.untyped_storage().data_ptr() == joined.weight.untyped_storage().data_ptr()
    assert (joined.bias is None) == (not any(biases))
    linears[1].weight.mul_(2)
    assert not torch.equal(joined(x), out)


@torch.no_grad()
def test_usable_only_in_inference_and_with_its_own_memory() -> None:
    linears = build((True, True), interleave=False)
    joined = JoinedLinear(linears)
    assert joined.is_usable(*linears)
    with torch.enable_grad():
        assert not joined.is_usable(*linears)
    assert not joined.is_usable(linears[0], nn.Sequential(linears[1]))  # an adapter around the layer
    linears[1].weight = nn.Parameter(linears[1].weight.clone())
    assert not joined.is_usable(*linears)


@torch.no_grad()
@pytest.mark.parametrize("interleave", [False, True])
def test_copies_join_their_own_layers(interleave: bool) -> None:
    module = nn.ModuleList(build((True, True), interleave=interleave))
    module.joined = JoinedLinear([*module], interleave=interleave)  # type: ignore[arg-type]
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert again.joined.linears[0] is again[0]
        assert again.joined.is_usable(*again)
        assert torch.equal(again.joined.weight, module.joined.weight)  # type: ignore[arg-type]
