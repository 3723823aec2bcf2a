"""Rotary position embeddings of grids.

As in DINOv3, fused with the RMS norm of queries and keys: patch centers in [-1, 1] (y, x) -> angles [N, D/2] (first y,
then x) -> cos, sin -> rotated queries and keys. Channels j and j + D/2 of a token are a pair.

As in SAM 2's memory attention: x, then y of the cells of a grid. Channels 2j and 2j + 1 are a pair. Memories of several
frames repeat the positions of one grid; tokens after them, such as object pointers, have none.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, unflatten
from torch.nn import functional as F

from vitruvian.ops.dispatch import triton_jit, use_cpu_version, use_triton
from vitruvian.ops.rms_norm import rms_norm
from vitruvian.ops.triton_import import tl, triton
from vitruvian.tensor_cache import cached_tensors

RopeTables = tuple[Tensor, Tensor]  # cosines and sines [N, D/2] in float32


def patch_centers(grid_hw: tuple[int, int], device: torch.device | None = None) -> Tensor:
    """Return the centers of an h × w grid of cells as (y, x) in [-1, 1], row by row: [h·w, 2]."""
    axes = [((torch.arange(n, device=device, dtype=torch.float32) + 0.5) / n) * 2.0 - 1.0 for n in grid_hw]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)  # [h·w, 2]


def augment_centers(
    centers: Tensor, *, shift: float | None = None, jitter: float | None = None, rescale: float | None = None
) -> Tensor:
    """Augment coordinates [N, 2] for training: a random shift and stretch for each axis, and one scale for both."""
    if shift is not None:
        centers = centers + torch.empty(2, device=centers.device).uniform_(-shift, shift)
    if jitter is not None:
        centers = centers * torch.empty(2, device=centers.device).uniform_(-math.log(jitter), math.log(jitter)).exp()
    if rescale is not None:
        log_scale = math.log(rescale)
        centers = centers * torch.empty(1, device=centers.device).uniform_(-log_scale, log_scale).exp()
    return centers


def rope_tables(centers: Tensor, *, head_dim: int, theta: float, prefix: int = 0) -> RopeTables:
    """Return cosines and sines of coordinates [N, 2], each [P + N, D/2] in float32; D must be a multiple of 4.

    The first `prefix` rows are for tokens without a position and rotate nothing.
    """
    steps = torch.arange(0, 1, 4 / head_dim, device=centers.device, dtype=torch.float32)  # [D/4]
    angles = (2 * math.pi * centers[:, :, None] / theta**steps).flatten(1)  # [N, D/2]
    angles = F.pad(angles, (0, 0, prefix, 0))  # [P + N, D/2]
    return angles.cos(), angles.sin()


def rms_norm_rope(
    x: Tensor, weight: Tensor | None, rope: RopeTables, *, eps: float = 0.0, scale: float = 1.0
) -> Tensor:
    """Normalize and rotate the heads of queries or keys: [B, N, A, D] -> [B, A, N, D].

    Channel j is paired with j + D/2.

    Args:
        x: Queries or keys; contiguous within a token.
        weight: Weight of the RMS norm [D], or None for no norm.
        rope: Cosines and sines [N, D/2].
        eps: Epsilon of the norm.
        scale: Factor on the result.
    """
    if use_triton("rope", x, *(() if weight is None else (weight,))):
        return _rms_norm_rope_triton(x, weight, rope, eps, scale)
    if weight is not None:
        x = rms_norm(x, weight, eps=eps)
    out = _rotate(x.transpose(1, 2), rope)  # [B, A, N, D]
    return out if scale == 1.0 else out * scale


def _rotate(x: Tensor, rope: RopeTables) -> Tensor:
    """Rotate tokens [..., N, D]."""
    cos, sin = (table.to(x.dtype) for table in rope)
    left, right = x.chunk(2, dim=-1)  # [..., N, D/2] each
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


@cached_tensors
def axial_rope_tables(grid_hw: tuple[int, int], head_dim: int, theta: float, device: torch.device) -> RopeTables:
    """Cosines and sines of the cells of a grid, row by row [h·w, D/2]: the x half first, then y."""
    steps = torch.arange(0, head_dim // 2, 2, dtype=torch.float32, device=device) / (head_dim // 2)  # [D/4]
    y, x = (torch.arange(side, dtype=torch.float32, device=device)[:, None] * theta**-steps for side in grid_hw)
    height, width = grid_hw
    angles = torch.cat((x.expand(height, -1, -1), y[:, None].expand(-1, width, -1)), dim=-1).flatten(0, 1)
    return angles.cos(), angles.sin()


def rotate_pairs(x: Tensor, rotation: RopeTables, *, heads: int, plain_tokens: int = 0) -> Tensor:
    """Cut tokens [B, N, A·D] into heads and rotate them: [B, A, N, D].

    Args:
        x: Queries or keys of N = T·M + S tokens.
        rotation: Cosines and sines of M cells [M, D/2].
        heads: A.
        plain_tokens: S, the number of tokens at the end that are not rotated.
    """
    if use_triton("axial_rope", x):
        return _rotate_pairs_triton(x, rotation, heads=heads, plain_tokens=plain_tokens)
    if use_cpu_version("axial_rope", x):
        return _rotate_pairs_cpu(x, rotation, heads=heads, plain_tokens=plain_tokens)
    split = unflatten(x, 2, (heads, -1)).transpose(1, 2)  # [B, A, N, D]
    cells = split.shape[2] - plain_tokens
    rotated = rotate_neighbors(unflatten(split[:, :, :cells], 2, (-1, len(rotation[0]))), rotation).flatten(2, 3)
    return torch.cat((rotated, split[:, :, cells:]), dim=2) if plain_tokens else rotated


def _rotate_pairs_cpu(x: Tensor, rotation: RopeTables, *, heads: int, plain_tokens: int) -> Tensor:
    """Rotate pairs as complex numbers, in one pass over them."""
    split = unflatten(x.contiguous(), 2, (heads, -1)).transpose(1, 2)  # [B, A, N, D]
    out = torch.empty_like(split, memory_format=torch.contiguous_format)
    cells = split.shape[2] - plain_tokens
    source, target = (_as_complex(part[:, :, :cells], len(rotation[0])) for part in (split, out))
    torch.mul(source, torch.complex(*rotation), out=target)
    out[:, :, cells:] = split[:, :, cells:]
    return out


def _as_complex(x: Tensor, cells: int) -> Tensor:
    """View pairs of channels as complex numbers: [B, A, T·M, D] -> [B, A, T, M, D/2]."""
    return torch.view_as_complex(unflatten(unflatten(x, -1, (-1, 2)), 2, (-1, cells)))


def rotate_neighbors(x: Tensor, rotation: RopeTables) -> Tensor:
    """Rotate pairs of neighboring channels of [..., M, D]; in float32, as the model was trained."""
    cos, sin = rotation
    even, odd = unflatten(x.float(), -1, (-1, 2)).unbind(-1)  # [..., M, D/2] each
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return rotated.to(x.dtype)  # [..., M, D]


# ---------------------------------------------------------------------------------------------------------- Triton


def _rms_norm_rope_triton(x: Tensor, weight: Tensor | None, rope: RopeTables, eps: float, scale: float) -> Tensor:
    B, N, A, D = x.shape
    if x.stride()[2:] != (D, 1) or x.stride(0) != N * x.stride(1):
        x = x.contiguous()
    out = torch.empty(B, A, N, D, device=x.device, dtype=x.dtype)
    block_rows = 64
    _rms_norm_rope_kernel[(triton.cdiv(B * N, block_rows), A)](
        x, out, weight, *rope, B * N, N, x.stride(1),
        heads=A, half=D // 2, padded_half=triton.next_power_of_2(D // 2), eps=eps, scale=scale,
        has_norm=weight is not None, block_rows=block_rows, num_warps=4,
    )  # fmt: skip
    return out


@triton_jit
def _rms_norm_rope_kernel(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, weight_ptr, cos_ptr, sin_ptr, rows, tokens, row_stride,
    heads: tl.constexpr, half: tl.constexpr, padded_half: tl.constexpr, eps: tl.constexpr, scale: tl.constexpr,
    has_norm: tl.constexpr, block_rows: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    channel = tl.arange(0, padded_half)
    inside = (row[:, None] < rows) & (channel[None, :] < half)
    source = x_ptr + row[:, None].to(tl.int64) * row_stride + head * (2 * half) + channel[None, :]
    left = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    angle = (row % tokens)[:, None] * half + channel[None, :]
    cos = tl.load(cos_ptr + angle, mask=inside, other=1.0)
    sin = tl.load(sin_ptr + angle, mask=inside, other=0.0)
    if has_norm:
        inv_rms = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / (2 * half) + eps)
        left_weight = tl.load(weight_ptr + channel, mask=channel < half, other=0.0).to(tl.float32)
        right_weight = tl.load(weight_ptr + half + channel, mask=channel < half, other=0.0).to(tl.float32)
        left = left * inv_rms[:, None] * left_weight[None, :]
        right = right * inv_rms[:, None] * right_weight[None, :]
    # Heads come first in the output, so that attention reads contiguous rows.
    image = (row // tokens)[:, None].to(tl.int64)
    target = out_ptr + ((image * heads + head) * tokens + (row % tokens)[:, None]) * (2 * half) + channel[None, :]
    tl.store(target, ((left * cos - right * sin) * scale).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(target + half, ((right * cos + left * sin) * scale).to(out_ptr.dtype.element_ty), mask=inside)


def _rotate_pairs_triton(x: Tensor, rotation: RopeTables, *, heads: int, plain_tokens: int) -> Tensor:
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
