"""Scaled dot-product attention of all models, with the implementation chosen by name.

q [B, A, N, D], k and v [B, G, M, D] with A a multiple of G (grouped queries) -> [B, A, N, D], and weights on demand.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError, check_choice

IMPLEMENTATIONS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
_FLASH_MODULES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}


def check_implementation(name: str) -> None:
    """Raise `InputError` unless this implementation of attention exists and its package is installed."""
    check_choice("attn_implementation", name, IMPLEMENTATIONS)
    module = _FLASH_MODULES.get(name)
    if module and importlib.util.find_spec(module) is None:
        raise InputError(f"attn_implementation: {name!r} needs the package {module}, which is missing. Use 'sdpa'.")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    implementation: str = "sdpa",
    mask: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return softmax(q kᵀ · scale + mask) v [B, A, N, D], and the weights [B, A, N, M] where `need_weights`.

    Args:
        q: Queries [B, A, N, D].
        k: Keys [B, G, M, D]; A must be a multiple of G.
        v: Values [B, G, M, D].
        implementation: One of `IMPLEMENTATIONS`. Flash attention takes no masks and only half precision on a CUDA
            device, version 3 also no dropout; otherwise "sdpa" runs. Weights always come from "eager", which returns
            them in any case.
        mask: Added to the scores, or boolean with True where a query attends; broadcasts to [B, A, N, M].
        scale: Factor on the scores; 1 / √D by default.
        dropout: Probability of dropping a weight (0 outside training).
        need_weights: Return the weights too.
    """
    if need_weights or implementation == "eager":
        return _attention_eager(q, k, v, mask=mask, scale=scale, dropout=dropout)
    flash = implementation == "flash_attention_2" or (implementation == "flash_attention_3" and dropout == 0)
    if flash and mask is None and q.is_cuda and q.dtype in (torch.float16, torch.bfloat16):
        return _attention_flash(q, k, v, implementation, scale, dropout), None
    grouped = q.shape[1] != k.shape[1]
    if grouped and not q.is_cuda:
        # torch has no fused kernel for grouped queries on the CPU.
        groups = q.shape[1] // k.shape[1]
        k, v, grouped = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1), False  # [B, A, M, D]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=grouped)
    return out, None


def _attention_eager(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """Attend with separate matrix products and softmax in float32."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)  # [B, A, M, D]
    scores = (q @ k.transpose(-2, -1)) * (q.shape[-1] ** -0.5 if scale is None else scale)  # [B, A, N, M]
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = F.dropout(scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype), dropout, training=dropout > 0)
    return weights @ v, weights


def _attention_flash(
    q: Tensor, k: Tensor, v: Tensor, implementation: str, scale: float | None, dropout: float
) -> Tensor:
    """Attend with a flash-attention package, which expects tokens before heads."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, N, A, D]
    if implementation == "flash_attention_3":
        from flash_attn_interface import flash_attn_func as flash3

        out = flash3(q, k, v, softmax_scale=scale)
    else:
        from flash_attn import flash_attn_func as flash2

        out = flash2(q, k, v, dropout_p=dropout, softmax_scale=scale)
    attended: Tensor = out[0] if isinstance(out, tuple) else out
    return attended.transpose(1, 2)  # [B, A, N, D]
