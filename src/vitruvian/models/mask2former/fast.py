"""Mask2Former for inference: deformable and masked attention in one kernel each, residuals and norms in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.kernels.available import takes_fused
from vitruvian.kernels.deformable import sample_points
from vitruvian.kernels.fused import norm_and_place, norm_of_sum
from vitruvian.kernels.joint import join
from vitruvian.kernels.masked import attend_masked
from vitruvian.layers.deformable import DeformableAttention, Levels

if TYPE_CHECKING:
    from vitruvian.models.mask2former.pixel_decoder import DeformableEncoder
    from vitruvian.models.mask2former.transformer_decoder import Decoder


def fuse_deformable(model: nn.Module) -> None:
    """Join what deformable attentions project their queries to, and let decoders take their fused way."""
    for module in model.modules():
        if isinstance(module, DeformableAttention):
            module.joint = join([module.sampling_offsets, module.attention_weights])
        elif hasattr(module, "mask_predictor"):
            module.quick = True  # type: ignore[assignment]


def takes_encoder(encoder: DeformableEncoder, tokens: Tensor) -> bool:
    """Tell whether the pixel decoder's encoder can take its fused way."""
    layers: Any = encoder.layers
    return takes_fused(tokens) and all(layer.self_attn.joint is not None for layer in layers)


def run_encoder(encoder: DeformableEncoder, tokens: Tensor, positions: Tensor, level_hw: Levels) -> Tensor:
    """Pass tokens [B, N, C] with positions [N, C] through all layers of deformable attention."""
    placed = tokens + positions  # [B, N, C]
    layer: Any
    for layer in encoder.layers:
        attention = layer.self_attn
        sampled = sample_points(
            attention.value_proj(tokens),
            F.linear(placed, *attention.joint),  # [B, N, 3·A·L·P]
            level_hw,
            heads=attention.heads,
            points=attention.points,
        )  # [B, N, C]
        tokens = norm_of_sum(tokens, attention.output_proj(sampled), layer.self_attn_layer_norm)
        fed = layer.fc2(F.relu_(layer.fc1(tokens)))
        tokens, placed = norm_and_place(tokens, fed, layer.final_layer_norm, positions)
    return tokens


def takes_decoder(decoder: Decoder, queries: Tensor) -> bool:
    """Tell whether the transformer's decoder can take its fused way."""
    layers: Any = decoder.layers
    plain = any(layer.pre_norm or layer.cross_attn.attn_implementation == "eager" for layer in layers)
    return decoder.quick and not plain and takes_fused(queries)


def run_decoder(
    decoder: Decoder,
    queries: Tensor,
    places: Tensor,
    tokens: Sequence[Tensor],
    keys: Sequence[Tensor],
    small: Sequence[Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """Run all layers: the queries [B, Q, C] before the first and after each, as they are and normed.

    Args:
        decoder: The decoder.
        queries: Learned features [B, Q, C].
        places: Learned positions [B, Q, C].
        tokens: What the queries look at, one map after another [B, h·w, C].
        keys: The same with positions.
        small: Pixel embeddings at the size of each map [B, M, h, w].
    """
    scored = [maps.flatten(2) for maps in small]  # [B, M, h·w] each
    states, normed = [queries], [decoder.layernorm(queries)]
    layer: Any
    for number, layer in enumerate(decoder.layers):
        level = number % len(tokens)
        logits = decoder.mask_predictor(normed[-1]) @ scored[level]  # [B, Q, h·w]
        cross = layer.cross_attn
        weights, biases = cross.in_proj_weight.chunk(3), cross.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x, weight, bias)
            for x, weight, bias in zip((queries + places, keys[level], tokens[level]), weights, biases, strict=True)
        )
        seen = cross.out_proj(attend_masked(q, k, v, logits, heads=cross.heads))  # [B, Q, C]
        queries = norm_of_sum(queries, seen, layer.cross_attn_layer_norm)
        placed = queries + places
        seen, _ = layer.self_attn(placed, placed, queries)
        queries = norm_of_sum(queries, seen, layer.self_attn_layer_norm)
        fed = layer.fc2(layer.act(layer.fc1(queries)))
        queries = norm_of_sum(queries, fed, layer.final_layer_norm)
        states.append(queries)
        normed.append(decoder.layernorm(queries))
    return states, normed
