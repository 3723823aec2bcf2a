"""MaskFormer's transformer: DETR's decoder, whose queries attend to the backbone's coarsest map.

map [B, C', h, w] ─▶ tokens [B, h·w, C] ─┐
queries (zeros, with learned positions) ─┴▶ layers: self-attention, cross-attention, feed-forward ─▶ [B, Q, C]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitruvian.layers.gradient_checkpointing import CheckpointedLayer, checkpointed
from vitruvian.layers.init import with_init
from vitruvian.layers.mlp import FeedForward
from vitruvian.layers.query_attention import QueryAttention
from vitruvian.layers.sine_positions import sine_positions
from vitruvian.models.mask_classification.outputs import DecoderOutput
from vitruvian.models.maskformer.configuration import DetrConfig
from vitruvian.ops.layer_norm import layer_norm_of_sum
from vitruvian.ops.pointwise_conv import conv1x1


class MaskFormerTransformerModule(nn.Module):
    """Learned queries and the decoder."""

    def __init__(self, inputs: int, config: DetrConfig) -> None:
        super().__init__()
        self.config = config
        channels = config.d_model
        self.queries_embedder = nn.Embedding(config.num_queries, channels)
        self.input_projection = with_init(nn.Conv2d(inputs, channels, 1), "xavier") if inputs != channels else None
        self.decoder = MaskFormerDecoder(config)

    def forward(self, features: Tensor, *, norm_all: bool, need_weights: bool) -> DecoderOutput:
        """Attend from the queries to a map [B, C', h, w]; with `norm_all`, norm the queries of every layer."""
        if self.input_projection is not None:
            features = conv1x1(self.input_projection, features)  # [B, C, h, w]
        tokens = features.flatten(2).transpose(1, 2)  # [B, h·w, C]
        grid_hw = (features.shape[-2], features.shape[-1])
        positions = sine_positions(grid_hw, tokens.shape[-1], tokens.dtype, tokens.device)  # [h·w, C]
        query_positions = self.queries_embedder.weight.expand(tokens.shape[0], -1, -1).to(tokens.dtype)  # [B, Q, C]
        output: DecoderOutput = self.decoder(
            tokens, tokens + positions, query_positions, norm_all=norm_all, need_weights=need_weights
        )
        return output


class MaskFormerDecoder(nn.Module):
    """The layers, and the norm of every prediction."""

    def __init__(self, config: DetrConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            MaskFormerDecoderLayer(config, first=number == 0) for number in range(config.decoder_layers)
        )
        self.layernorm = nn.LayerNorm(config.d_model)

    def forward(
        self, tokens: Tensor, keys: Tensor, query_positions: Tensor, *, norm_all: bool, need_weights: bool
    ) -> DecoderOutput:
        """Run all layers on tokens of a map [B, N, C], the same with positions, and positions of queries [B, Q, C]."""
        queries = torch.zeros_like(query_positions, requires_grad=self.training and torch.is_grad_enabled())
        output = DecoderOutput([queries])
        for layer in self.layers:
            queries, weights = checkpointed(layer)(queries, tokens, keys, query_positions, need_weights)
            output.states.append(queries)
            if weights is not None:
                output.attentions.append(weights)
        output.normed = [self.layernorm(state) for state in output.states[1 if norm_all else -1 :]]
        output.states[-1] = output.normed[-1]
        return output


class MaskFormerDecoderLayer(CheckpointedLayer):
    """Queries attend to each other, then to the image, then a feed-forward layer; a norm after each."""

    def __init__(self, config: DetrConfig, *, first: bool) -> None:
        super().__init__()
        channels, heads = config.d_model, config.decoder_attention_heads
        self.self_attn = QueryAttention(channels, heads, dropout=config.attention_dropout, output_name="o_proj")
        if first:
            # Queries are zero here, where the norm is so steep that training from scratch is unstable. A random bias
            # moves them away from zero.
            with_init(self.self_attn.get_submodule("o_proj"), "normal", bias_std=1.0)
        self.self_attn_layer_norm = nn.LayerNorm(channels)
        self.encoder_attn = QueryAttention(channels, heads, dropout=config.attention_dropout, output_name="o_proj")
        self.encoder_attn_layer_norm = nn.LayerNorm(channels)
        self.mlp = FeedForward(
            channels, config.decoder_ffn_dim, act=config.activation_function, dropout=config.activation_dropout
        )
        self.final_layer_norm = nn.LayerNorm(channels)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, queries: Tensor, tokens: Tensor, keys: Tensor, query_positions: Tensor, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Map queries [B, Q, C] to the same; weights are those of the self-attention [B, A, Q, Q]."""
        with_positions = queries + query_positions
        attended, weights = self.self_attn(with_positions, with_positions, queries, need_weights=need_weights)
        queries = layer_norm_of_sum(queries, self.dropout(attended), self.self_attn_layer_norm)
        attended, _ = self.encoder_attn(queries + query_positions, keys, tokens)
        queries = layer_norm_of_sum(queries, self.dropout(attended), self.encoder_attn_layer_norm)
        return layer_norm_of_sum(queries, self.dropout(self.mlp(queries)), self.final_layer_norm), weights
