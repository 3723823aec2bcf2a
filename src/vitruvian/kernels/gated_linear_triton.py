"""The first half of a SwiGLU feed-forward in one kernel: matrix product, bias and gate.

The [M, 2F] between them stays in registers. Gate and up rows alternate in the weight, so that one product holds both;
blocks stay on their processors and walk over tiles, and loads run through the bulk copy engine of Hopper chips.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

ROWS, COLUMNS, DEPTH = 128, 256, 64


@triton.jit
def _gated(
    x_desc, w_desc, out_desc, bias_ptr, M, F2, K,
    rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr, group: tl.constexpr, programs: tl.constexpr,
    has_bias: tl.constexpr,
):  # fmt: skip
    down = tl.cdiv(M, rows)
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
    launch: Any = _gated[(programs,)]
    launch(
        TensorDescriptor.from_tensor(x, [ROWS, DEPTH]),
        TensorDescriptor.from_tensor(weight, [COLUMNS, DEPTH]),
        TensorDescriptor.from_tensor(out, [ROWS, COLUMNS // 2]),
        bias, M, F2, K,
        rows=ROWS, columns=COLUMNS, depth=DEPTH, group=16, programs=programs, has_bias=bias is not None, num_warps=8,
    )  # fmt: skip
    return out
