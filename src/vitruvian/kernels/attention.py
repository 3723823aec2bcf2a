"""Attention for normalised queries and keys."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

from vitruvian.kernels.available import takes_kernel

LARGEST_SCORE = 100.0  # in powers of two; float32 and bfloat16 hold 2^±126


def score_bound(head_dim: int, q_weight: Tensor, k_weight: Tensor) -> float:
    """Largest score, as a power of two, that RMS-normalised queries and keys with these weights [D] can have."""
    reach = float(q_weight.abs().max()) * float(k_weight.abs().max())
    return math.sqrt(head_dim) * reach * math.log2(math.e)


def attend_bounded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from [B, A, N, D] to [B, G, N, D]: [B, N, A, D], tokens first.

    Queries carry the factor log2(e) / √D; scores must be under `LARGEST_SCORE` (see `score_bound`).
    """
    if takes_kernel(q, k, v):
        from vitruvian.kernels import attention_triton

        return attention_triton.attend_bounded(q, k, v)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)  # [B, A, N, D]
    return F.scaled_dot_product_attention(q, k, v, scale=math.log(2)).transpose(1, 2)  # [B, N, A, D]
