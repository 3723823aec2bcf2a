"""Mask logits from the cells of an image: upscale fourfold, add finer features, score each pixel for each mask vector.

    cells [B, P, M, C] ─ 2×2 up, + finer, norm, act ─▶ [B, P, M·4, C'] ─ 2×2 up, + finest, act ─▶ [B, P, M·16, C'']
    · vectors [B, P, K, C''] ─▶ mask logits [B, P, K, 4h, 4w]

A 2×2 transposed convolution of stride 2 is a linear layer on each cell. Pixels therefore stay sorted by cell (the four
quarters of a cell, row by row, then the four quarters of each), and only the finished masks are put in image order.
The Triton version keeps the upscaled features in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn, unflatten
from torch.nn import functional as F

from vitruvian.ops.dispatch import triton_jit, use_triton
from vitruvian.ops.triton_import import tl, triton

_CPU_STRIP_BYTES = 1 << 20  # upscaled features that stay in the cache of a CPU
_PADDED_MASKS = 16  # columns of the last product
# Two warps, so that Triton compiles to the matrix instructions of one warp. Its asynchronous instructions of four warps
# access illegal memory in chains of small products on Hopper GPUs (Triton 3.6; issues 10486 and 11366 of
# triton-lang/triton).
_BLOCK_CELLS, _WARPS = 32, 2


class UpscalingLayers(NamedTuple):
    """The layers of the upscaling.

    Attributes:
        conv1: First upscaling C -> C', 2×2 with stride 2.
        norm: Layer norm over C'.
        conv2: Second upscaling C' -> C''.
        act: Activation after the norm and after the second upscaling.
    """

    conv1: nn.ConvTranspose2d
    norm: nn.LayerNorm
    conv2: nn.ConvTranspose2d
    act: Callable[[Tensor], Tensor]


def upscale_masks(
    cells: Tensor, finer: Tensor, finest: Tensor, vectors: Tensor, layers: UpscalingLayers, grid_hw: tuple[int, int]
) -> Tensor:
    """Return mask logits [B, P, K, 4h, 4w].

    Args:
        cells: Cells of the image of each prompt [B, P, M, C], M = h·w.
        finer: Features of twice the resolution, from `pixels_by_cell` with `conv1` [B, M·4, C'].
        finest: Features of four times the resolution, from `pixels_by_cell` with `conv2` [B, M·16, C''].
        vectors: One vector a mask [B, P, K, C''].
        layers: The layers; the biases of the convolutions are in `finer` and `finest`.
        grid_hw: h and w.
    """
    conv1, norm, conv2, act = layers
    sizes = (conv1.in_channels, conv1.out_channels, conv2.out_channels)
    supported = act is F.gelu and vectors.shape[2] <= _PADDED_MASKS and set(sizes) <= {16, 32, 64, 128, 256}
    if supported and use_triton("mask_upscaling", cells, finer, finest, vectors, norm.weight):
        return _upscale_masks_triton(cells, finer, finest, vectors, layers, grid_hw)
    step = cells.shape[2]
    if cells.device.type == "cpu":
        step = max(1, _CPU_STRIP_BYTES // (2 * cells[:, :, 0].nbytes))  # a cell has 16 pixels of an eighth of C
    B, P, K, C = vectors.shape
    strips = []
    for first in range(0, cells.shape[2], step):
        # The sums are the largest tensors here, so they are computed in place.
        x = _upscale(cells[:, :, first : first + step], conv1)  # [B, P, m·4, C']
        x = act(norm(x.add_(finer[:, None, 4 * first : 4 * (first + step)])))
        x = act(_upscale(x, conv2).add_(finest[:, None, 16 * first : 16 * (first + step)]))  # [B, P, m·16, C'']
        strips.append(torch.bmm(vectors.view(B * P, K, C), x.flatten(0, 1).transpose(1, 2)))  # [B·P, K, m·16]
    masks = torch.cat(strips, dim=-1).view(B, P, K, *grid_hw, 2, 2, 2, 2)  # [B, P, K, h, w, y, x, y', x']
    return masks.permute(0, 1, 2, 3, 5, 7, 4, 6, 8).reshape(B, P, K, 4 * grid_hw[0], 4 * grid_hw[1])


def peak_memory_factor(cells: Tensor) -> int:
    """Return the peak memory of a prompt in two-way attention and `upscale_masks`, in multiples of its cells [M, C]."""
    has_kernels = use_triton("two_way_attention", cells) and use_triton("mask_upscaling", cells)
    return 3 if has_kernels else 6  # kernels need no intermediate tensors


def pixels_by_cell(level: Tensor, grid_hw: tuple[int, int], conv: nn.ConvTranspose2d) -> Tensor:
    """Sort the pixels of a feature level [B, C, h·2ⁿ, w·2ⁿ] by cell and add the bias of `conv`: [B, M·4ⁿ, C]."""
    n = (level.shape[2] // grid_hw[0]).bit_length() - 1
    split = unflatten(level, 3, (grid_hw[1], *(2,) * n))  # [B, C, H, w, 2…]
    split = unflatten(split, 2, (grid_hw[0], *(2,) * n))  # [B, C, h, 2…, w, 2…]
    quarters = [axis for i in range(1, n + 1) for axis in (2 + i, 3 + n + i)]
    pixels = split.permute(0, 2, 3 + n, *quarters, 1).flatten(1, -2)  # [B, M·4ⁿ, C]
    return pixels if conv.bias is None else pixels + conv.bias


def _upscale(x: Tensor, conv: nn.ConvTranspose2d) -> Tensor:
    """Apply a 2×2 transposed convolution of stride 2, without its bias, to cells: [..., M, C] to [..., M·4, C']."""
    out = F.linear(x, conv.weight.permute(2, 3, 1, 0).flatten(0, 2))  # [..., M, 4·C']
    return unflatten(out, -1, (4, -1)).flatten(-3, -2)  # [..., M·4, C']


# ---------------------------------------------------------------------------------------------------------- Triton


def _upscale_masks_triton(
    cells: Tensor, finer: Tensor, finest: Tensor, vectors: Tensor, layers: UpscalingLayers, grid_hw: tuple[int, int]
) -> Tensor:
    conv1, norm, conv2, _ = layers
    (B, P, _, C), K = cells.shape, vectors.shape[2]
    height, width = grid_hw
    out = torch.empty(B, P, K, 4 * height, 4 * width, device=cells.device, dtype=cells.dtype)
    weight1, weight2 = (conv.weight.permute(2, 3, 0, 1).contiguous() for conv in (conv1, conv2))  # [2, 2, C, C']
    _upscale_masks_kernel[(triton.cdiv(height * width, _BLOCK_CELLS), B * P)](
        cells.contiguous(), weight1, finer.contiguous(), norm.weight, norm.bias, weight2, finest.contiguous(),
        vectors.contiguous(), out, P, height, width,
        channels=C, middle=conv1.out_channels, small=conv2.out_channels, masks=K, padded_masks=_PADDED_MASKS,
        block_cells=_BLOCK_CELLS, eps=norm.eps, num_warps=_WARPS,
    )  # fmt: skip
    return out


@triton_jit
def _gelu(x):  # type: ignore[no-untyped-def]
    return 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))


@triton_jit
def _upscale_masks_kernel(  # type: ignore[no-untyped-def]
    cells_ptr, weight1_ptr, finer_ptr, norm_weight_ptr, norm_bias_ptr, weight2_ptr, finest_ptr, vectors_ptr, out_ptr,
    prompts, height, width,
    channels: tl.constexpr, middle: tl.constexpr, small: tl.constexpr, masks: tl.constexpr,
    padded_masks: tl.constexpr, block_cells: tl.constexpr, eps: tl.constexpr,
):  # fmt: skip
    prompt = tl.program_id(1).to(tl.int64)
    count = height * width
    cell = tl.program_id(0) * block_cells + tl.arange(0, block_cells)
    inside = cell < count
    c = tl.arange(0, channels)
    j = tl.arange(0, middle)
    k = tl.arange(0, small)
    mask = tl.arange(0, padded_masks)
    cell_offset = (prompt * count + cell)[:, None] * channels + c[None, :]
    cells = tl.load(cells_ptr + cell_offset, mask=inside[:, None], other=0.0)
    vector_offset = (prompt * masks + mask)[None, :] * small + k[:, None]
    vectors = tl.load(vectors_ptr + vector_offset, mask=(mask < masks)[None, :], other=0.0)
    norm_weight = tl.load(norm_weight_ptr + j).to(tl.float32)
    norm_bias = tl.load(norm_bias_ptr + j).to(tl.float32)
    image_cell = (prompt // prompts) * count + cell
    pixel = (cell // width) * (4 * width * 4) + (cell % width) * 4  # first pixel of the cell
    for quarter in tl.range(0, 4, num_stages=1):
        weight1 = tl.load(weight1_ptr + quarter * (channels * middle) + c[:, None] * middle + j[None, :])
        finer = finer_ptr + (image_cell * 4 + quarter)[:, None] * middle + j[None, :]
        x = tl.dot(cells, weight1) + tl.load(finer, mask=inside[:, None], other=0.0).to(tl.float32)
        mean = tl.sum(x, 1) / middle
        centered = x - mean[:, None]
        inv_std = tl.rsqrt(tl.sum(centered * centered, 1) / middle + eps)
        x = _gelu(centered * inv_std[:, None] * norm_weight[None, :] + norm_bias[None, :]).to(cells.dtype)
        for sixteenth in tl.static_range(4):
            weight2 = tl.load(weight2_ptr + sixteenth * (middle * small) + j[:, None] * small + k[None, :])
            finest = finest_ptr + (image_cell * 16 + quarter * 4 + sixteenth)[:, None] * small + k[None, :]
            y = _gelu(tl.dot(x, weight2) + tl.load(finest, mask=inside[:, None], other=0.0).to(tl.float32))
            logits = tl.dot(y.to(cells.dtype), vectors)  # [block_cells, padded_masks]
            step = (2 * (quarter // 2) + sixteenth // 2) * (4 * width) + 2 * (quarter % 2) + sixteenth % 2
            out_offset = (prompt * masks + mask)[None, :] * (16 * count) + (pixel + step)[:, None]
            in_masks = inside[:, None] & (mask < masks)[None, :]
            tl.store(out_ptr + out_offset, logits.to(out_ptr.dtype.element_ty), mask=in_masks)
