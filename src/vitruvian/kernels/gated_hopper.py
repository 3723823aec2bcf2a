"""The first half of a SwiGLU feed-forward for Hopper chips: one warp loads, two groups of warps compute.

    loader     x and weight of the next steps ──▶ ring of shared memory, by the bulk copy engine
    a group    products of its own 64 rows ─▶ gate ─▶ a buffer of its own, which the copy engine writes out

All warps of `gated_linear_triton` gate at the same time, and the matrix units of their processor wait meanwhile. Here
the loader runs ahead across tiles while groups gate their sums, and a group that gates leaves the matrix units to the
other: they meet nowhere but in the ring.

Blocks stay on their processors and walk over tiles. Tiles that would start another round for a few processors are cut
into the rows of one group each, and the rows beyond whole tiles go to blocks with a tile less than others.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs
# ruff: noqa: RUF005 (Gluon adds tuples, but does not unpack them)

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from vitruvian.kernels.gated_linear_triton import processors

PARTS, ROWS = 2, 64  # groups of four warps that compute, and the rows of a tile that each of them has
COLUMNS = 256  # of a tile, gate and up together
DEPTH, STAGES = 64, 4  # channels of a step, and steps that the ring holds

# The same for kernels, which see no plain numbers.
_PARTS, _ROWS, _COLUMNS, _DEPTH, _STAGES = (gl.constexpr(n) for n in (PARTS, ROWS, COLUMNS, DEPTH, STAGES))
_GROUP = gl.constexpr(16)  # tiles below each other that run together and share columns
_REGISTERS = gl.constexpr(232)  # of a thread that computes

# Two of gate / (1 + 2^(-gate·log2(e))) · up with one reciprocal: 1/a = b/(ab). The bound keeps ab finite, and a gate
# beyond it gives less than 1e-16 of its size.
_SILU = gl.constexpr("""{
    .reg .f32 a, b, r, s;
    mul.rn.f32 a, $2, 0fBFB8AA3B;
    mul.rn.f32 b, $3, 0fBFB8AA3B;
    min.f32 a, a, 0f42700000;
    min.f32 b, b, 0f42700000;
    ex2.approx.ftz.f32 a, a;
    ex2.approx.ftz.f32 b, b;
    add.rn.f32 a, a, 0f3F800000;
    add.rn.f32 b, b, 0f3F800000;
    mul.rn.f32 r, a, b;
    rcp.approx.ftz.f32 r, r;
    mul.rn.f32 b, b, r;
    mul.rn.f32 a, a, r;
    mul.rn.f32 r, $2, $4;
    mul.rn.f32 s, $3, $5;
    mul.rn.f32 $0, r, b;
    mul.rn.f32 $1, s, a;
}""")


@gluon.jit
def _place(t, share, programs: gl.constexpr):
    # First row, the row that ends it, and column of this program's tile t: whole tiles, pieces of tiles, rows below.
    own, whole, pieces, helpers, first_late, down, across, M = share
    late = first_late + (t - own) * helpers
    if t < own:
        tile = gl.program_id(0) + t * programs
        skipped = 0
        height = _PARTS * _ROWS
    else:
        tile = whole + late // _PARTS
        skipped = late % _PARTS * _ROWS
        height = _ROWS
    # Neighbouring tiles share rows and columns, which then lie in the cache.
    first = tile // (_GROUP * across) * _GROUP
    size = max(min(down - first, _GROUP), 1)
    if (t < own) | (late < pieces):
        row = (first + (tile % (_GROUP * across)) % size) * (_PARTS * _ROWS) + skipped
        end = row + height
        j = (tile % (_GROUP * across)) // size
    else:
        row = down * (_PARTS * _ROWS)
        end = M
        j = late - pieces
    return row, end, j


@gluon.jit
def _load(x_desc, w_desc, x_ring, w_ring, full, free, tiles, steps, share, programs: gl.constexpr):
    for t in range(tiles):
        row, _end, j = _place(t, share, programs)
        for k in range(steps):
            step = t * steps + k
            stage = step % _STAGES
            mbarrier.wait(free.index(stage), ((step // _STAGES) & 1) ^ 1)
            ready = full.index(stage)
            mbarrier.expect(ready, (_PARTS * _ROWS + _COLUMNS) * _DEPTH * 2)
            for i in gl.static_range(2):  # gate and up, beside each other here
                place = w_ring.index(stage).slice(i * (_COLUMNS // 2), _COLUMNS // 2)
                tma.async_copy_global_to_shared(w_desc, [i, j * (_COLUMNS // 2), k * _DEPTH], ready, place)
            for i in gl.static_range(_PARTS):
                place = x_ring.index(stage * _PARTS + i)
                tma.async_copy_global_to_shared(x_desc, [row + i * _ROWS, k * _DEPTH], ready, place)


@gluon.jit
def _compute(
    which: gl.constexpr, out_desc, bias_ptr, x_ring, w_ring, out_ring, full, free, tiles, steps, share,
    programs: gl.constexpr, has_bias: gl.constexpr,
):  # fmt: skip
    sums: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, _COLUMNS, 16])
    staged = out_ring.index(which)
    last = share[6] - 1  # column of tiles; the place after a program's last tile may lie further
    row, end, j = _place(0, share, programs)
    if has_bias:  # a tile ahead, two numbers a thread: nobody waits for them, and they take no room
        n = gl.arange(0, _COLUMNS, layout=gl.BlockedLayout([1], [32], [4], [0]))
        n = n % (_COLUMNS // 2) * 2 + n // (_COLUMNS // 2)
        bias = gl.load(bias_ptr + min(j, last) * _COLUMNS + n)
    for t in range(tiles):
        next_row, next_end, next_j = _place(t + 1, share, programs)
        begin = t * steps
        mine = row + which * _ROWS
        if has_bias:
            next_bias = gl.load(bias_ptr + min(next_j, last) * _COLUMNS + n)
        if mine < end:
            total = gl.zeros([_ROWS, _COLUMNS], gl.float32, sums)
            if has_bias:
                total += gl.convert_layout(bias, gl.SliceLayout(0, sums)).to(gl.float32)[None, :]
            for k in range(steps):
                step = begin + k
                here = step % _STAGES
                mbarrier.wait(full.index(here), (step // _STAGES) & 1)
                total = warpgroup_mma(
                    x_ring.index(here * _PARTS + which), w_ring.index(here).permute((1, 0)), total, is_async=True
                )
                # The products of the step before are done; those of this one go on.
                total = warpgroup_mma_wait(1, deps=[total])
                mbarrier.arrive(free.index((step + _STAGES - 1) % _STAGES), count=1, pred=k > 0)
            total = warpgroup_mma_wait(0, deps=[total])
            mbarrier.arrive(free.index((begin + steps - 1) % _STAGES), count=1)
            gate, up = gl.split(gl.permute(gl.reshape(total, [_ROWS, 2, _COLUMNS // 2]), (0, 2, 1)))
            found = gl.inline_asm_elementwise(
                _SILU, "=f,=f,f,f,f,f", [gate, up], dtype=gl.float32, is_pure=True, pack=2
            ).to(staged.dtype)
            tma.store_wait(0)  # for the tile before
            staged.store(found)
            fence_async_shared()
            tma.async_copy_shared_to_global(out_desc, [mine, j * (_COLUMNS // 2)], staged)
        else:  # no rows: let the steps pass
            for k in range(steps):
                here = (begin + k) % _STAGES
                mbarrier.wait(full.index(here), ((begin + k) // _STAGES) & 1)
                mbarrier.arrive(free.index(here), count=1)
        row = next_row
        end = next_end
        j = next_j
        if has_bias:
            bias = next_bias
    tma.store_wait(0)


_NUMBERS = ["M", "steps", "across", "whole", "pieces", "small", "helpers"]  # one kernel for all of their values


@gluon.jit(do_not_specialize=_NUMBERS)
def _gated(
    x_desc, w_desc, out_desc, bias_ptr, M, steps, across, whole, pieces, small, helpers,
    programs: gl.constexpr, has_bias: gl.constexpr,
):  # fmt: skip
    program = gl.program_id(0)
    down = M // (_PARTS * _ROWS)
    own = (whole - program + programs - 1) // programs
    first_late = (program + programs - whole % programs) % programs
    tiles = own
    if first_late < helpers:
        tiles = own + (small - first_late + helpers - 1) // helpers
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [_STAGES * _PARTS, _ROWS, _DEPTH], layout)
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [_STAGES, _COLUMNS, _DEPTH], layout)
    out_ring = gl.allocate_shared_memory(out_desc.dtype, [_PARTS, _ROWS, _COLUMNS // 2], layout)
    full = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(_STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=_PARTS)
    fence_async_shared()
    share = (own, whole, pieces, helpers, first_late, down, across, M)
    load = (x_desc, w_desc, x_ring, w_ring, full, free, tiles, steps, share)
    work = (out_desc, bias_ptr, x_ring, w_ring, out_ring, full, free, tiles, steps, share)
    # Constants, which they would not stay in a tuple with others.
    load_known: gl.constexpr = (programs,)
    work_known: gl.constexpr = (programs, has_bias)
    gl.warp_specialize(
        [
            (_compute, (0,) + work + work_known),
            (_compute, (1,) + work + work_known),
            (_load, load + load_known),
        ],
        [4, 1],
        [_REGISTERS, 24],
    )


def share_out(rows: int, across: int, programs: int) -> tuple[int, int, int, int]:
    """Return how tiles go to programs: whole ones in turns, then small ones.

    Args:
        rows: Rows of the matrix.
        across: Tiles beside each other.
        programs: Programs that run at once.

    Returns:
        Number of whole tiles, of pieces of tiles that follow, of those and the tiles that end the rows, and how many
        programs take these small ones in turns, starting with the first that would have the next whole tile.
    """
    full, rest = divmod(rows, PARTS * ROWS)
    tiles, ends = full * across, across if rest else 0
    left = tiles % programs
    pieces = left * PARTS
    if left and pieces + ends <= programs:  # at most one small tile each, rather than a whole one for some
        return tiles - left, pieces, pieces + ends, programs
    idle = -tiles % programs
    fit = idle > 0 and triton.cdiv(ends, idle) * triton.cdiv(rest, ROWS) <= PARTS
    return tiles, 0, ends, idle if fit else programs


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return silu(gate) · up of x @ weightᵀ + bias, whose columns alternate: [M, K], [2F, K] -> [M, F]."""
    (M, K), F2 = x.shape, weight.shape[0]
    out = torch.empty(M, F2 // 2, device=x.device, dtype=x.dtype)
    programs, across = processors(x.device), F2 // COLUMNS
    layout, half = (gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=rank) for rank in (2, 3))
    launch: Any = _gated[(programs,)]
    launch(
        TensorDescriptor.from_tensor(x, [ROWS, DEPTH], layout),
        TensorDescriptor.from_tensor(weight.view(-1, 2, K).transpose(0, 1), [1, COLUMNS // 2, DEPTH], half),
        TensorDescriptor.from_tensor(out, [ROWS, COLUMNS // 2], layout),
        weight if bias is None else bias,  # Gluon hands no None to groups of warps
        M, K // DEPTH, across, *share_out(M, across, programs),
        programs=programs, has_bias=bias is not None, num_warps=4,
    )  # fmt: skip
    return out


def fits(x: Tensor, weight: Tensor) -> bool:
    """Tell whether the kernel takes these tensors on this device with this Triton, whose Gluon still changes."""
    return (
        triton.__version__.startswith("3.6.")
        and torch.cuda.get_device_capability(x.device) == (9, 0)
        and x.numel() > 0
        and x.shape[1] % DEPTH == 0
        and x.shape[1] // DEPTH > STAGES  # with fewer steps no GPU has run it
        and weight.shape[0] % COLUMNS == 0
        and all(t.stride(-1) == 1 and t.stride(0) % 8 == 0 and t.data_ptr() % 16 == 0 for t in (x, weight))
    )
