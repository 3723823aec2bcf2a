"""The transformer between prompts and image: tokens attend to the image, and the image attends to the tokens.

    tokens [B, P, N, C] ──self──▶ ──to image──▶ ──mlp──▶ tokens [B, P, N, C]
    image  [B, 1, M, C] ◀──────────────────────to tokens── image [B, P, M, C]

All P prompts share one image (second dimension 1) until it has attended to their tokens in the first layer.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from vitruvian.layers.gradient_checkpointing import CheckpointedLayer, checkpointed
from vitruvian.layers.query_attention import QueryAttention
from vitruvian.models.sam2.configuration import Sam2MaskDecoderConfig
from vitruvian.models.sam2.layers import Sam2MLP
from vitruvian.ops.layer_norm import layer_norm_of_sum
from vitruvian.ops.two_way_attention import ImageCells, image_to_tokens, project_cells, tokens_to_image


class TwoWayTransformer(nn.Module):
    """Layers that update tokens and image in turn, and a final attention of the tokens to the image."""

    def __init__(self, config: Sam2MaskDecoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TwoWayLayer(config, first=i == 0) for i in range(config.num_hidden_layers))
        self.final_attn_token_to_image = CrossAttention(config)
        self.layer_norm_final_attn = nn.LayerNorm(config.hidden_size)

    def forward(
        self,
        tokens: Tensor,
        image: ImageCells,
        *,
        similarity: Tensor | None = None,
        target: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the tokens [B, P, N, C], the image [B, P, M, C] and, on demand, weights [B, P, A, N, M] of each layer.

        Args:
            tokens: Output tokens and prompts [B, P, N, C]; they are also the positions of the tokens.
            image: The image, from `project_image`.
            similarity: Added to the scores of tokens to the image; broadcasts to [B, P, A, N, M].
            target: Added to the tokens before each layer; broadcasts to [B, P, N, C].
            need_weights: Whether to return weights.
        """
        # As in PerSAM, the target is also part of the positions of the tokens.
        positions = tokens if target is None else tokens + target
        all_weights: list[Tensor] = []
        for layer in self.layers:
            if target is not None:
                tokens = tokens + target
            tokens, cells, weights = checkpointed(layer)(tokens, positions, image, similarity, need_weights)
            if need_weights:
                all_weights.append(weights)
            image = ImageCells(cells, image.positions)
        attended, _ = tokens_to_image(tokens + positions, image, self.final_attn_token_to_image)
        return layer_norm_of_sum(tokens, attended, self.layer_norm_final_attn), image.cells, all_weights

    def project_image(self, image: ImageCells, *, tokens: int) -> ImageCells:
        """Project the cells for the first layer, once for all prompts; see `project_cells`."""
        first = cast(TwoWayLayer, self.layers[0])
        return project_cells(image, first.cross_attn_token_to_image, first.cross_attn_image_to_token, tokens=tokens)


class TwoWayLayer(CheckpointedLayer):
    """Self-attention of tokens, tokens to image, MLP on tokens, image to tokens; a layer norm after each."""

    def __init__(self, config: Sam2MaskDecoderConfig, *, first: bool) -> None:
        super().__init__()
        channels = config.hidden_size
        self.first = first
        self.self_attn = QueryAttention(channels, config.num_attention_heads, output_name="o_proj")
        self.layer_norm1 = nn.LayerNorm(channels)
        self.cross_attn_token_to_image = CrossAttention(config)
        self.layer_norm2 = nn.LayerNorm(channels)
        self.mlp = Sam2MLP(channels, config.mlp_dim, channels, depth=config.num_hidden_layers)
        self.layer_norm3 = nn.LayerNorm(channels)
        self.layer_norm4 = nn.LayerNorm(channels)
        self.cross_attn_image_to_token = CrossAttention(config)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        image: ImageCells,
        similarity: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return tokens [B, P, N, C], image [B, P, M, C] and, on demand, weights [B, P, A, N, M]."""
        # In the first layer the tokens are their own positions, and there is no residual sum.
        queries = (tokens if self.first else tokens + positions).flatten(0, 1)  # [B·P, N, C]
        attended = self.self_attn(queries, queries, tokens.flatten(0, 1))[0].view_as(tokens)
        tokens = self.layer_norm1(attended) if self.first else layer_norm_of_sum(tokens, attended, self.layer_norm1)
        attended, weights = tokens_to_image(
            tokens + positions, image, self.cross_attn_token_to_image, bias=similarity, need_weights=need_weights
        )
        tokens = layer_norm_of_sum(tokens, attended, self.layer_norm2)
        tokens = layer_norm_of_sum(tokens, self.mlp(tokens), self.layer_norm3)
        cells = image_to_tokens(image, tokens, positions, self.cross_attn_image_to_token, self.layer_norm4)
        return tokens, cells, weights


class CrossAttention(nn.Module):
    """Weights of an attention between tokens and image, with fewer channels inside; see `ops.two_way_attention`."""

    attn_implementation = "sdpa"

    def __init__(self, config: Sam2MaskDecoderConfig) -> None:
        super().__init__()
        channels, inner = config.hidden_size, config.hidden_size // config.attention_downsample_rate
        self.heads = config.num_attention_heads
        self.q_proj = nn.Linear(channels, inner)
        self.k_proj = nn.Linear(channels, inner)
        self.v_proj = nn.Linear(channels, inner)
        self.o_proj = nn.Linear(inner, channels)
