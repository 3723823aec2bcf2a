"""What transformers over object queries share: attention with positions added to queries and keys, and mask heads.

queries [B, Q, C] ─▶ QueryAttention (to each other, or to the tokens of a feature map [B, N, C]) ─▶ [B, Q, C]
queries [B, Q, C] ─▶ mask_head ─▶ [B, Q, M]; with a feature map [B, M, h, w] ─▶ mask_logits ─▶ [B, Q, h, w]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn, unflatten
from torch.nn import functional as F

from vitruvian.layers.init import Kind, with_init
from vitruvian.ops.attention import attention


class QueryAttention(nn.Module):
    """Multi-head attention of queries to themselves or to other tokens, with separate projections."""

    def __init__(self, channels: int, heads: int, *, dropout: float = 0.0, start: Kind = "normal") -> None:
        super().__init__()
        self.heads, self.drop_rate = heads, dropout
        self.attn_implementation = "sdpa"
        self.q_proj = with_init(nn.Linear(channels, channels), start)
        self.k_proj = with_init(nn.Linear(channels, channels), start)
        self.v_proj = with_init(nn.Linear(channels, channels), start)
        self.out_proj = with_init(nn.Linear(channels, channels), start)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from [B, Q, C] to [B, N, C]; weights are [B, A, Q, N]."""
        out, weights = attention(
            split_heads(self.q_proj(queries), self.heads),
            split_heads(self.k_proj(keys), self.heads),
            split_heads(self.v_proj(values), self.heads),
            implementation=self.attn_implementation,
            dropout=self.drop_rate if self.training else 0.0,
            need_weights=need_weights,
        )
        return self.out_proj(out.transpose(1, 2).flatten(2)), weights  # [B, Q, C]


class PackedAttention(nn.Module):
    """Multi-head attention whose three projections are one matrix, in the layout of `nn.MultiheadAttention`."""

    def __init__(self, channels: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.drop_rate = heads, dropout
        self.attn_implementation = "sdpa"
        self.in_proj_weight = nn.Parameter(torch.empty(3 * channels, channels))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * channels))
        self.out_proj = with_init(nn.Linear(channels, channels), "xavier")

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor) -> Tensor:
        """Attend from [B, Q, C] to [B, N, C]; `mask` [B, 1, Q, N] is True where a query may look."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        q, k, v = (
            split_heads(F.linear(x, weight, bias), self.heads)  # [B, A, Q or N, D]
            for x, weight, bias in zip((queries, keys, values), weights, biases, strict=True)
        )
        dropout = self.drop_rate if self.training else 0.0
        out, _ = attention(q, k, v, implementation=self.attn_implementation, mask=mask, dropout=dropout)
        found: Tensor = self.out_proj(out.transpose(1, 2).flatten(2))  # [B, Q, C]
        return found


@torch.no_grad()
def start_packed(module: PackedAttention, *, gain: float = 1.0) -> None:
    """Fill the packed projections of an attention."""
    nn.init.xavier_uniform_(module.in_proj_weight, gain=gain)
    nn.init.zeros_(module.in_proj_bias)


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """Give each head its own slice: [B, N, C] -> [B, A, N, D]."""
    return unflatten(tokens, -1, (heads, -1)).transpose(1, 2)  # [B, A, N, D]


def mask_head(channels: int, outputs: int) -> nn.Sequential:
    """Three linear layers that turn queries [B, Q, C] into mask vectors [B, Q, M]."""
    sizes = [channels, channels, channels, outputs]
    linear = [with_init(nn.Linear(sizes[i], sizes[i + 1]), "xavier") for i in range(3)]
    return nn.Sequential(
        nn.Sequential(linear[0], nn.ReLU()), nn.Sequential(linear[1], nn.ReLU()), nn.Sequential(linear[2])
    )


def mask_logits(vectors: Tensor, features: Tensor) -> Tensor:
    """Score every pixel for every query: vectors [B, Q, M] with features [B, M, h, w] -> [B, Q, h, w]."""
    return unflatten(vectors @ features.flatten(2), 2, features.shape[-2:])  # [B, Q, h, w]
