"""Linear layers joined into one matrix product for inference, their parameters becoming views into it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def join(linears: list[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Stack the weights and biases of linear layers, which keep views into the stacks."""
    weight = torch.cat([linear.weight for linear in linears])
    start = 0
    biases = [linear.bias for linear in linears]
    bias = None
    if any(b is not None for b in biases):
        bias = torch.cat([l.weight.new_zeros(l.out_features) if l.bias is None else l.bias for l in linears])
    for linear in linears:
        rows = slice(start, start + linear.out_features)
        linear.weight.data = weight[rows]
        if linear.bias is not None and bias is not None:
            linear.bias.data = bias[rows]
        start += linear.out_features
    return weight, bias
