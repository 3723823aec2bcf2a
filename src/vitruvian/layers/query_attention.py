"""Attention of queries to each other or to the tokens of a feature map."""

from __future__ import annotations

from torch import Tensor, nn, unflatten

from vitruvian.layers.init import InitKind, with_init
from vitruvian.ops.attention import attention


class QueryAttention(nn.Module):
    """Multi-head attention of queries to each other or to other tokens, with separate projections.

    `output_name` is the parameter name of the output projection.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        dropout: float = 0.0,
        init: InitKind = "normal",
        output_name: str = "out_proj",
    ) -> None:
        super().__init__()
        self.heads, self.drop_rate = heads, dropout
        self.attn_implementation = "sdpa"
        self.q_proj = with_init(nn.Linear(channels, channels), init)
        self.k_proj = with_init(nn.Linear(channels, channels), init)
        self.v_proj = with_init(nn.Linear(channels, channels), init)
        self.output_name = output_name
        self.add_module(output_name, with_init(nn.Linear(channels, channels), init))

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from [B, Q, C] to [B, N, C]; weights are [B, A, Q, N]."""
        projected = (self.q_proj(queries), self.k_proj(keys), self.v_proj(values))
        q, k, v = (unflatten(part, -1, (self.heads, -1)).transpose(1, 2) for part in projected)  # [B, A, Q | N, D]
        dropout, implementation = self.drop_rate if self.training else 0.0, self.attn_implementation
        out, weights = attention(q, k, v, implementation=implementation, dropout=dropout, need_weights=need_weights)
        return self.get_submodule(self.output_name)(out.transpose(1, 2).flatten(2)), weights  # [B, Q, C]
