"""Attention between the few tokens of a prompt and the many cells of its image, in both directions.

    tokens_to_image   tokens [B, P, N, C] attend to cells [B, P | 1, M, C]  -> [B, P, N, C]
    image_to_tokens   cells [B, P | 1, M, C] attend to tokens [B, P, N, C], residual sum, layer norm  -> [B, P, M, C]

P prompts share one image (second dimension 1) or have one each. M is far larger than N, so the projections of the cells
are folded into the tokens: (x Wᵀ) k = x (Wᵀ k). This costs A·N instead of C' columns a cell, half of the work for a
click, and the Triton versions read every cell as it is, once. Where many prompts share an image it costs less to
project its cells once for all of them: `project_cells`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn, unflatten
from torch.nn import functional as F

from vitruvian.ops.attention import attention
from vitruvian.ops.dispatch import is_tensor_subclass, triton_jit, use_triton
from vitruvian.ops.online_softmax import add_keys, merge_splits, split_keys
from vitruvian.ops.triton_import import tl, triton
from vitruvian.tensor_cache import cached_tensors

_MAX_COLUMNS = 128  # heads × tokens of a prompt that fit the registers
_CHANNELS = (32, 64, 128, 256)


class CrossAttentionWeights(Protocol):
    """The projections of a cross-attention: queries, keys and values C -> C' = A·D, output C' -> C."""

    attn_implementation: str
    heads: int
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear


class ProjectedCells(NamedTuple):
    """Projected cells of an image that all prompts share, each [B, A, M, D].

    Attributes:
        keys: For `tokens_to_image`.
        values: For `tokens_to_image`.
        queries: For `image_to_tokens`.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor


class ImageCells(NamedTuple):
    """The image that prompts attend to.

    Attributes:
        cells: [B, P, M, C], or [B, 1, M, C] where all prompts share them.
        positions: Positions of the cells [M, C].
        projected: Their projections, where they are computed once for all prompts; see `project_cells`.
    """

    cells: Tensor
    positions: Tensor
    projected: ProjectedCells | None = None


def project_cells(
    image: ImageCells, to_image: CrossAttentionWeights, to_tokens: CrossAttentionWeights, *, tokens: int
) -> ImageCells:
    """Project the cells for both attentions of a layer.

    Returns the image unchanged where prompts have cells each, or where it costs less to fold the projections into
    `tokens`, the number of tokens of all prompts of an image.
    """
    cells, positions, _ = image
    if cells.shape[1] > 1 or tokens * to_image.heads <= to_image.q_proj.out_features:
        return image
    with_positions = cells + positions  # [B, 1, M, C]
    projected = ProjectedCells(
        keys=_split_heads(to_image.k_proj(with_positions), to_image.heads)[:, 0],
        values=_split_heads(to_image.v_proj(cells), to_image.heads)[:, 0],
        queries=_split_heads(to_tokens.q_proj(with_positions), to_tokens.heads)[:, 0],
    )
    return ImageCells(cells, positions, projected)


def tokens_to_image(
    tokens: Tensor,
    image: ImageCells,
    weights: CrossAttentionWeights,
    *,
    bias: Tensor | None = None,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Let the tokens of each prompt attend to the cells of its image.

    Args:
        tokens: Tokens with their positions [B, P, N, C].
        image: Cells, which are the values. With their positions they are the keys.
        weights: Projections.
        bias: Added to the scores; broadcasts to [B, P, A, N, M].
        need_weights: Return the attention weights too.

    Returns:
        [B, P, N, C], and attention weights [B, P, A, N, M] or None.
    """
    all_cells, positions, projected = image
    if projected is not None:
        return _tokens_to_projected(tokens, projected, weights, bias=bias, need_weights=need_weights)
    heads, (B, P, N, C) = weights.heads, tokens.shape
    q = _repeat_for_heads(weights.q_proj(tokens), heads, _scale(weights))  # [B, P, A, N, C']
    key_weight, key_bias = _weight_and_bias(weights.k_proj)
    folded = (q @ key_weight).view(B, P, heads * N, C)
    probabilities: Tensor | None = None
    if bias is None and not need_weights and _use_triton(heads, N, all_cells, folded, positions):
        attended = _tokens_to_image_triton(folded, all_cells, positions)  # [B, P, A·N, C]
    else:
        cells = all_cells.flatten(0, 1)  # [B·P | B, M, C]
        groups = cells.shape[0]
        scores = torch.bmm(folded.view(groups, -1, C), (cells + positions).transpose(1, 2))  # [B·P | B, (P·)A·N, M]
        if torch.is_grad_enabled():
            # The bias of the keys shifts all scores of a token alike, so softmax cancels it. Distributed training
            # still expects a gradient for every parameter.
            scores = scores + (q @ key_bias).view(groups, -1, 1)
        if bias is not None:
            scores = scores.view(B, P, heads, N, -1) + bias.to(scores.dtype)
            scores = scores.view(groups, -1, cells.shape[1])
        probabilities = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        attended = torch.bmm(probabilities, cells)  # [B·P | B, (P·)A·N, C]
    values = weights.v_proj(attended).view(B, P, heads, N, -1)  # [B, P, A, N, C']
    out: Tensor = weights.o_proj((values * _head_mask(heads, 1.0, values)).sum(dim=2))  # [B, P, N, C]
    if not need_weights or probabilities is None:
        return out, None
    return out, probabilities.view(B, P, heads, N, -1)


def image_to_tokens(
    image: ImageCells, tokens: Tensor, token_positions: Tensor, weights: CrossAttentionWeights, norm: nn.LayerNorm
) -> Tensor:
    """Let the cells of an image attend to the tokens of each prompt, add the result to them and norm the sum.

    Args:
        image: Cells, which with their positions are the queries.
        tokens: Tokens [B, P, N, C], the values. With `token_positions` they are the keys.
        token_positions: [B, P, N, C].
        weights: Projections.
        norm: Layer norm of the sum.

    Returns:
        [B, P, M, C].
    """
    all_cells, positions, projected = image
    heads, (B, P, N, C) = weights.heads, tokens.shape
    keys = weights.k_proj(tokens + token_positions)  # [B, P, N, C']
    values = _repeat_for_heads(weights.v_proj(tokens), heads)  # [B, P, A, N, C']
    # Probabilities of a head sum to 1, so the bias of the output can be divided among the heads' values.
    out_weight, out_bias = _weight_and_bias(weights.o_proj)
    values = F.linear(values, out_weight, out_bias / heads).view(B, P, heads * N, C)
    use_kernel = _use_triton(heads, N, all_cells, values, positions, norm.weight)
    if projected is not None and not use_kernel:
        keys = _split_heads(keys * _scale(weights), heads).transpose(1, 2).flatten(2, 3)  # [B, A, P·N, D]
        scores = keys @ projected.queries.transpose(-2, -1)  # [B, A, P·N, M]
        scores = unflatten(scores, 2, (P, N)).transpose(1, 2).flatten(0, 2)  # [B·P·A, N, M]
    else:
        keys = _repeat_for_heads(keys, heads, _scale(weights))  # [B, P, A, N, C']
        query_weight, query_bias = _weight_and_bias(weights.q_proj)
        folded = (keys @ query_weight).view(B, P, heads * N, C)
        bias = (keys @ query_bias).view(B, P, heads * N)
        if use_kernel:
            return _image_to_tokens_triton(all_cells, positions, folded, bias, values, norm, heads=heads)
        cells = all_cells.flatten(0, 1)  # [B·P | B, M, C]
        groups = cells.shape[0]
        scores = torch.baddbmm(
            bias.view(groups, -1, 1), folded.view(groups, -1, C), (cells + positions).transpose(1, 2)
        )  # [B·P | B, (P·)A·N, M]
        scores = scores.view(B * P * heads, N, -1)
    # Softmax over the last but one dimension: over a last dimension of a few tokens it is slow.
    probabilities = scores.softmax(dim=1, dtype=torch.float32).to(values.dtype).view(B * P, heads * N, -1)
    cells = all_cells.expand(B, P, -1, -1).flatten(0, 1)  # [B·P, M, C]
    total = torch.baddbmm(cells, probabilities.transpose(1, 2), values.view(B * P, heads * N, C))
    out: Tensor = norm(total.view(B, P, -1, C))  # [B, P, M, C]
    return out


def _tokens_to_projected(
    tokens: Tensor,
    projected: ProjectedCells,
    weights: CrossAttentionWeights,
    *,
    bias: Tensor | None,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Attend as `tokens_to_image` does, with the tokens of all prompts as one sequence."""
    count, length = tokens.shape[1:3]
    q = _split_heads(weights.q_proj(tokens.flatten(1, 2)[:, None]), weights.heads)[:, 0]  # [B, A, P·N, D]
    if bias is not None:
        bias = bias.to(q.dtype).expand(*tokens.shape[:2], -1, length, -1).transpose(1, 2).flatten(2, 3)
    out, probabilities = attention(
        q,
        projected.keys,
        projected.values,
        implementation=weights.attn_implementation,
        mask=bias,  # [B, A | 1, P·N, M]
        need_weights=need_weights,
    )
    if probabilities is not None:
        probabilities = unflatten(probabilities, 2, (count, length)).transpose(1, 2)  # [B, P, A, N, M]
    out = weights.o_proj(out.transpose(1, 2).flatten(2))  # [B, P·N, C]
    return unflatten(out, 1, (count, length)), probabilities  # [B, P, N, C]


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, P, N, C'] to [B, P, A, N, D]."""
    return unflatten(x, -1, (heads, -1)).transpose(2, 3)


def _repeat_for_heads(x: Tensor, heads: int, scale: float = 1.0) -> Tensor:
    """Repeat x · scale [B, P, N, C'] for each head, with zeros in the channels of the others: [B, P, A, N, C'].

    A product with a whole weight matrix then is the product of each head with its part of the matrix. This costs more
    arithmetic than separate products, but far fewer and larger operations.
    """
    return x.unsqueeze(2) * _head_mask(heads, scale, x)


def _head_mask(heads: int, value: float, x: Tensor) -> Tensor:
    """Return `value` for the channels of each head, else 0: [A, 1, C'] for x [..., C']."""
    return _cached_head_mask(heads, x.shape[-1], value, x.dtype, x.device)


@cached_tensors
def _cached_head_mask(heads: int, channels: int, value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    eye = torch.eye(heads, dtype=dtype, device=device) * value
    return eye.repeat_interleave(channels // heads, dim=1)[:, None]


def _weight_and_bias(linear: nn.Module) -> tuple[Tensor, Tensor]:
    """Return weight [F, C] and bias [F] of a linear layer; the bias is 0 where it has none.

    A module around a linear layer, such as an adapter of peft, is evaluated at the unit vectors: its own `weight` would
    leave the adapter out. Such a module has `in_features`. So is a layer with a quantized weight.
    """
    if type(linear) is nn.Linear and not is_tensor_subclass(linear.weight):
        bias: Tensor | None = linear.bias
        return linear.weight, linear.weight.new_zeros(len(linear.weight)) if bias is None else bias
    reference: Tensor = linear.weight  # type: ignore[assignment]
    channels: int = linear.in_features  # type: ignore[assignment]
    points = torch.eye(channels + 1, channels, dtype=reference.dtype, device=reference.device)  # the last one is 0
    values: Tensor = linear(points)  # [C + 1, F]
    return (values[:-1] - values[-1]).transpose(0, 1), values[-1]


def _scale(weights: CrossAttentionWeights) -> float:
    return float((weights.q_proj.out_features // weights.heads) ** -0.5)


# ---------------------------------------------------------------------------------------------------------- Triton


def _use_triton(heads: int, tokens: int, image: Tensor, *tensors: Tensor) -> bool:
    """Return whether the kernels run for an image [B, P | 1, M, C] and prompts of this many tokens."""
    if not use_triton("two_way_attention", image, *tensors):
        return False
    columns = heads * _padded_tokens(tokens)
    return heads & (heads - 1) == 0 and 16 <= columns <= _MAX_COLUMNS and image.shape[-1] in _CHANNELS


def _padded_tokens(tokens: int) -> int:
    return max(2, int(triton.next_power_of_2(tokens)))


def _tokens_to_image_triton(folded: Tensor, image: Tensor, positions: Tensor) -> Tensor:
    """Softmax of folded queries [B, P, R, C] times cells with positions, times cells [B, P | 1, M, C]: [B, P, R, C]."""
    folded, positions = folded.contiguous(), positions.contiguous()
    (B, P, R, C), M = folded.shape, image.shape[2]
    block_rows, block_cells = max(16, min(64, triton.next_power_of_2(R))), 32
    row_blocks = triton.cdiv(R, block_rows)
    splits, size = split_keys(M, B * P * row_blocks, multiple=block_cells, min_keys=8 * block_cells)
    dtype = folded.dtype if splits == 1 else torch.float32
    parts = torch.empty(splits, B * P * R, C, device=folded.device, dtype=dtype)
    log_sums = torch.empty(splits, B * P * R, device=folded.device, dtype=torch.float32)
    _tokens_to_image_kernel[(B * P, splits, row_blocks)](
        folded, image, positions, parts, log_sums,
        M, R, size, P, image.stride(0), image.stride(1) if image.shape[1] > 1 else 0, B * P * R,
        channels=C, block_rows=block_rows, block_cells=block_cells, num_warps=8 if block_rows == 64 else 4,
        num_stages=2,
    )  # fmt: skip
    out = parts[0] if splits == 1 else merge_splits(parts, log_sums, folded.dtype)
    return out.view(B, P, R, C)


@triton_jit
def _tokens_to_image_kernel(  # type: ignore[no-untyped-def]
    q_ptr, image_ptr, positions_ptr, out_ptr, log_sums_ptr,
    cells, rows, size, prompts, image_batch_stride, image_prompt_stride, total_rows,
    channels: tl.constexpr, block_rows: tl.constexpr, block_cells: tl.constexpr,
):  # fmt: skip
    LOG2E: tl.constexpr = 1.4426950408889634
    prompt = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    row = tl.program_id(2) * block_rows + tl.arange(0, block_rows)
    channel = tl.arange(0, channels)
    in_rows = row < rows
    q_offset = (prompt * rows + row)[:, None] * channels + channel[None, :]
    q = tl.load(q_ptr + q_offset, mask=in_rows[:, None], other=0.0)
    image = image_ptr + (prompt // prompts) * image_batch_stride + (prompt % prompts) * image_prompt_stride
    out = tl.zeros([block_rows, channels], tl.float32)
    total = tl.zeros([block_rows], tl.float32)
    highest = tl.full([block_rows], float("-inf"), tl.float32)
    last = tl.minimum((split + 1) * size, cells)
    for first in tl.range(split * size, last, block_cells):
        cell = first + tl.arange(0, block_cells)
        inside = cell < last
        offset = cell[:, None] * channels + channel[None, :]
        x = tl.load(image + offset, mask=inside[:, None], other=0.0)
        position = tl.load(positions_ptr + offset, mask=inside[:, None], other=0.0)
        keys = (x.to(tl.float32) + position.to(tl.float32)).to(x.dtype)
        scores = tl.where(inside[None, :], tl.dot(q, tl.trans(keys)) * LOG2E, float("-inf"))
        out, total, highest = add_keys(scores, x, out, total, highest)
    row = split * total_rows + prompt * rows + row
    out = (out / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row[:, None] * channels + channel[None, :], out, mask=in_rows[:, None])
    tl.store(log_sums_ptr + row, highest + tl.log2(total), mask=in_rows)


def _image_to_tokens_triton(
    image: Tensor, positions: Tensor, folded: Tensor, bias: Tensor, values: Tensor, norm: nn.LayerNorm, *, heads: int
) -> Tensor:
    """Attend from cells [B, P | 1, M, C] to folded keys and values [B, P, A·N, C], bias [B, P, A·N]: [B, P, M, C]."""
    (B, P, R, C), M = folded.shape, image.shape[2]
    tokens = R // heads
    out = torch.empty(B, P, M, C, device=image.device, dtype=image.dtype)
    block_cells = 64
    _image_to_tokens_kernel[(triton.cdiv(M, block_cells), B * P)](
        image, positions.contiguous(), folded.contiguous(), bias.contiguous(), values.contiguous(), norm.weight,
        norm.bias, out, M, tokens, P, image.stride(0), image.stride(1) if image.shape[1] > 1 else 0,
        heads=heads, padded_tokens=_padded_tokens(tokens), channels=C, block_cells=block_cells, eps=norm.eps,
        num_warps=8, num_stages=1,
    )  # fmt: skip
    return out


@triton_jit
def _image_to_tokens_kernel(  # type: ignore[no-untyped-def]
    image_ptr, positions_ptr, folded_ptr, bias_ptr, values_ptr, norm_weight_ptr, norm_bias_ptr, out_ptr,
    cells, tokens, prompts, image_batch_stride, image_prompt_stride,
    heads: tl.constexpr, padded_tokens: tl.constexpr, channels: tl.constexpr, block_cells: tl.constexpr,
    eps: tl.constexpr,
):  # fmt: skip
    LOG2E: tl.constexpr = 1.4426950408889634
    columns: tl.constexpr = heads * padded_tokens
    prompt = tl.program_id(1).to(tl.int64)
    cell = tl.program_id(0) * block_cells + tl.arange(0, block_cells)
    channel = tl.arange(0, channels)
    inside = (cell < cells)[:, None]
    image = image_ptr + (prompt // prompts) * image_batch_stride + (prompt % prompts) * image_prompt_stride
    offset = cell[:, None] * channels + channel[None, :]
    x = tl.load(image + offset, mask=inside, other=0.0)
    position = tl.load(positions_ptr + offset, mask=inside, other=0.0)
    queries = (x.to(tl.float32) + position.to(tl.float32)).to(x.dtype)
    column = tl.arange(0, columns)
    is_token = column % padded_tokens < tokens
    row = prompt * heads * tokens + column // padded_tokens * tokens + column % padded_tokens
    folded = tl.load(folded_ptr + row[None, :] * channels + channel[:, None], mask=is_token[None, :], other=0.0)
    bias = tl.load(bias_ptr + row, mask=is_token, other=0.0).to(tl.float32)
    scores = (tl.dot(queries, folded) + bias[None, :]) * LOG2E
    scores = tl.reshape(tl.where(is_token[None, :], scores, float("-inf")), [block_cells, heads, padded_tokens])
    p = tl.math.exp2(scores - tl.max(scores, 2)[:, :, None])
    p = tl.reshape(p / tl.sum(p, 2)[:, :, None], [block_cells, columns])
    values = tl.load(values_ptr + row[:, None] * channels + channel[None, :], mask=is_token[:, None], other=0.0)
    # The cells are read again: held in registers meanwhile, they would displace the operands of the products.
    out = tl.dot(p.to(values.dtype), values) + tl.load(image + offset, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(out, 1) / channels
    centered = out - mean[:, None]
    inv_std = tl.rsqrt(tl.sum(centered * centered, 1) / channels + eps)
    norm_weight = tl.load(norm_weight_ptr + channel).to(tl.float32)
    norm_bias = tl.load(norm_bias_ptr + channel).to(tl.float32)
    normed = centered * inv_std[:, None] * norm_weight[None, :] + norm_bias[None, :]
    tl.store(out_ptr + prompt * cells * channels + offset, normed.to(out_ptr.dtype.element_ty), mask=inside)
