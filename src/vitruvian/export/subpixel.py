"""Transposed convolutions as plain ones, for which engines have quicker kernels, and int8 ones at all.

Of kernel 4, stride 2 and padding 1: each of the four phases of the result is a 2×2 convolution, and all four read the
same windows of the padded map, so that one convolution gives four times the channels. Shuffled into a grid of twice
the size they are the result with one pixel too many on each side.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SubPixel(nn.Module):
    """A transposed convolution of kernel 4, stride 2 and padding 1."""

    def __init__(self, convolution: nn.ConvTranspose2d) -> None:
        super().__init__()
        order = torch.tensor([[2, 0], [3, 1]])
        taps = convolution.weight.detach()[:, :, order][:, :, :, :, order]  # [C, C', 2, 2, 2, 2]
        self.weight = nn.Parameter(taps.permute(1, 2, 4, 0, 3, 5).flatten(0, 2))  # [C'·4, C, 2, 2]
        bias: Tensor | None = convolution.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().repeat_interleave(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, h, w] to [B, C', 2h, 2w]."""
        x = F.conv2d(x, self.weight, self.bias, padding=1)  # [B, C'·4, h + 1, w + 1]
        return F.pixel_shuffle(x, 2)[:, :, 1:-1, 1:-1]


def fits(module: nn.Module) -> bool:
    """Tell whether a module is a transposed convolution of the form that `SubPixel` takes."""
    return (
        isinstance(module, nn.ConvTranspose2d)
        and (module.kernel_size, module.stride, module.padding) == ((4, 4), (2, 2), (1, 1))
        and (tuple(module.output_padding), tuple(module.dilation), module.groups) == ((0, 0), (1, 1), 1)
    )


@contextlib.contextmanager
def subpixel_convolutions(model: nn.Module) -> Iterator[None]:
    """Run a model's transposed convolutions as plain ones for a while."""
    swapped = [
        (owner, name, child) for owner in model.modules() for name, child in owner.named_children() if fits(child)
    ]
    try:
        for owner, name, child in swapped:
            if isinstance(child, nn.ConvTranspose2d):
                setattr(owner, name, SubPixel(child))
        yield
    finally:
        for owner, name, child in swapped:
            setattr(owner, name, child)
