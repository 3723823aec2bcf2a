import pytest
import torch
from torch.nn import functional as F

from vitruvian import ConfigError
from vitruvian.layers.mlp import ACTIVATIONS, MLP, GatedMLP, activation


def test_plain() -> None:
    mlp, x = MLP(4, 6, act="relu"), torch.randn(2, 3, 4)
    hidden = (x @ mlp.up_proj.weight.t() + mlp.up_proj.bias).clamp(min=0)
    torch.testing.assert_close(mlp(x), hidden @ mlp.down_proj.weight.t() + mlp.down_proj.bias)


def test_gated() -> None:
    mlp, x = GatedMLP(4, 6), torch.randn(2, 3, 4)
    hidden = F.silu(mlp.gate_proj(x)) * mlp.up_proj(x)
    torch.testing.assert_close(mlp(x), mlp.down_proj(hidden))


@pytest.mark.parametrize("cls", [MLP, GatedMLP])
def test_without_bias(cls: type[MLP] | type[GatedMLP]) -> None:
    assert all(name.endswith("weight") for name in cls(4, 6, bias=False).state_dict())


def test_activations_are_those_of_the_reference() -> None:
    names = pytest.importorskip("transformers.activations").ACT2FN
    x = torch.linspace(-4, 4, 41)
    for name in ACTIVATIONS:
        torch.testing.assert_close(activation(name)(x), names[name](x), msg=name)


def test_unknown_activation() -> None:
    with pytest.raises(ConfigError, match=r"activation: expected one of .*Did you mean gelu"):
        activation("gelus")
