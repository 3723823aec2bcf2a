"""Rotary positions of neighbouring channels, as in SAM 2's memory attention: x, then y of the cells of a grid.

Channels 2j and 2j + 1 of a token are a pair. Memories of several frames have the positions of one grid again and again;
tokens after them, such as object pointers, have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, unflatten

from vitruvian.ops.dispatch import HAS_TRITON, triton_jit, use_cpu, use_triton
from vitruvian.tensor_cache import cached_tensors

if HAS_TRITON or TYPE_CHECKING:
    import triton
    import triton.language as tl

Rotation = tuple[Tensor, Tensor]  # cosines and sines [M, D/2] in float32


@cached_tensors
def axial_rotation(grid_hw: tuple[int, int], head_dim: int, theta: float, device: torch.device) -> Rotation:
    """Cosines and sines of the cells of a grid, row by row [h·w, D/2]: the x half first, then y."""
    steps = torch.arange(0, head_dim // 2, 2, dtype=torch.float32, device=device) / (head_dim // 2)  # [D/4]
    y, x = (torch.arange(side, dtype=torch.float32, device=device)[:, None] * theta**-steps for side in grid_hw)
    height, width = grid_hw
    angles = torch.cat((x.expand(height, -1, -1), y[:, None].expand(-1, width, -1)), dim=-1).flatten(0, 1)
    return angles.cos(), angles.sin()


def rotate_pairs(x: Tensor, rotation: Rotation, *, heads: int, plain_tokens: int = 0) -> Tensor:
    """Cut tokens [B, N, A·D] into heads and rotate them: [B, A, N, D].

    Args:
        x: Queries or keys of N = K·M + P tokens.
        rotation: Cosines and sines of M cells [M, D/2].
        heads: A.
        plain_tokens: P, the number of tokens at the end that are not rotated.
    """
    if use_triton("axial_rope", x):
        return _rotate_pairs_triton(x, rotation, heads=heads, plain_tokens=plain_tokens)
    if use_cpu("axial_rope", x):
        return _rotate_pairs_cpu(x, rotation, heads=heads, plain_tokens=plain_tokens)
    split = unflatten(x, 2, (heads, -1)).transpose(1, 2)  # [B, A, N, D]
    cells = split.shape[2] - plain_tokens
    rotated = _rotate(unflatten(split[:, :, :cells], 2, (-1, len(rotation[0]))), rotation).flatten(2, 3)
    return torch.cat((rotated, split[:, :, cells:]), dim=2) if plain_tokens else rotated


def _rotate_pairs_cpu(x: Tensor, rotation: Rotation, *, heads: int, plain_tokens: int) -> Tensor:
    """Rotate pairs as complex numbers, in one pass over them."""
    split = unflatten(x.contiguous(), 2, (heads, -1)).transpose(1, 2)  # [B, A, N, D]
    out = torch.empty_like(split, memory_format=torch.contiguous_format)
    cells = split.shape[2] - plain_tokens
    source, target = (_as_complex(part[:, :, :cells], len(rotation[0])) for part in (split, out))
    torch.mul(source, torch.complex(*rotation), out=target)
    out[:, :, cells:] = split[:, :, cells:]
    return out


def _as_complex(x: Tensor, cells: int) -> Tensor:
    """View pairs of channels as complex numbers: [B, A, K·M, D] -> [B, A, K, M, D/2]."""
    return torch.view_as_complex(unflatten(unflatten(x, -1, (-1, 2)), 2, (-1, cells)))


def _rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate pairs of neighbouring channels of [..., M, D]; in float32, as the model was trained."""
    cos, sin = rotation
    even, odd = unflatten(x.float(), -1, (-1, 2)).unbind(-1)  # [..., M, D/2] each
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return rotated.to(x.dtype)  # [..., M, D]


# ---------------------------------------------------------------------------------------------------------- Triton


def _rotate_pairs_triton(x: Tensor, rotation: Rotation, *, heads: int, plain_tokens: int) -> Tensor:
    x = x if x.stride(2) == 1 else x.contiguous()
    B, N, width = x.shape
    half = width // heads // 2
    out = torch.empty(B, heads, N, 2 * half, device=x.device, dtype=x.dtype)
    block_rows = 16
    _rotate_pairs_kernel[(triton.cdiv(N, block_rows), heads, B)](
        x, out, *rotation, N, N - plain_tokens, len(rotation[0]), *x.stride()[:2],
        heads=heads, half=half, padded_half=triton.next_power_of_2(half), block_rows=block_rows, num_warps=4,
    )  # fmt: skip
    return out


@triton_jit
def _rotate_pairs_kernel(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, cos_ptr, sin_ptr, tokens, rotated_tokens, cells, x_batch, x_token,
    heads: tl.constexpr, half: tl.constexpr, padded_half: tl.constexpr, block_rows: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    pair = tl.arange(0, padded_half)
    inside = (row < tokens)[:, None] & (pair < half)[None, :]
    source = x_ptr + batch * x_batch + row[:, None] * x_token + head * (2 * half) + 2 * pair[None, :]
    even = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(source + 1, mask=inside, other=0.0).to(tl.float32)
    angle = (row % cells)[:, None] * half + pair[None, :]
    is_rotated = inside & (row < rotated_tokens)[:, None]
    cos = tl.load(cos_ptr + angle, mask=is_rotated, other=1.0)
    sin = tl.load(sin_ptr + angle, mask=is_rotated, other=0.0)
    target = out_ptr + ((batch * heads + head) * tokens + row[:, None]) * (2 * half) + 2 * pair[None, :]
    tl.store(target, (even * cos - odd * sin).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(target + 1, (even * sin + odd * cos).to(out_ptr.dtype.element_ty), mask=inside)
