"""Linear layers on the CPU with weights in the blocked layout of oneDNN, and with what follows joined to the product.

The operators behind it are private to torch: `has_packed` tries them once, and without them plain torch runs instead.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.kernels.lanes_cpu import pieces

ROWS = 512  # rows of a chunk: what lies between two products stays in the cache


@functools.cache
def has_packed() -> bool:
    """Tell whether torch has the operators for packed weights here, and they say what plain torch says."""
    try:
        x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
        packed = pack(weight)
        found = (
            run(x, packed, bias, "swish"),
            run(x, packed, None, "none"),
            run_add(x, packed, bias, torch.ones(3, 5)),
        )
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    plain = F.linear(x, weight)
    wanted = (F.silu(plain + bias), plain, plain + bias + 1)
    return all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, wanted, strict=True))


def packs(weight: Tensor) -> bool:
    """Tell whether a weight can be packed to advantage: float32 on the CPU."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and has_packed()


@torch.no_grad()
def pack(weight: Tensor, rows: int = ROWS) -> Tensor:
    """Bring a weight [F, C] into the layout that suits products with about this number of rows."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
    return packed


def run(x: Tensor, packed: Tensor, bias: Tensor | None, act: str) -> Tensor:
    """Multiply [..., C] by a packed weight [F, C] and apply ``"none"`` or ``"swish"``."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, act, [], "")
    return out


def run_add(x: Tensor, packed: Tensor, bias: Tensor | None, other: Tensor) -> Tensor:
    """Multiply [..., C] by a packed weight [F, C] and add [..., F]."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, packed, bias, "add")
    return out


class PackedLinear:
    """A linear layer for inference."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.width = len(weight)
        self.bias = None if bias is None else bias.detach().contiguous()
        self.packed: Tensor | None = pack(weight) if packs(weight) else None
        self.weight = weight.detach() if self.packed is None else weight.new_empty(0)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [..., C] to [..., F]."""
        if self.packed is not None:
            return run(x, self.packed, self.bias, "none")
        return F.linear(x, self.weight, self.bias)

    def silu(self, x: Tensor) -> Tensor:
        """Map [..., C] to [..., F] and apply SiLU."""
        if self.packed is not None:
            return run(x, self.packed, self.bias, "swish")
        return F.silu(F.linear(x, self.weight, self.bias), inplace=True)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """Map [..., C] to [..., F] and add [..., F], which stays as it is."""
        if self.packed is not None:
            return run_add(x, self.packed, self.bias, other)
        return F.linear(x, self.weight, self.bias).add_(other)


def even_chunks(rows: int, most: int) -> list[slice]:
    """Cut a number of rows into chunks of nearly the same size, none above `most`."""
    return pieces(rows, -(-rows // most))


def stamp(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """Tell the state of tensors, so that what was packed from them is made anew after they change."""
    return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
