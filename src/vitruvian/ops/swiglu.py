"""SwiGLU feed-forward: down(silu(gate(x)) · up(x))."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.ops.dispatch import HAS_TRITON, triton_jit, use_cpu_version, use_triton
from vitruvian.ops.triton_import import tl, triton

if HAS_TRITON:
    from triton.tools.tensor_descriptor import TensorDescriptor

_CPU_ROWS = 1024  # rows at a time on the CPU: their hidden channels stay in the cache
_CPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ROWS, _COLUMNS, _DEPTH = 128, 256, 64  # tile of the fused Triton kernel


def swiglu(x: Tensor, gate: nn.Linear, up: nn.Linear, down: nn.Linear) -> Tensor:
    """Return down(silu(gate(x)) · up(x)): [..., C] -> [..., C']. In inference on the CPU, in chunks of rows."""
    weights = gate.weight, up.weight, down.weight
    # The size is read last: a tracer would fix it.
    if not use_cpu_version("swiglu", x, *weights, dtypes=_CPU_DTYPES) or x.numel() <= _CPU_ROWS * x.shape[-1]:
        return _swiglu_torch(x, gate, up, down)
    rows = x.reshape(-1, x.shape[-1])  # [M, C]
    out = torch.cat([_swiglu_torch(part, gate, up, down) for part in torch.split(rows, _CPU_ROWS)])
    return out.view(*x.shape[:-1], -1)


def _swiglu_torch(x: Tensor, gate: nn.Linear, up: nn.Linear, down: nn.Linear) -> Tensor:
    out: Tensor = down(F.silu(gate(x)) * up(x))
    return out


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return silu(gate) · up, where the columns of x @ weightᵀ + bias alternate between gate and up.

    Args:
        x: [..., K].
        weight: Alternating rows of gate and up [2F, K].
        bias: [2F], likewise, or None.

    Returns:
        [..., F].
    """
    if use_triton("swiglu", x, weight):
        rows = x.reshape(-1, x.shape[-1])  # [M, K]
        if suits_fused_kernel(rows, weight, _DEPTH):
            out = launch_gated_linear(rows, weight, bias, depth=_DEPTH)
        else:
            out = _gate_triton(F.linear(rows, weight, bias))
        return out.view(*x.shape[:-1], -1)
    both = F.linear(x, weight, bias)  # [..., 2F]
    return F.silu(both[..., 0::2]) * both[..., 1::2]


def prefers_joined(weight: Tensor) -> bool:
    """Return whether `gated_linear` with joined weights is faster than `swiglu` on the device of a weight."""
    return weight.is_cuda


# ---------------------------------------------------------------------------------------------------------- Triton


def suits_fused_kernel(x: Tensor, weight: Tensor, depth: int) -> bool:
    """Return whether `launch_gated_linear` accepts x [..., K] and weight [2F, K], with `depth` channels of a tile.

    Tiles are loaded by tensor descriptors, which Hopper GPUs and newer have, and Triton's interpreter.
    """
    has_descriptors = x.device.type != "cuda" or torch.cuda.get_device_capability(x.device) >= (9, 0)
    whole_tiles = x.shape[-1] % depth == 0 and weight.shape[0] % _COLUMNS == 0
    return has_descriptors and whole_tiles and x.stride(-1) == 1


def launch_gated_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scales: tuple[Tensor, Tensor, Tensor] | None = None,
    *,
    depth: int,
) -> Tensor:
    """Compute silu(gate) · up from x [M, K] and weight [2F, K]: [M, F] in the dtype of x.

    `scales` are those of fp8: of the rows of x and of weight, and of the columns of the result. `depth` is the number
    of channels of a tile.
    """
    (M, K), F2 = x.shape, weight.shape[0]
    out = torch.empty(M, F2 // 2, device=x.device, dtype=x.dtype)
    programs = min(_num_multiprocessors(x.device), triton.cdiv(M, _ROWS) * triton.cdiv(F2, _COLUMNS))
    _gated_linear_kernel[(programs,)](
        TensorDescriptor.from_tensor(x, [_ROWS, depth]),
        TensorDescriptor.from_tensor(weight, [_COLUMNS, depth]),
        TensorDescriptor.from_tensor(out, [_ROWS, _COLUMNS // 2]),
        M, F2, K, bias, *(scales or (None, None, None)),
        rows=_ROWS, columns=_COLUMNS, depth=depth, group=16, programs=programs,
        has_bias=bias is not None, has_scales=scales is not None, num_warps=8,
    )  # fmt: skip
    return out


@functools.cache
def _num_multiprocessors(device: torch.device) -> int:
    """Return the number of streaming multiprocessors of a CUDA device; 2 for Triton's interpreter."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 2


@triton_jit
def _tile_position(tile, down, across, group: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row and column of a tile of a product; consecutive tiles share rows and columns, which are in the L2 cache."""
    first = tile // (group * across) * group
    size = min(down - first, group)
    return first + (tile % (group * across)) % size, (tile % (group * across)) // size


@triton_jit
def _tile_product(  # type: ignore[no-untyped-def]
    x_desc, w_desc, i, j, K, rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr
):
    """Tile (i, j) of x @ wᵀ: float32 [rows, columns]."""
    total = tl.zeros([rows, columns], tl.float32)
    for k in tl.range(0, K // depth, num_stages=3):
        x = x_desc.load([i * rows, k * depth])
        w = w_desc.load([j * columns, k * depth])
        total = tl.dot(x, w.T, total)
    return total


@triton_jit
def _gated_linear_kernel(  # type: ignore[no-untyped-def]
    x_desc, w_desc, out_desc, M, F2, K, bias_ptr, x_scale_ptr, w_scale_ptr, out_scale_ptr,
    rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr, group: tl.constexpr, programs: tl.constexpr,
    has_bias: tl.constexpr, has_scales: tl.constexpr,
):  # fmt: skip
    # Persistent: a program takes every `programs`-th tile. The [M, 2F] product stays in registers.
    down = tl.cdiv(M, rows)
    across = tl.cdiv(F2, columns)
    for tile in tl.range(tl.program_id(0), down * across, programs, flatten=True):
        i, j = _tile_position(tile, down, across, group)
        total = _tile_product(x_desc, w_desc, i, j, K, rows, columns, depth)
        n = j * columns + tl.arange(0, columns)
        if has_scales:
            m = i * rows + tl.arange(0, rows)
            total *= tl.load(x_scale_ptr + m, mask=m < M, other=0.0)[:, None]
            total *= tl.load(w_scale_ptr + n)[None, :]
        if has_bias:
            total += tl.load(bias_ptr + n).to(tl.float32)[None, :]
        gate, up = tl.split(tl.reshape(total, (rows, columns // 2, 2)))
        if has_scales:
            f = j * (columns // 2) + tl.arange(0, columns // 2)
            hidden = tl.clamp(_approximate_silu(gate) * up * tl.load(out_scale_ptr + f)[None, :], -448.0, 448.0)
        else:
            hidden = gate * tl.sigmoid(gate) * up
        out_desc.store([i * rows, j * (columns // 2)], hidden.to(out_desc.dtype))


@triton_jit
def _approximate_silu(x):  # type: ignore[no-untyped-def]
    # x · sigmoid(x) through tanh, which is one instruction. Its error of 5e-4 is far below that of fp8.
    half = 0.5 * x
    return half + half * tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [half], dtype=tl.float32, is_pure=True, pack=1
    )


def _gate_triton(both: Tensor) -> Tensor:
    """Return silu(gate) · up of alternating columns: [M, 2F] -> [M, F]."""
    out = torch.empty(len(both), both.shape[1] // 2, device=both.device, dtype=both.dtype)
    _gate_kernel[(triton.cdiv(out.numel(), 1024),)](both, out, out.numel(), block=1024, num_warps=4)
    return out


@triton_jit
def _gate_kernel(both_ptr, out_ptr, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    pair = tl.program_id(0).to(tl.int64) * (2 * block) + tl.arange(0, 2 * block)
    both = tl.load(both_ptr + pair, mask=pair < 2 * count, other=0.0).to(tl.float32)
    gate, up = tl.split(tl.reshape(both, (block, 2)))
    tl.store(out_ptr + index, (gate * tl.sigmoid(gate) * up).to(out_ptr.dtype.element_ty), mask=index < count)
