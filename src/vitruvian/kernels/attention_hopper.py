"""Bounded attention for Hopper chips: one warp loads, three or four groups of warps compute, each at its own pace.

What limits attention with heads of 64 channels is the unit for exponentials: it needs as long as both matrix products.
The time is the sum of the two unless they overlap, and groups of warps that wait for each other at every tile, as
those of `attention_triton` do, hardly overlap. Here

    loader     K and V tiles ──▶ ring of shared memory, by the bulk copy engine
    a group    scores of the next tile and values of this one queued together ─▶ exponentials of the next meanwhile

and no group waits for another but through the ring. As in `attention_triton`, softmax has no maximum: queries and keys
are normalised, and queries carry the factor log2(e) / √D. The query heads that share a key head are rows of one
matrix, so that fewer tiles are part empty.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs
# ruff: noqa: RUF005 (Gluon adds tuples, but does not unpack them)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from vitruvian.kernels.attention import Tiling

HEAD_DIM = 64
GROUP_ROWS = 64  # of four warps: the rows of a matrix instruction
REGISTERS = {2: 232, 3: 160, 4: 112}  # of a thread that computes, for so many groups on a processor

# 2^x on the multiply-add units: x = n + f, a polynomial for 2^f with |f| ≤ 1/2 (off by 8e-5 at most), n into the
# exponent.
_POLYNOMIAL = """
    add.rn.f32 t, {x}, 0f4B400000;
    sub.rn.f32 n, t, 0f4B400000;
    sub.rn.f32 f, {x}, n;
    fma.rn.f32 p, f, 0f3D61FB95, 0f3E786F0C;
    fma.rn.f32 p, p, f, 0f3F31798E;
    fma.rn.f32 p, p, f, 0f3F7FFB49;
    mov.b32 a, t;
    mov.b32 b, p;
    shl.b32 a, a, 23;
    add.s32 b, a, b;
    mov.b32 {y}, b;"""
_UNIT = "\n    ex2.approx.ftz.f32 {y}, {x};"


def _four(polynomials: int) -> gl.constexpr:
    """PTX for four exponentials, the last of them as polynomials."""
    lines = [(_POLYNOMIAL if i >= 4 - polynomials else _UNIT).format(x=f"${i + 4}", y=f"${i}") for i in range(4)]
    return gl.constexpr("{\n    .reg .f32 t, n, f, p;\n    .reg .b32 a, b;" + "".join(lines) + "\n}")


_ONE_OF_FOUR, _TWO_OF_FOUR = _four(1), _four(2)


@gluon.jit
def _exp2(x, polynomials: gl.constexpr):
    if polynomials == 0:
        return gl.exp2(x)
    code: gl.constexpr = _ONE_OF_FOUR if polynomials == 1 else _TWO_OF_FOUR
    return gl.inline_asm_elementwise(code, "=f,=f,=f,=f,f,f,f,f", [x], dtype=gl.float32, is_pure=True, pack=4)


@gluon.jit
def _fold(p, rows: gl.constexpr, columns: gl.constexpr):
    # Sums of columns that one thread holds; the rest is added up at the end.
    return gl.sum(gl.reshape(p, [rows, columns // 8, 8]), axis=1)


@gluon.jit
def _step(
    j, q, k_ring, v_ring, k_full, k_free, v_full, v_free, weights, out, total, none,
    operand: gl.constexpr, rows: gl.constexpr, columns: gl.constexpr, stages: gl.constexpr,
    polynomials: gl.constexpr,
):  # fmt: skip
    # Queue the scores of tile j and the values of the tile before it; exponentials of j while the values are summed.
    ahead = j % stages
    here = (j - 1) % stages
    mbarrier.wait(k_full.index(ahead), (j // stages) & 1)
    s = warpgroup_mma(q, k_ring.index(ahead).permute((1, 0)), none, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(here), ((j - 1) // stages) & 1)
    o = warpgroup_mma(weights, v_ring.index(here), out, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    p = _exp2(s, polynomials)
    total += _fold(p, rows, columns)
    weights = gl.convert_layout(p.to(v_ring.dtype), operand)
    out, weights = warpgroup_mma_wait(0, deps=[o, weights])
    mbarrier.arrive(k_free.index(ahead), count=1)
    mbarrier.arrive(v_free.index(here), count=1)
    return weights, out, total


@gluon.jit
def _compute(
    which: gl.constexpr, q_ring, k_ring, v_ring, q_full, k_full, k_free, v_full, v_free,
    o_ptr, tokens, blocks, batch, first_row, all_rows, first_head,
    heads: gl.constexpr, head_dim: gl.constexpr, rows: gl.constexpr, columns: gl.constexpr, stages: gl.constexpr,
    polynomials: gl.constexpr, unrolled: gl.constexpr, q_bytes: gl.constexpr, o_bytes: gl.constexpr,
):  # fmt: skip
    scores: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 32 // q_bytes]
    )
    values: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, head_dim, 16]
    )
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=values, k_width=2)
    run: gl.constexpr = 16 // o_bytes  # of values that a thread writes
    lines: gl.constexpr = gl.BlockedLayout([1, run], [32 * run // head_dim, head_dim // run], [4, 1], [1, 0])
    mine = first_row + which * rows
    if mine < all_rows:
        none = gl.zeros([rows, columns], gl.float32, scores)
        out = gl.zeros([rows, head_dim], gl.float32, values)
        q = q_ring.index(which)
        mbarrier.wait(q_full, 0)
        mbarrier.wait(k_full.index(0), 0)
        s = warpgroup_mma(q, k_ring.index(0).permute((1, 0)), none, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(k_free.index(0), count=1)
        # The first tile is the last one of the keys, which may reach beyond them.
        n = (blocks - 1) * columns + gl.arange(0, columns, layout=gl.SliceLayout(0, scores))
        p = gl.where((n < tokens)[None, :], gl.exp2(s), 0.0)
        total = _fold(p, rows, columns)
        weights = gl.convert_layout(p.to(v_ring.dtype), operand)
        if unrolled:  # weights in use and weights in the making have registers of their own
            for j in range(1, blocks - 1, 2):
                for i in gl.static_range(2):
                    weights, out, total = _step(
                        j + i, q, k_ring, v_ring, k_full, k_free, v_full, v_free, weights, out, total, none,
                        operand, rows, columns, stages, polynomials,
                    )  # fmt: skip
            if blocks % 2 == 0:
                weights, out, total = _step(
                    blocks - 1, q, k_ring, v_ring, k_full, k_free, v_full, v_free, weights, out, total, none,
                    operand, rows, columns, stages, polynomials,
                )  # fmt: skip
        else:
            for j in range(1, blocks):
                weights, out, total = _step(
                    j, q, k_ring, v_ring, k_full, k_free, v_full, v_free, weights, out, total, none,
                    operand, rows, columns, stages, polynomials,
                )  # fmt: skip
        here = (blocks - 1) % stages
        mbarrier.wait(v_full.index(here), ((blocks - 1) // stages) & 1)
        o = warpgroup_mma(weights, v_ring.index(here), out, is_async=True)
        out = warpgroup_mma_wait(0, deps=[o])
        whole = gl.convert_layout(gl.sum(total, axis=1), gl.SliceLayout(1, values))
        done = gl.convert_layout((out / whole[:, None]).to(o_ptr.dtype.element_ty), lines)
        r = mine + gl.arange(0, rows, layout=gl.SliceLayout(1, lines))
        d = gl.arange(0, head_dim, layout=gl.SliceLayout(0, lines))
        start = o_ptr + batch.to(gl.int64) * tokens * (heads * head_dim)
        place = ((r % tokens) * heads + first_head + r // tokens)[:, None] * head_dim + d[None, :]
        gl.store(start + place, done, mask=(r < all_rows)[:, None])
    else:  # no rows: let the tiles pass
        for j in range(blocks):
            here = j % stages
            mbarrier.wait(k_full.index(here), (j // stages) & 1)
            mbarrier.arrive(k_free.index(here), count=1)
            mbarrier.wait(v_full.index(here), (j // stages) & 1)
            mbarrier.arrive(v_free.index(here), count=1)


@gluon.jit
def _load(
    q_desc, k_desc, v_desc, q_ring, k_ring, v_ring, q_full, k_full, k_free, v_full, v_free,
    batch, group, first_row, blocks,
    parts: gl.constexpr, head_dim: gl.constexpr, rows: gl.constexpr, columns: gl.constexpr, stages: gl.constexpr,
    q_bytes: gl.constexpr,
):  # fmt: skip
    mbarrier.expect(q_full, parts * rows * head_dim * q_bytes)
    for i in gl.static_range(parts):
        tma.async_copy_global_to_shared(q_desc, [batch, group, first_row + i * rows, 0], q_full, q_ring.index(i))
    for j in range(blocks):
        stage = j % stages
        turn = ((j // stages) & 1) ^ 1
        tile = (j + blocks - 1) % blocks * columns  # the last tile first
        mbarrier.wait(k_free.index(stage), turn)
        mbarrier.expect(k_full.index(stage), columns * head_dim * q_bytes)
        tma.async_copy_global_to_shared(k_desc, [batch, group, tile, 0], k_full.index(stage), k_ring.index(stage))
        mbarrier.wait(v_free.index(stage), turn)
        mbarrier.expect(v_full.index(stage), columns * head_dim * 2)
        tma.async_copy_global_to_shared(v_desc, [batch, group, tile, 0], v_full.index(stage), v_ring.index(stage))


@gluon.jit
def _attend(
    q_desc, k_desc, v_desc, o_ptr, tokens, full, first_rest,
    heads: gl.constexpr, groups: gl.constexpr, head_dim: gl.constexpr, rows: gl.constexpr, columns: gl.constexpr,
    stages: gl.constexpr, parts: gl.constexpr, registers: gl.constexpr, polynomials: gl.constexpr,
    unrolled: gl.constexpr, q_bytes: gl.constexpr, o_bytes: gl.constexpr,
):  # fmt: skip
    # Whole tiles of rows come first, the rests of all heads last: short ones then fill the gaps at the end.
    program = gl.program_id(0)
    if program < first_rest:
        one = program // full
        first_row = program % full * (parts * rows)
    else:
        one = program - first_rest
        first_row = full * (parts * rows)
    kv_heads: gl.constexpr = heads // groups
    batch = one // kv_heads
    group = one % kv_heads
    blocks = gl.cdiv(tokens, columns)
    narrow: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=64 * q_bytes, element_bitwidth=8 * q_bytes, rank=2)
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    q_ring = gl.allocate_shared_memory(q_desc.dtype, [parts, rows, head_dim], narrow)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [stages, columns, head_dim], narrow)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [stages, columns, head_dim], layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    for i in gl.static_range(stages):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_free.index(i), count=parts)
        mbarrier.init(v_free.index(i), count=parts)
    fence_async_shared()
    rings = (q_ring, k_ring, v_ring, q_full, k_full, k_free, v_full, v_free)
    place = (o_ptr, tokens, blocks, batch, first_row, groups * tokens, group * groups)
    load = (q_desc, k_desc, v_desc) + rings + (batch, group, first_row, blocks)
    sizes: gl.constexpr = (heads, head_dim, rows, columns, stages, polynomials, unrolled, q_bytes, o_bytes)
    tiles: gl.constexpr = (parts, head_dim, rows, columns, stages, q_bytes)
    if parts == 2:
        gl.warp_specialize(
            [
                (_compute, (0,) + rings + place + sizes),
                (_compute, (1,) + rings + place + sizes),
                (_load, load + tiles),
            ],
            [4, 1],
            [registers, 24],
        )
    elif parts == 3:
        gl.warp_specialize(
            [
                (_compute, (0,) + rings + place + sizes),
                (_compute, (1,) + rings + place + sizes),
                (_compute, (2,) + rings + place + sizes),
                (_load, load + tiles),
            ],
            [4, 4, 1],
            [registers, registers, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_compute, (0,) + rings + place + sizes),
                (_compute, (1,) + rings + place + sizes),
                (_compute, (2,) + rings + place + sizes),
                (_compute, (3,) + rings + place + sizes),
                (_load, load + tiles),
            ],
            [4, 4, 4, 1],
            [registers, registers, registers, 24],
        )


def attend_bounded(q: Tensor, k: Tensor, v: Tensor, tiling: Tiling, *, dtype: torch.dtype | None = None) -> Tensor:
    """Attend from [B, A, N, D] to [B, G, N, D]: [B, N, A, D], contiguous. See `fits` for what it takes.

    Queries and keys may be 8 bits wide, and so may the result be: `dtype`, that of the values by default.
    """
    (B, A, N, D), G = q.shape, k.shape[1]
    out = torch.empty(B, N, A, D, device=q.device, dtype=dtype or v.dtype)
    groups, rows = A // G, tiling.parts * GROUP_ROWS
    joined = q.as_strided((B, G, groups * N, D), (q.stride(0), groups * q.stride(1), q.stride(2), 1))
    full, rest = divmod(groups * N, rows)
    wide = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    size = q.element_size()
    tile = gl.NVMMASharedLayout(swizzle_byte_width=64 * size, element_bitwidth=8 * size, rank=4)
    launch: Any = _attend[(B * G * (full + (rest > 0)),)]
    launch(
        TensorDescriptor.from_tensor(joined, [1, 1, GROUP_ROWS, D], tile),
        TensorDescriptor.from_tensor(k, [1, 1, tiling.columns, D], tile),
        TensorDescriptor.from_tensor(v, [1, 1, tiling.columns, D], wide),
        out, N, full, B * G * full,
        heads=A, groups=groups, head_dim=D, rows=GROUP_ROWS, columns=tiling.columns, stages=tiling.stages,
        parts=tiling.parts, registers=REGISTERS[tiling.parts], polynomials=tiling.polynomials,
        unrolled=tiling.unrolled, q_bytes=size, o_bytes=out.element_size(), num_warps=4,
    )  # fmt: skip
    return out


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Tell whether the kernel takes these tensors on this device with this Triton, whose Gluon still changes."""
    return (
        triton.__version__.startswith("3.6.")
        and torch.cuda.get_device_capability(q.device) == (9, 0)
        and q.shape[-1] == HEAD_DIM
        and q.stride(1) == q.shape[2] * q.stride(2)  # heads that share keys follow each other
        and all(x.stride(-1) == 1 and x.data_ptr() % 16 == 0 for x in (q, k, v))
        and all(stride * x.element_size() % 16 == 0 for x in (q, k, v) for stride in x.stride()[:-1])
    )
