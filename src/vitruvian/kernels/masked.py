"""Masked attention: queries look where their mask is, or everywhere if it is nowhere."""

from __future__ import annotations

from torch import Tensor, unflatten
from torch.nn import functional as F

from vitruvian.kernels.available import takes_kernel


def attend_masked(q: Tensor, k: Tensor, v: Tensor, logits: Tensor, *, heads: int) -> Tensor:
    """Attend from queries [B, Q, C] to keys and values [B, N, C].

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        logits: Mask of each query [B, Q, N]: it looks where they are not negative, or everywhere where all are.
        heads: Number of heads, which share the mask.

    Returns:
        [B, Q, C].
    """
    top = logits.amax(-1)  # [B, Q]
    if takes_kernel(q, k, v, logits, name="masked"):
        from vitruvian.kernels import masked_triton

        return masked_triton.attend_masked(q, k, v, logits.contiguous(), top, heads=heads)
    seen = (logits >= 0) | (top < 0)[..., None]  # [B, Q, N]
    q, k, v = (unflatten(part, -1, (heads, -1)).transpose(1, 2) for part in (q, k, v))  # [B, A, Q | N, D]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None]).transpose(1, 2).flatten(2)  # [B, Q, C]
