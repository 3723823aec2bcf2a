"""The transformer between prompts and image: tokens attend to the image, and the image attends to the tokens.

    tokens [B, P, N, C] ──self──▶ ──to image──▶ ──mlp──▶ tokens [B, P, N, C]
    image  [B, 1, M, C] ◀──────────────────────to tokens── image [B, P, M, C]

All P prompts share one image (second dimension 1) until it has attended to their tokens in the first layer.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from vitruvian.layers.checkpointed import CheckpointedLayer, checkpointed
from vitruvian.models.sam2.configuration import Sam2MaskDecoderConfig
from vitruvian.models.sam2.layers import Sam2MLP
from vitruvian.ops.attention import attention
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
        self.self_attn = SelfAttention(channels, heads=config.num_attention_heads)
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
        if self.first:  # the tokens are their own positions here, and there is no residual sum
            tokens = self.layer_norm1(self.self_attn(tokens, tokens))
        else:
            tokens = layer_norm_of_sum(tokens, self.self_attn(tokens + positions, tokens), self.layer_norm1)
        attended, weights = tokens_to_image(
            tokens + positions, image, self.cross_attn_token_to_image, bias=similarity, need_weights=need_weights
        )
        tokens = layer_norm_of_sum(tokens, attended, self.layer_norm2)
        tokens = layer_norm_of_sum(tokens, self.mlp(tokens), self.layer_norm3)
        cells = image_to_tokens(image, tokens, positions, self.cross_attn_image_to_token, self.layer_norm4)
        return tokens, cells, weights


class SelfAttention(nn.Module):
    """Attention among the tokens of each prompt."""

    attn_implementation = "sdpa"

    def __init__(self, channels: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(channels, channels)
        self.k_proj = nn.Linear(channels, channels)
        self.v_proj = nn.Linear(channels, channels)
        self.o_proj = nn.Linear(channels, channels)

    def forward(self, with_positions: Tensor, tokens: Tensor) -> Tensor:
        """Attend with queries and keys from `with_positions` and values from `tokens`, all [B, P, N, C]."""
        B, P, N, C = tokens.shape
        q, k, v = (
            part.view(B * P, N, self.heads, -1).transpose(1, 2)
            for part in (self.q_proj(with_positions), self.k_proj(with_positions), self.v_proj(tokens))
        )  # [B·P, A, N, D] each
        attended, _ = attention(q, k, v, implementation=self.attn_implementation)
        out: Tensor = self.o_proj(attended.transpose(1, 2).reshape(B, P, N, C))
        return out


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
