"""Linear layers on the CPU, with what follows joined to the product, and wide ones in fewer products.

Weights lie in the blocked layout of oneDNN where that pays. The operators behind it are private to torch: `has_packed`
tries them once, and without them plain torch runs instead.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.kernels.lanes_cpu import pieces

STEP = 16  # products of a multiple of so many rows are quicker: 384 by a twentieth and more than 385


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
    """Tell whether a weight can be packed: float32 on the CPU."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and has_packed()


def packing_pays() -> bool:
    """Tell whether oneDNN's products are quicker here than plain ones.

    Not where these are MKL's and there is no AVX-512: on an AMD EPYC with AVX2 oneDNN's took 1.1 to 1.3 times as long.
    """
    mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return not (mkl and torch.backends.cpu.get_cpu_capability() == "AVX2")


# Rows of a chunk: what lies between two products stays in the cache. Products of plain weights bring these into an
# order of their own each time, which more rows share.
ROWS = 576 if packing_pays() else 784


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
    """A linear layer for inference. Unless it is packed, it holds the weight itself rather than a copy."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.width = len(weight)
        self.bias = None if bias is None else bias.detach().contiguous()
        self.packed: Tensor | None = pack(weight) if packs(weight) and packing_pays() else None
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
        """Map [M, C] to [M, F] and add [M, F], which stays as it is."""
        if self.packed is not None:
            return run_add(x, self.packed, self.bias, other)
        return (other.clone() if self.bias is None else other + self.bias).addmm_(x, self.weight.t())

    def add_(self, x: Tensor, other: Tensor) -> Tensor:
        """The same where [M, F] is not needed afterwards, so that it can hold what comes out."""
        if self.packed is not None:
            return run_add(x, self.packed, self.bias, other)
        return (other if self.bias is None else other.add_(self.bias)).addmm_(x, self.weight.t())


# --------------------------------------------------------------------------------------------------- seven products

Quarters = Sequence[Tensor]  # of a matrix [M, C]: [m, C/2] above left, above right, below left, below right


class SevenProducts:
    """A linear layer on matrices in quarters: seven products of quarters rather than eight (Strassen and Winograd).

    Sums of its weights are made once. With them a layer takes 7/4 of its memory when packed; else they alone, as much
    as the layer itself, lie beside it. Errors of rounding grow two- to threefold.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        weight = weight.detach()
        first, second = (None, None) if bias is None else bias.detach().chunk(2)
        (b11, b21), (b12, b22) = (half.chunk(2, dim=1) for half in weight.chunk(2))  # by channels in, then out
        t1 = b12 - b11
        t2 = b22 - t1
        self.above_left, self.above_right = PackedLinear(b11), PackedLinear(b21, first)
        self.below_right = PackedLinear(b21 - t2, first)
        self.sums = PackedLinear(t1, second), PackedLinear(t2), PackedLinear(b22 - b12), PackedLinear(b22)

    def __call__(self, factors: Quarters) -> Quarters:
        """Map `seven_factors` of [M, C] to quarters of [M, F]. Most sums of products come with the products."""
        a11, a12, a22, s1, s2, s3, s4 = factors
        p1 = self.above_left(a11)
        c11 = self.above_right.add(a12, p1)
        u2 = self.sums[1].add_(s2, p1)
        p5 = self.sums[0](s1)
        c12 = self.sums[3].add_(s4, p5 + u2)
        u3 = self.sums[2].add_(s3, u2)
        c22 = p5.add_(u3)
        return c11, c12, self.below_right.add_(a22, u3), c22


def seven_factors(parts: Quarters) -> Quarters:
    """What quarters of a matrix bring to each of the seven products."""
    a11, a12, a21, a22 = parts
    s1 = a21 + a22
    s2 = s1 - a11
    return a11, a12, a22, s1, s2, a11 - a21, a12 - s2


def quarters(x: Tensor) -> Quarters:
    """Views of a matrix [M, C], C even, or of [M, A, D]. If M is odd, the row in the middle belongs to all."""
    rows = -(-len(x) // 2)
    return [part for half in (x[:rows], x[len(x) - rows :]) for part in half.chunk(2, dim=1)]


# ------------------------------------------------------------------------------------------------------------ chunks


def even_chunks(rows: int, most: int) -> list[slice]:
    """Cut a number of rows into chunks of nearly the same size, none above `most`."""
    return pieces(rows, -(-rows // most))


def stamp(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """Tell the state of tensors, so that what was packed from them is made anew after they change."""
    return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
