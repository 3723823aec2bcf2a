"""MaskFormer's transformer: DETR's decoder, whose queries look at the backbone's coarsest map.

map [B, C', h, w] ─▶ tokens [B, h·w, C] ─┐
queries (zeros, with learned positions) ─┴▶ layers: self-attention, cross-attention, feed-forward ─▶ [B, Q, C]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitruvian.layers.init import with_init
from vitruvian.layers.mlp import activation
from vitruvian.layers.pyramid import pointwise
from vitruvian.layers.queries import QueryAttention
from vitruvian.layers.sine import sine_positions
from vitruvian.models.maskformer.configuration import DetrConfig


@dataclass
class Decoded:
    """Queries: after the last layer and the norm, after every layer but the last and the norm, and as they went.

    `states` holds the queries before the first layer and after each, without the norm; `attentions` their attention to
    each other, where it was asked for.
    """

    last: Tensor
    auxiliary: list[Tensor]
    states: list[Tensor]
    attentions: list[Tensor]


class TransformerModule(nn.Module):
    """Learned queries and the decoder."""

    def __init__(self, inputs: int, config: DetrConfig) -> None:
        super().__init__()
        channels = config.d_model
        self.queries_embedder = nn.Embedding(config.num_queries, channels)
        self.input_projection = with_init(nn.Conv2d(inputs, channels, 1), "xavier") if inputs != channels else None
        self.decoder = Decoder(config)

    def forward(self, features: Tensor, *, auxiliary: bool, need_weights: bool) -> Decoded:
        """Let queries look at a map [B, C', h, w]; `auxiliary` also norms what every layer gives."""
        if self.input_projection is not None:
            features = pointwise(self.input_projection, features)  # [B, C, h, w]
        tokens = features.flatten(2).transpose(1, 2)  # [B, h·w, C]
        grid_hw = (features.shape[-2], features.shape[-1])
        positions = sine_positions(grid_hw, tokens.shape[-1], tokens.dtype, tokens.device)  # [h·w, C]
        places = self.queries_embedder.weight.expand(tokens.shape[0], -1, -1)  # [B, Q, C]
        found: Decoded = self.decoder(
            tokens, tokens + positions, places.to(tokens.dtype), auxiliary=auxiliary, need_weights=need_weights
        )
        return found


class Decoder(nn.Module):
    """The layers and the norm that all predictions pass."""

    def __init__(self, config: DetrConfig) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        # Queries start at zero, where the first norm is so steep that training from scratch jumps about. A random bias
        # before it takes them away from there.
        self.layers[0].self_attn.out_proj.init_bias_std = 1.0  # type: ignore[union-attr]
        self.layernorm = nn.LayerNorm(config.d_model)

    def forward(self, tokens: Tensor, keys: Tensor, places: Tensor, *, auxiliary: bool, need_weights: bool) -> Decoded:
        """Run all layers.

        Args:
            tokens: What the queries look at [B, N, C].
            keys: The same with positions [B, N, C].
            places: Positions of the queries [B, Q, C].
            auxiliary: Also norm what every layer but the last gives.
            need_weights: Also keep the attention of the queries to each other.
        """
        queries = torch.zeros_like(places)
        states, attentions = [queries], []
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                queries, weights = checkpoint(layer, queries, tokens, keys, places, need_weights, use_reentrant=False)
            else:
                queries, weights = layer(queries, tokens, keys, places, need_weights)
            states.append(queries)
            if weights is not None:
                attentions.append(weights)
        normed = [self.layernorm(state) for state in states[1:-1]] if auxiliary else []
        return Decoded(self.layernorm(queries), normed, states, attentions)


class DecoderLayer(nn.Module):
    """Queries attend to each other, then to the image, then a feed-forward layer; a norm after each."""

    def __init__(self, config: DetrConfig) -> None:
        super().__init__()
        channels, heads = config.d_model, config.decoder_attention_heads
        self.self_attn = QueryAttention(channels, heads, dropout=config.attention_dropout)
        self.self_attn_layer_norm = nn.LayerNorm(channels)
        self.encoder_attn = QueryAttention(channels, heads, dropout=config.attention_dropout)
        self.encoder_attn_layer_norm = nn.LayerNorm(channels)
        self.fc1 = nn.Linear(channels, config.decoder_ffn_dim)
        self.fc2 = nn.Linear(config.decoder_ffn_dim, channels)
        self.final_layer_norm = nn.LayerNorm(channels)
        self.act = activation(config.activation_function)
        self.drop_rate, self.inner_drop_rate = config.dropout, config.activation_dropout

    def forward(
        self, queries: Tensor, tokens: Tensor, keys: Tensor, places: Tensor, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Map queries [B, Q, C] to the same; weights are those of the first attention [B, A, Q, Q]."""
        placed = queries + places
        seen, weights = self.self_attn(placed, placed, queries, need_weights=need_weights)
        queries = self.self_attn_layer_norm(queries + self.drop(seen))
        seen, _ = self.encoder_attn(queries + places, keys, tokens)
        queries = self.encoder_attn_layer_norm(queries + self.drop(seen))
        inner = F.dropout(self.act(self.fc1(queries)), self.inner_drop_rate, self.training)
        return self.final_layer_norm(queries + self.drop(self.fc2(inner))), weights

    def drop(self, x: Tensor) -> Tensor:
        """Apply the dropout of a branch."""
        return F.dropout(x, self.drop_rate, self.training)
