"""Attention for normalised queries and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.kernels.available import takes_kernel

LARGEST_SCORE = 100.0  # in powers of two; float32 and bfloat16 hold 2^±126
LARGEST_HALF_SCORE = 14.0  # float16 holds 2^±15 with all its digits


@dataclass(frozen=True)
class Tiling:
    """How a kernel for bounded attention cuts its work.

    Attributes:
        rows: Queries of a program of `attention_triton`.
        columns: Keys that are looked at together.
        warps: Warps of a program of `attention_triton`.
        stages: Tiles of keys in flight.
        parts: Groups of four warps in `attention_hopper`, 64 queries each; 0 for `attention_triton`.
        polynomials: How many of four exponentials `attention_hopper` computes with multiplications and additions.
        unrolled: Whether `attention_hopper` takes two steps in each turn of its loop.
    """

    rows: int = 128
    columns: int = 64
    warps: int = 8
    stages: int = 3
    parts: int = 0
    polynomials: int = 0
    unrolled: bool = False


# The quickest on an H200 for 3081 tokens: heads of up to 64 channels, larger ones, and those that `attention_hopper`
# takes, in large batches (598 TFLOP/s against 485 of the first) and where there is hardly one program for each
# multiprocessor (a single picture: 80 µs against 114). The last is the quickest for queries of 8 bits too.
SMALL, LARGE = Tiling(), Tiling(stages=2)
HOPPER, HOPPER_FEW = Tiling(parts=3, stages=4), Tiling(parts=3, columns=128, stages=3)
FEW_QUERIES = 1 << 17  # of all heads and pictures together


def score_bound(head_dim: int, q_weight: Tensor, k_weight: Tensor) -> float:
    """Largest score, as a power of two, that RMS-normalised queries and keys with these weights [D] can have."""
    reach = float(q_weight.abs().max()) * float(k_weight.abs().max())
    return math.sqrt(head_dim) * reach * math.log2(math.e)


def largest_score(dtype: torch.dtype) -> float:
    """Largest score, as a power of two, for which weights of this type neither overflow nor lose digits."""
    return LARGEST_HALF_SCORE if dtype == torch.float16 else LARGEST_SCORE


def attend_bounded(q: Tensor, k: Tensor, v: Tensor, tiling: Tiling | None = None) -> Tensor:
    """Attend from [B, A, N, D] to [B, G, N, D]: [B, N, A, D], tokens first.

    Queries carry the factor log2(e) / √D; scores must be under `largest_score` (see `score_bound`).

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        tiling: How the kernel cuts its work; the quickest known by default.
    """
    if takes_kernel(q, k, v, name="attention"):
        return attend_with_kernel(q, k, v, tiling)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)  # [B, A, N, D]
    return F.scaled_dot_product_attention(q, k, v, scale=math.log(2)).transpose(1, 2)  # [B, N, A, D]


def tiling_for(q: Tensor) -> Tiling:
    """Return the quickest tiling of `attention_hopper` for queries [B, A, N, D]."""
    B, A, N, _ = q.shape
    return HOPPER_FEW if q.element_size() == 1 or B * A * N < FEW_QUERIES else HOPPER


def attend_with_kernel(q: Tensor, k: Tensor, v: Tensor, tiling: Tiling | None) -> Tensor:
    """Attend with the kernel that takes these tensors, and its quickest tiling where none is given."""
    wanted = tiling or tiling_for(q)
    if wanted.parts and takes_kernel(q, k, v, name="attention_hopper"):
        from vitruvian.kernels import attention_hopper

        if attention_hopper.fits(q, k, v):
            return attention_hopper.attend_bounded(q, k, v, wanted)
    from vitruvian.kernels import attention_triton

    fallback = SMALL if q.shape[-1] <= 64 else LARGE
    return attention_triton.attend_bounded(q, k, v, fallback if tiling is None or tiling.parts else tiling)
