"""Mask2Former's transformer: queries that look at one map after another, each only where its last mask was.

maps at 1/32, 1/16, 1/8 ─▶ tokens [B, h·w, C] ─┐ (layer i looks at map i mod 3)
queries [B, Q, C] ─▶ predict a mask ─▶ masked attention ─▶ self-attention ─▶ feed-forward ─▶ predict a mask ─▶ …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitruvian.layers.init import with_init
from vitruvian.layers.mlp import activation
from vitruvian.layers.queries import PackedAttention, QueryAttention, mask_head, mask_logits
from vitruvian.layers.sine import sine_positions
from vitruvian.models.mask2former import fast
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.pixel_decoder import LEVELS


@dataclass
class Decoded:
    """Queries [B, Q, C] before the first layer and after each, as they are and normed; masks; attention weights.

    `masks` [B, Q, H/4, W/4] holds the last prediction alone unless all were asked for.
    """

    states: list[Tensor]
    normed: list[Tensor]
    masks: list[Tensor]
    attentions: list[Tensor]


class TransformerModule(nn.Module):
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
        self.decoder = Decoder(config)
        self.level_embed = nn.Embedding(LEVELS, channels)

    def forward(self, levels: Sequence[Tensor], pixels: Tensor, *, all_masks: bool, need_weights: bool) -> Decoded:
        """Let queries look at maps [B, C, h, w] and predict masks with pixel embeddings [B, M, H/4, W/4]."""
        tokens, keys = [], []
        for level, (project, features) in enumerate(zip(self.input_projections, levels, strict=True)):
            flat = project(features).flatten(2).transpose(1, 2) + self.level_embed.weight[level]  # [B, h·w, C]
            grid_hw = (features.shape[-2], features.shape[-1])
            tokens.append(flat)
            keys.append(flat + sine_positions(grid_hw, flat.shape[-1], flat.dtype, flat.device))
        batch = pixels.shape[0]
        found: Decoded = self.decoder(
            self.queries_features.weight.expand(batch, -1, -1),
            self.queries_embedder.weight.expand(batch, -1, -1),
            tokens,
            keys,
            pixels,
            [features.shape[-2:] for features in levels],
            all_masks=all_masks,
            need_weights=need_weights,
        )
        return found


class Decoder(nn.Module):
    """The layers, and the norm and mask head that every prediction passes."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self.quick = False
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers - 1))
        self.layernorm = nn.LayerNorm(config.hidden_dim)
        self.mask_predictor = MaskPredictor(config)

    def forward(
        self,
        queries: Tensor,
        places: Tensor,
        tokens: Sequence[Tensor],
        keys: Sequence[Tensor],
        pixels: Tensor,
        sizes_hw: Sequence[Sequence[int]],
        *,
        all_masks: bool,
        need_weights: bool,
    ) -> Decoded:
        """Run all layers.

        Args:
            queries: Learned features [B, Q, C].
            places: Learned positions [B, Q, C].
            tokens: What the queries look at, one map after another [B, h·w, C].
            keys: The same with positions [B, h·w, C].
            pixels: Pixel embeddings [B, M, H/4, W/4].
            sizes_hw: Height and width of each map.
            all_masks: Return the masks before the last ones too.
            need_weights: Also keep the attention of the queries to each other.
        """
        small = [shrink(pixels, size) for size in sizes_hw] if not all_masks else []
        found = Decoded([queries], [self.layernorm(queries)], [], [])
        if small and not need_weights and not self.training and fast.takes_decoder(self, queries):
            found.states, found.normed = fast.run_decoder(self, queries, places, tokens, keys, small)
            found.masks.append(mask_logits(self.mask_predictor(found.normed[-1]), pixels))
            return found
        for number, layer in enumerate(self.layers):
            level = number % LEVELS
            vectors = self.mask_predictor(found.normed[-1])  # [B, Q, M]
            if all_masks:
                found.masks.append(mask_logits(vectors, pixels))
                visible = shrink(found.masks[-1].detach(), sizes_hw[level])
            else:
                # Shrinking and scoring are linear: scoring small embeddings gives the small mask at once.
                visible = mask_logits(vectors.detach(), small[level].detach())
            mask = look_where(visible)  # [B, 1, Q, h·w]
            if self.gradient_checkpointing and self.training:
                queries, weights = checkpoint(
                    layer, queries, places, tokens[level], keys[level], mask, need_weights, use_reentrant=False
                )
            else:
                queries, weights = layer(queries, places, tokens[level], keys[level], mask, need_weights)
            found.states.append(queries)
            found.normed.append(self.layernorm(queries))
            if weights is not None:
                found.attentions.append(weights)
        found.masks.append(mask_logits(self.mask_predictor(found.normed[-1]), pixels))
        return found


class MaskPredictor(nn.Module):
    """Turns queries into mask vectors."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__()
        self.mask_embedder = mask_head(config.hidden_dim, config.mask_feature_size)

    def forward(self, queries: Tensor) -> Tensor:
        """Map normed queries [B, Q, C] to mask vectors [B, Q, M]."""
        vectors: Tensor = self.mask_embedder(queries)
        return vectors


class DecoderLayer(nn.Module):
    """Masked attention to a map, attention of the queries to each other, feed-forward."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__()
        channels, heads = config.hidden_dim, config.num_attention_heads
        self.pre_norm = config.pre_norm
        self.cross_attn = PackedAttention(channels, heads, dropout=config.dropout)
        self.cross_attn_layer_norm = nn.LayerNorm(channels)
        self.self_attn = QueryAttention(channels, heads, dropout=config.dropout, start="xavier")
        self.self_attn_layer_norm = nn.LayerNorm(channels)
        self.fc1 = with_init(nn.Linear(channels, config.dim_feedforward), "xavier")
        self.fc2 = with_init(nn.Linear(config.dim_feedforward, channels), "xavier")
        self.final_layer_norm = nn.LayerNorm(channels)
        self.act = activation(config.activation_function)
        self.drop_rate = config.dropout

    def forward(
        self, queries: Tensor, places: Tensor, tokens: Tensor, keys: Tensor, mask: Tensor, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Map queries [B, Q, C] to the same; weights are those of the self-attention [B, A, Q, Q]."""
        seen = self.before(queries, self.cross_attn_layer_norm)
        seen = self.cross_attn(seen + places, keys, tokens, mask=mask)
        queries = self.after(queries + self.drop(seen), self.cross_attn_layer_norm)

        own = self.before(queries, self.self_attn_layer_norm)
        seen, weights = self.self_attn(own + places, own + places, own, need_weights=need_weights)
        queries = self.after(queries + self.drop(seen), self.self_attn_layer_norm)

        own = self.before(queries, self.final_layer_norm)
        fed = self.fc2(self.drop(self.act(self.fc1(own))))
        return self.after(queries + self.drop(fed), self.final_layer_norm), weights

    def before(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Norm the input of a branch, in models that do so."""
        out: Tensor = norm(x) if self.pre_norm else x
        return out

    def after(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Norm a sum, in models that do so."""
        out: Tensor = x if self.pre_norm else norm(x)
        return out

    def drop(self, x: Tensor) -> Tensor:
        """Apply the dropout of a branch."""
        return F.dropout(x, self.drop_rate, self.training)


def shrink(maps: Tensor, size_hw: Sequence[int]) -> Tensor:
    """Resize maps [B, C, H, W] to [B, C, h, w], bilinearly and without smoothing, as the models were trained."""
    return F.interpolate(maps, size=tuple(size_hw), mode="bilinear", align_corners=False)


@torch.no_grad()
def look_where(logits: Tensor) -> Tensor:
    """Let queries look where their mask is, or everywhere if it is nowhere: [B, Q, h, w] -> bool [B, 1, Q, h·w]."""
    inside = (logits >= 0).flatten(2)[:, None]  # [B, 1, Q, h·w]
    return inside | ~inside.any(-1, keepdim=True)
