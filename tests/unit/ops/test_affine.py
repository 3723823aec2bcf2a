"""Weight and bias of linear layers and of modules around them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vitruvian.ops.affine import affine


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
        weight, found_bias = affine(layer)
        assert weight.shape == (3, 5)
        torch.testing.assert_close(torch.nn.functional.linear(x, weight, found_bias), layer(x))
    weight.sum().backward()
    assert module.up.weight.grad is not None
