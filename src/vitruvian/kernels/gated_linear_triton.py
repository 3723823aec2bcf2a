"""The first half of a SwiGLU feed-forward in one kernel: matrix product, bias and gate.

The [M, 2F] between them stays in registers. Gate and up rows alternate in the weight, so that one product holds both;
blocks stay on their processors and walk over tiles, and loads run through the bulk copy engine of Hopper chips. A few
rows beyond whole tiles do not start another round: blocks that have a tile less than others take them, in half tiles.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vitruvian.kernels.available import takes_kernel

ROWS, COLUMNS, DEPTH = 128, 256, 64
REST_ROWS = 64  # of a tile for the last rows, with half the products of a whole one


@triton.jit
def _gated(
    x_desc, w_desc, out_desc, x_rest_desc, out_rest_desc, bias_ptr, M, F2, K, first_helper,
    rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr, group: tl.constexpr, programs: tl.constexpr,
    has_bias: tl.constexpr, rest: tl.constexpr,
):  # fmt: skip
    down = M // rows if rest > 0 else tl.cdiv(M, rows)
    across = tl.cdiv(F2, columns)
    for tile in tl.range(tl.program_id(0), down * across, programs, flatten=True):
        # Neighbouring tiles share rows and columns, which then lie in the cache.
        first = tile // (group * across) * group
        size = min(down - first, group)
        i = first + (tile % (group * across)) % size
        j = (tile % (group * across)) // size
        total = tl.zeros([rows, columns], tl.float32)
        for k in tl.range(0, K // depth, num_stages=3):
            x = x_desc.load([i * rows, k * depth])
            w = w_desc.load([j * columns, k * depth])
            total = tl.dot(x, w.T, total)
        if has_bias:
            total += tl.load(bias_ptr + j * columns + tl.arange(0, columns)).to(tl.float32)[None, :]
        gate, up = tl.split(tl.reshape(total, (rows, columns // 2, 2)))
        out_desc.store([i * rows, j * (columns // 2)], (gate * tl.sigmoid(gate) * up).to(out_desc.dtype))
    if rest > 0:  # noqa: SIM102 (known when the kernel is compiled)
        if tl.program_id(0) >= first_helper:
            for j in tl.range(tl.program_id(0) - first_helper, across, programs - first_helper):
                few = tl.zeros([rest, columns], tl.float32)
                for k in tl.range(0, K // depth, num_stages=3):
                    x = x_rest_desc.load([down * rows, k * depth])
                    w = w_desc.load([j * columns, k * depth])
                    few = tl.dot(x, w.T, few)
                if has_bias:
                    few += tl.load(bias_ptr + j * columns + tl.arange(0, columns)).to(tl.float32)[None, :]
                gate, up = tl.split(tl.reshape(few, (rest, columns // 2, 2)))
                found = (gate * tl.sigmoid(gate) * up).to(out_rest_desc.dtype)
                out_rest_desc.store([down * rows, j * (columns // 2)], found)


@functools.cache
def processors(device: torch.device) -> int:
    """Number of multiprocessors of a device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def fits(x: Tensor, weight: Tensor) -> bool:
    """Tell whether the kernel takes these sizes on this device."""
    return (
        torch.cuda.get_device_capability(x.device) >= (9, 0)
        and x.shape[-1] % DEPTH == 0
        and weight.shape[0] % COLUMNS == 0
        and x.stride(-1) == 1
    )


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return silu(gate) · up of x @ weightᵀ + bias, whose columns alternate: [M, K], [2F, K] -> [M, F]."""
    (M, K), F2 = x.shape, weight.shape[0]
    out = torch.empty(M, F2 // 2, device=x.device, dtype=x.dtype)
    tiles = triton.cdiv(M, ROWS) * triton.cdiv(F2, COLUMNS)
    programs = min(processors(x.device), tiles)
    helping = helpers(M, F2 // COLUMNS, programs) if takes_kernel(x, weight, name="gated_rest") else 0
    rest = REST_ROWS if helping else 0
    launch: Any = _gated[(programs,)]
    launch(
        TensorDescriptor.from_tensor(x, [ROWS, DEPTH]),
        TensorDescriptor.from_tensor(weight, [COLUMNS, DEPTH]),
        TensorDescriptor.from_tensor(out, [ROWS, COLUMNS // 2]),
        TensorDescriptor.from_tensor(x, [REST_ROWS, DEPTH]) if helping else None,
        TensorDescriptor.from_tensor(out, [REST_ROWS, COLUMNS // 2]) if helping else None,
        bias, M, F2, K, programs - helping,
        rows=ROWS, columns=COLUMNS, depth=DEPTH, group=16, programs=programs, has_bias=bias is not None, rest=rest,
        num_warps=8,
    )  # fmt: skip
    return out


def helpers(rows: int, across: int, programs: int) -> int:
    """Return how many programs, the last ones, take the rows beyond whole tiles: those with a tile less than others.

    0 where these rows start no round of their own, are too many for half tiles, or more than two of them would fall to
    a program.
    """
    full, rest = divmod(rows, ROWS)
    tiles = full * across
    idle = -tiles % programs
    starts_round = triton.cdiv(tiles + across, programs) > triton.cdiv(tiles, programs)
    return idle if 0 < rest <= REST_ROWS and starts_round and across <= 2 * idle else 0
