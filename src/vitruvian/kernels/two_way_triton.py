"""The two attentions between a prompt's few tokens and its image, with the image read once and written once.

The projections of the image are folded into the tokens (see `models.sam2.two_way`), so that both work on the image's
cells as they are: [M, C] a prompt, or one for all prompts of a picture.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitruvian.ops.split_softmax import merge_splits, split_keys

MOST_COLUMNS = 128  # heads × tokens of a prompt; more do not fit the registers
CHANNELS = (32, 64, 128, 256)


@triton.jit
def _look(
    q_ptr, image_ptr, places_ptr, out_ptr, reach_ptr,
    cells, count, size, prompts, image_batch, image_prompt, total_rows,
    channels: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    LOG2E: tl.constexpr = 1.4426950408889634
    one = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    a = tl.program_id(2) * rows + tl.arange(0, rows)
    c = tl.arange(0, channels)
    q = tl.load(q_ptr + (one * count + a)[:, None] * channels + c[None, :], mask=(a < count)[:, None], other=0.0)
    image = image_ptr + (one // prompts) * image_batch + (one % prompts) * image_prompt
    out = tl.zeros([rows, channels], tl.float32)
    total = tl.zeros([rows], tl.float32)
    most = tl.full([rows], float("-inf"), tl.float32)
    last = tl.minimum((split + 1) * size, cells)
    for first in tl.range(split * size, last, columns):
        n = first + tl.arange(0, columns)
        there = n < last
        at = n[:, None] * channels + c[None, :]
        x = tl.load(image + at, mask=there[:, None], other=0.0)
        placed = (x.to(tl.float32) + tl.load(places_ptr + at, mask=there[:, None], other=0.0).to(tl.float32)).to(
            x.dtype
        )
        scores = tl.where(there[None, :], tl.dot(q, tl.trans(placed)) * LOG2E, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        p = tl.math.exp2(scores - higher[:, None])
        factor = tl.math.exp2(most - higher)
        total = total * factor + tl.sum(p, 1)
        out = tl.dot(p.to(x.dtype), x, out * factor[:, None])
        most = higher
    row = split * total_rows + one * count + a
    out = out / total[:, None]
    tl.store(
        out_ptr + row[:, None] * channels + c[None, :], out.to(out_ptr.dtype.element_ty), mask=(a < count)[:, None]
    )
    tl.store(reach_ptr + row, most + tl.log2(total), mask=a < count)


def look(folded: Tensor, image: Tensor, places: Tensor) -> Tensor:
    """Let folded queries [B, P, R, C] look at cells [B, P | 1, M, C] placed at [M, C]: [B, P, R, C]."""
    (B, P, R, C), M = folded.shape, image.shape[2]
    rows, columns = max(16, min(64, triton.next_power_of_2(R))), 32
    down = triton.cdiv(R, rows)
    splits, size = split_keys(M, B * P * down, multiple=columns, least=8 * columns)
    kind = folded.dtype if splits == 1 else torch.float32
    parts = torch.empty(splits, B * P * R, C, device=folded.device, dtype=kind)
    reach = torch.empty(splits, B * P * R, device=folded.device, dtype=torch.float32)
    launch: Any = _look[(B * P, splits, down)]
    launch(
        folded, image, places, parts, reach,
        M, R, size, P, image.stride(0), image.stride(1) if image.shape[1] > 1 else 0, B * P * R,
        channels=C, rows=rows, columns=columns, num_warps=8 if rows == 64 else 4, num_stages=2,
    )  # fmt: skip
    out = parts[0] if splits == 1 else merge_splits(parts, reach, folded.dtype)
    return out.view(B, P, R, C)


@triton.jit
def _answer(
    image_ptr, places_ptr, folded_ptr, bias_ptr, spoken_ptr, weight_ptr, shift_ptr, out_ptr,
    cells, tokens, prompts, image_batch, image_prompt,
    heads: tl.constexpr, slots: tl.constexpr, channels: tl.constexpr, rows: tl.constexpr, eps: tl.constexpr,
):  # fmt: skip
    LOG2E: tl.constexpr = 1.4426950408889634
    columns: tl.constexpr = heads * slots
    one = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * rows + tl.arange(0, rows)
    c = tl.arange(0, channels)
    here = (m < cells)[:, None]
    image = image_ptr + (one // prompts) * image_batch + (one % prompts) * image_prompt
    at = m[:, None] * channels + c[None, :]
    x = tl.load(image + at, mask=here, other=0.0)
    placed = (x.to(tl.float32) + tl.load(places_ptr + at, mask=here, other=0.0).to(tl.float32)).to(x.dtype)
    j = tl.arange(0, columns)
    real = j % slots < tokens
    row = one * heads * tokens + j // slots * tokens + j % slots
    folded = tl.load(folded_ptr + row[None, :] * channels + c[:, None], mask=real[None, :], other=0.0)
    bias = tl.load(bias_ptr + row, mask=real, other=0.0).to(tl.float32)
    scores = (tl.dot(placed, folded) + bias[None, :]) * LOG2E
    scores = tl.reshape(tl.where(real[None, :], scores, float("-inf")), [rows, heads, slots])
    p = tl.math.exp2(scores - tl.max(scores, 2)[:, :, None])
    p = tl.reshape(p / tl.sum(p, 2)[:, :, None], [rows, columns])
    spoken = tl.load(spoken_ptr + row[:, None] * channels + c[None, :], mask=real[:, None], other=0.0)
    # Read again: holding the cells in registers all the while would crowd out what the products need.
    out = tl.dot(p.to(spoken.dtype), spoken) + tl.load(image + at, mask=here, other=0.0).to(tl.float32)
    mean = tl.sum(out, 1) / channels
    gap = out - mean[:, None]
    spread = tl.rsqrt(tl.sum(gap * gap, 1) / channels + eps)
    weight = tl.load(weight_ptr + c).to(tl.float32)
    shift = tl.load(shift_ptr + c).to(tl.float32)
    normed = gap * spread[:, None] * weight[None, :] + shift[None, :]
    tl.store(out_ptr + one * cells * channels + at, normed.to(out_ptr.dtype.element_ty), mask=here)


def answer(
    image: Tensor, places: Tensor, folded: Tensor, bias: Tensor, spoken: Tensor, weight: Tensor, shift: Tensor,
    *, heads: int, eps: float,
) -> Tensor:  # fmt: skip
    """Add to cells [B, P | 1, M, C] what they see in tokens, and norm: [B, P, M, C].

    folded and spoken are [B, P, A·N, C], bias [B, P, A·N]; see `kernels.two_way`.
    """
    (B, P, R, C), M = folded.shape, image.shape[2]
    tokens = R // heads
    out = torch.empty(B, P, M, C, device=image.device, dtype=image.dtype)
    rows = 64
    launch: Any = _answer[(triton.cdiv(M, rows), B * P)]
    launch(
        image, places, folded, bias, spoken, weight, shift, out,
        M, tokens, P, image.stride(0), image.stride(1) if image.shape[1] > 1 else 0,
        heads=heads, slots=slots_of(tokens), channels=C, rows=rows, eps=eps, num_warps=8, num_stages=1,
    )  # fmt: skip
    return out


def slots_of(tokens: int) -> int:
    """Columns that a head's tokens take."""
    return max(2, int(triton.next_power_of_2(tokens)))


def fits(heads: int, tokens: int, channels: int) -> bool:
    """Tell whether the kernels take these sizes."""
    columns = heads * slots_of(tokens)
    return heads & (heads - 1) == 0 and 16 <= columns <= MOST_COLUMNS and channels in CHANNELS
