"""Mask2Former's transformer: queries attend to one map after another, each only inside its last mask.

maps at 1/32, 1/16, 1/8 ─▶ tokens [B, h·w, C] ─┐ (layer i attends to map i mod 3)
queries [B, Q, C] ─▶ predict a mask ─▶ masked attention ─▶ self-attention ─▶ feed-forward ─▶ predict a mask ─▶ …
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.layers.gradient_checkpointing import CheckpointedLayer, checkpointed
from vitruvian.layers.init import with_init
from vitruvian.layers.mlp import activation
from vitruvian.layers.query_attention import QueryAttention
from vitruvian.layers.sine_positions import sine_positions
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.pixel_decoder import LEVELS
from vitruvian.models.mask_classification.layers import mask_head, mask_logits
from vitruvian.models.mask_classification.outputs import DecoderOutput
from vitruvian.ops.interpolate import bilinear
from vitruvian.ops.layer_norm import layer_norm_of_sum
from vitruvian.ops.masked_attention import masked_attention


class Mask2FormerTransformerModule(nn.Module):
    """Learned queries and the decoder."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__()
        channels = config.hidden_dim
        project = config.feature_size != channels or config.enforce_input_projection
        self.queries_embedder = nn.Embedding(config.num_queries, channels)
        self.queries_features = nn.Embedding(config.num_queries, channels)
        self.input_projections = nn.ModuleList(
            with_init(nn.Conv2d(config.feature_size, channels, 1), "xavier") if project else nn.Identity()
            for _ in range(LEVELS)
        )
        self.decoder = Mask2FormerDecoder(config)
        self.level_embed = nn.Embedding(LEVELS, channels)

    def forward(
        self, levels: Sequence[Tensor], pixels: Tensor, *, all_masks: bool, need_weights: bool
    ) -> DecoderOutput:
        """Attend to maps [B, C, h, w] and predict masks with pixel embeddings [B, M, H/4, W/4]."""
        tokens, keys = [], []
        for level, (project, features) in enumerate(zip(self.input_projections, levels, strict=True)):
            flat = project(features).flatten(2).transpose(1, 2) + self.level_embed.weight[level]  # [B, h·w, C]
            grid_hw = (features.shape[-2], features.shape[-1])
            tokens.append(flat)
            keys.append(flat + sine_positions(grid_hw, flat.shape[-1], flat.dtype, flat.device))
        batch = pixels.shape[0]
        output: DecoderOutput = self.decoder(
            self.queries_features.weight.expand(batch, -1, -1),
            self.queries_embedder.weight.expand(batch, -1, -1),
            tokens,
            keys,
            pixels,
            [features.shape[-2:] for features in levels],
            all_masks=all_masks,
            need_weights=need_weights,
        )
        return output


class Mask2FormerDecoder(nn.Module):
    """The layers, and the norm and mask head of every prediction."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mask2FormerDecoderLayer(config) for _ in range(config.decoder_layers - 1))
        self.layernorm = nn.LayerNorm(config.hidden_dim)
        # The nesting is that of the checkpoints.
        mask_embedder = mask_head(config.hidden_dim, config.mask_feature_size, init="normal")
        self.mask_predictor = nn.ModuleDict({"mask_embedder": mask_embedder})

    def forward(
        self,
        queries: Tensor,
        query_positions: Tensor,
        tokens: Sequence[Tensor],
        keys: Sequence[Tensor],
        pixels: Tensor,
        sizes_hw: Sequence[Sequence[int]],
        *,
        all_masks: bool,
        need_weights: bool,
    ) -> DecoderOutput:
        """Run all layers on queries [B, Q, C], tokens of each map [B, h·w, C] and pixel embeddings [B, M, H/4, W/4].

        `keys` are the tokens with positions, `sizes_hw` the sizes of the maps. With `all_masks`, return the masks of
        all predictions, not only the last.
        """
        # Resizing and scoring are linear: scoring resized embeddings gives the resized masks.
        resized = [] if all_masks else [bilinear(pixels.detach(), size).flatten(2) for size in sizes_hw]
        output = DecoderOutput()
        queries = output.add_state(queries)
        output.normed.append(self.layernorm(queries))
        for number, layer in enumerate(self.layers):
            level = number % LEVELS
            embeddings = self._mask_embeddings(output)
            if all_masks:
                output.masks.append(mask_logits(embeddings, pixels))
                logits = bilinear(output.masks[-1].detach(), sizes_hw[level]).flatten(2)  # [B, Q, h·w]
            else:
                logits = embeddings.detach() @ resized[level]  # [B, Q, h·w]
            queries, weights = checkpointed(layer)(
                queries, query_positions, tokens[level], keys[level], logits, need_weights
            )
            queries = output.add_state(queries)
            output.normed.append(self.layernorm(queries))
            if weights is not None:
                output.attentions.append(weights)
        output.masks.append(mask_logits(self._mask_embeddings(output), pixels))
        return output

    def _mask_embeddings(self, output: DecoderOutput) -> Tensor:
        """Map the last normed queries [B, Q, C] to mask embeddings [B, Q, M]."""
        embeddings: Tensor = self.mask_predictor["mask_embedder"](output.normed[-1])
        return embeddings


class Mask2FormerDecoderLayer(CheckpointedLayer):
    """Masked attention to a map, attention of the queries to each other, feed-forward."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__()
        channels, heads = config.hidden_dim, config.num_attention_heads
        self.pre_norm = config.pre_norm
        self.cross_attn = MaskedAttention(channels, heads, dropout=config.dropout, init_gain=config.init_xavier_std)
        self.cross_attn_layer_norm = nn.LayerNorm(channels)
        self.self_attn = QueryAttention(channels, heads, dropout=config.dropout, init="xavier")
        self.self_attn_layer_norm = nn.LayerNorm(channels)
        self.fc1 = with_init(nn.Linear(channels, config.dim_feedforward), "xavier")
        self.fc2 = with_init(nn.Linear(config.dim_feedforward, channels), "xavier")
        self.final_layer_norm = nn.LayerNorm(channels)
        self.act = activation(config.activation_function)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, queries: Tensor, query_positions: Tensor, tokens: Tensor, keys: Tensor, logits: Tensor, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Map queries [B, Q, C] to the same; weights are those of the self-attention [B, A, Q, Q]."""
        normed = self._branch_input(queries, self.cross_attn_layer_norm)
        attended = self.cross_attn(normed + query_positions, keys, tokens, logits)
        queries = self._add_branch(queries, attended, self.cross_attn_layer_norm)

        normed = self._branch_input(queries, self.self_attn_layer_norm)
        with_positions = normed + query_positions
        attended, weights = self.self_attn(with_positions, with_positions, normed, need_weights=need_weights)
        queries = self._add_branch(queries, attended, self.self_attn_layer_norm)

        normed = self._branch_input(queries, self.final_layer_norm)
        branch = self.fc2(self.dropout(self.act(self.fc1(normed))))
        return self._add_branch(queries, branch, self.final_layer_norm), weights

    def _branch_input(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Norm the input of a branch, in models with `pre_norm`."""
        return norm(x) if self.pre_norm else x

    def _add_branch(self, x: Tensor, branch: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Add a branch and, in models without `pre_norm`, norm the sum."""
        branch = self.dropout(branch)
        return x + branch if self.pre_norm else layer_norm_of_sum(x, branch, norm)


class MaskedAttention(nn.Module):
    """Attention inside masks, its three projections in one matrix, in the layout of `nn.MultiheadAttention`."""

    def __init__(self, channels: int, heads: int, *, dropout: float = 0.0, init_gain: float = 1.0) -> None:
        super().__init__()
        self.heads, self.drop_rate, self.init_gain = heads, dropout, init_gain
        self.attn_implementation = "sdpa"
        self.in_proj_weight = nn.Parameter(torch.empty(3 * channels, channels))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * channels))
        self.out_proj = with_init(nn.Linear(channels, channels), "xavier")

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, logits: Tensor) -> Tensor:
        """Attend from [B, Q, C] to [B, N, C] inside the masks of mask logits [B, Q, N]."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        inputs = zip((queries, keys, values), weights, biases, strict=True)
        q, k, v = (F.linear(x, weight, bias) for x, weight, bias in inputs)  # [B, Q | N, C]
        dropout, implementation = self.drop_rate if self.training else 0.0, self.attn_implementation
        attended = masked_attention(q, k, v, logits, heads=self.heads, dropout=dropout, implementation=implementation)
        out: Tensor = self.out_proj(attended)  # [B, Q, C]
        return out

    def init_parameters(self) -> None:
        """Initialize the joined projections."""
        nn.init.xavier_uniform_(self.in_proj_weight, gain=self.init_gain)
        nn.init.zeros_(self.in_proj_bias)
