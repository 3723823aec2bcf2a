"""The transformer between prompts and image: tokens look at the image, and the image looks back at the tokens.

    tokens [B, P, N, C] ──self──▶ ──to image──▶ ──mlp──▶ tokens [B, P, N, C]
    image  [B, 1, M, C] ◀──────────────────────to tokens── image [B, P, M, C]

The image is the same for all P prompts until it has looked at their tokens for the first time. Until then it is kept
once (the second dimension is 1) and all tokens attend to it as one long sequence. Afterwards there is a copy a prompt,
and M, the cells of the image, is far larger than N, the tokens. There the projections of the image are folded into the
tokens' side: (x Wᵀ) k = x (Wᵀ k), which costs A·N instead of C/2 columns a cell, half of the work for a click.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn, unflatten
from torch.utils.checkpoint import checkpoint

from vitruvian.layers.attention import attend
from vitruvian.models.sam2.configuration import Sam2MaskDecoderConfig
from vitruvian.models.sam2.hiera import FeedForward


class TwoWayTransformer(nn.Module):
    """Layers that update tokens and image in turn, and a last look of the tokens at the image."""

    def __init__(self, config: Sam2MaskDecoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TwoWayLayer(config, first=i == 0) for i in range(config.num_hidden_layers))
        self.final_attn_token_to_image = CrossAttention(config)
        self.layer_norm_final_attn = nn.LayerNorm(config.hidden_size)
        self.gradient_checkpointing = False

    def forward(
        self,
        tokens: Tensor,
        image: Tensor,
        image_positions: Tensor,
        *,
        similarity: Tensor | None = None,
        target: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the tokens [B, P, N, C], the image [B, P, M, C] and on demand each layer's weights [B, P, A, N, M].

        Args:
            tokens: Output tokens and prompts [B, P, N, C]; they are also the tokens' positions.
            image: Cells of the image [B, 1 | P, M, C].
            image_positions: Their positions [1, 1, M, C].
            similarity: Added to the scores of tokens looking at the image, broadcasts to [B, P, A, N, M].
            target: Added to the tokens before each layer, broadcasts to [B, P, N, C].
            need_weights: Whether to return weights.
        """
        # As PerSAM has it, the target also becomes part of the tokens' positions.
        positions = tokens if target is None else tokens + target
        weights: list[Tensor] = []
        for layer in self.layers:
            if target is not None:
                tokens = tokens + target
            given = (tokens, positions, image, image_positions, similarity, need_weights)
            if self.gradient_checkpointing and self.training:
                tokens, image, seen = checkpoint(layer, *given, use_reentrant=False)
            else:
                tokens, image, seen = layer(*given)
            if need_weights:
                weights.append(seen)
        looked, _ = self.final_attn_token_to_image.tokens_to_image(tokens + positions, image + image_positions, image)
        return self.layer_norm_final_attn(tokens + looked), image, weights


class TwoWayLayer(nn.Module):
    """Tokens among themselves, tokens to image, feed-forward on tokens, image to tokens."""

    def __init__(self, config: Sam2MaskDecoderConfig, *, first: bool) -> None:
        super().__init__()
        channels = config.hidden_size
        self.first = first
        self.self_attn = SelfAttention(channels, heads=config.num_attention_heads)
        self.layer_norm1 = nn.LayerNorm(channels)
        self.cross_attn_token_to_image = CrossAttention(config)
        self.layer_norm2 = nn.LayerNorm(channels)
        self.mlp = FeedForward(channels, config.mlp_dim, channels, depth=config.num_hidden_layers)
        self.layer_norm3 = nn.LayerNorm(channels)
        self.layer_norm4 = nn.LayerNorm(channels)
        self.cross_attn_image_to_token = CrossAttention(config)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        image: Tensor,
        image_positions: Tensor,
        similarity: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return tokens [B, P, N, C], image [B, P, M, C] and on demand weights [B, P, A, N, M]."""
        if self.first:  # the tokens are their own positions here
            tokens = self.self_attn(tokens, tokens)
        else:
            tokens = tokens + self.self_attn(tokens + positions, tokens)
        tokens = self.layer_norm1(tokens)
        placed = image + image_positions  # [B, 1 | P, M, C]
        looked, weights = self.cross_attn_token_to_image.tokens_to_image(
            tokens + positions, placed, image, similarity=similarity, need_weights=need_weights
        )
        tokens = self.layer_norm2(tokens + looked)
        tokens = self.layer_norm3(tokens + self.mlp(tokens))
        image = self.cross_attn_image_to_token.image_to_tokens(image, placed, tokens + positions, tokens)
        return tokens, self.layer_norm4(image), weights


class SelfAttention(nn.Module):
    """Attention of each prompt's tokens among themselves."""

    attn_implementation = "sdpa"

    def __init__(self, channels: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(channels, channels)
        self.k_proj = nn.Linear(channels, channels)
        self.v_proj = nn.Linear(channels, channels)
        self.o_proj = nn.Linear(channels, channels)

    def forward(self, placed: Tensor, tokens: Tensor) -> Tensor:
        """Attend with queries and keys from `placed` and values from `tokens`, all [B, P, N, C]."""
        q, k, v = (
            unflatten(part.flatten(0, 1), -1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q_proj(placed), self.k_proj(placed), self.v_proj(tokens))
        )  # [B·P, A, N, D] each
        out, _ = attend(q, k, v, implementation=self.attn_implementation)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))  # [B·P, N, C]
        return unflatten(mixed, 0, tokens.shape[:2])  # [B, P, N, C]


class CrossAttention(nn.Module):
    """Attention between tokens and image in either direction, in fewer channels inside."""

    attn_implementation = "sdpa"

    def __init__(self, config: Sam2MaskDecoderConfig) -> None:
        super().__init__()
        channels, inner = config.hidden_size, config.hidden_size // config.attention_downsample_rate
        self.heads = config.num_attention_heads
        self.scale = (inner // self.heads) ** -0.5
        self.q_proj = nn.Linear(channels, inner)
        self.k_proj = nn.Linear(channels, inner)
        self.v_proj = nn.Linear(channels, inner)
        self.o_proj = nn.Linear(inner, channels)

    def tokens_to_image(
        self,
        tokens: Tensor,
        placed: Tensor,
        image: Tensor,
        *,
        similarity: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Let tokens [B, P, N, C] look at the image: keys `placed` and values `image`, both [B, 1 | P, M, C].

        Returns [B, P, N, C] and on demand the weights [B, P, A, N, M].
        """
        q = self.split(self.q_proj(tokens))  # [B, P, A, N, D]
        if image.shape[1] == 1:
            heads, weights = self.look_at_one(q, placed, image, similarity, need_weights)
        else:
            heads, weights = self.look_at_each(q, placed, image, similarity)
        out: Tensor = self.o_proj(heads.transpose(2, 3).flatten(3))  # [B, P, N, C]
        return out, weights

    def look_at_one(
        self, q: Tensor, placed: Tensor, image: Tensor, similarity: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from [B, P, A, N, D] to one image for all prompts, whose tokens form one sequence."""
        count, length = q.shape[1], q.shape[3]
        k, v = self.split(self.k_proj(placed))[:, 0], self.split(self.v_proj(image))[:, 0]  # [B, A, M, D]
        mask = None
        if similarity is not None:
            wide = similarity.to(q.dtype).expand(*q.shape[:2], -1, length, -1)  # [B, P, A | 1, N, M]
            mask = wide.transpose(1, 2).flatten(2, 3)  # [B, A | 1, P·N, M]
        out, weights = attend(
            q.transpose(1, 2).flatten(2, 3),  # [B, A, P·N, D]
            k,
            v,
            implementation=self.attn_implementation,
            mask=mask,
            scale=self.scale,
            need_weights=need_weights,
        )
        back = (count, length)
        if weights is not None:
            weights = unflatten(weights, 2, back).transpose(1, 2)  # [B, P, A, N, M]
        return unflatten(out, 2, back).transpose(1, 2), weights  # [B, P, A, N, D]

    def look_at_each(
        self, q: Tensor, placed: Tensor, image: Tensor, similarity: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Attend from [B, P, A, N, D] to an image a prompt, with the image's projections folded into the tokens."""
        key_weight, value_weight = self.by_head(self.k_proj.weight), self.by_head(self.v_proj.weight)  # [A, D, C]
        folded = (q * self.scale) @ key_weight  # [B, P, A, N, C]
        scores = folded.flatten(2, 3) @ placed.transpose(-2, -1)  # [B, P, A·N, M]
        scores = unflatten(scores, 2, folded.shape[2:4])  # [B, P, A, N, M]
        if torch.is_grad_enabled():
            # The keys' bias adds the same to all scores of a token, which softmax does not see. Training in parallel
            # wants a gradient for every parameter all the same.
            scores = scores + (q * self.scale) @ unflatten(self.k_proj.bias, 0, (self.heads, -1, 1))  # [B, P, A, N, 1]
        if similarity is not None:
            scores = scores + similarity.to(scores.dtype)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        seen = unflatten(weights.flatten(2, 3) @ image, 2, folded.shape[2:4])  # [B, P, A, N, C]
        bias = unflatten(self.v_proj.bias, 0, (self.heads, 1, -1))  # [A, 1, D]
        return seen @ value_weight.transpose(-2, -1) + bias, weights  # [B, P, A, N, D]

    def image_to_tokens(self, image: Tensor, placed: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Add to the image what it sees in each prompt's tokens, keys and values [B, P, N, C].

        `placed`, the image with positions, asks; both are [B, 1 | P, M, C], and the result is [B, P, M, C].
        """
        k = self.split(self.k_proj(keys)) * self.scale  # [B, P, A, N, D]
        v = self.split(self.v_proj(values))  # [B, P, A, N, D]
        if placed.shape[1] == 1:
            q = self.split(self.q_proj(placed))[:, 0]  # [B, A, M, D]
            scores = q @ k.permute(0, 2, 4, 1, 3).flatten(3)  # [B, A, M, P·N]
            scores = unflatten(scores, 3, (k.shape[1], -1)).permute(0, 3, 2, 1, 4)  # [B, P, M, A, N]
        else:
            folded = k @ self.by_head(self.q_proj.weight)  # [B, P, A, N, C]
            bias = k @ unflatten(self.q_proj.bias, 0, (self.heads, -1, 1))  # [B, P, A, N, 1]
            scores = placed @ folded.flatten(2, 3).transpose(-2, -1) + bias.flatten(2, 3).transpose(-2, -1)
            scores = unflatten(scores, 3, k.shape[2:4])  # [B, P, M, A, N]
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(v.dtype)
        out_weight = unflatten(self.o_proj.weight, 1, (self.heads, -1)).permute(1, 2, 0)  # [A, D, C]
        # What each token says to the image. A head's weights add up to 1, so its share of the bias can be said with it.
        spoken = (v @ out_weight).flatten(2, 3) + self.o_proj.bias / self.heads  # [B, P, A·N, C]
        wide = image.expand(*spoken.shape[:2], -1, -1).flatten(0, 1)  # [B·P, M, C]
        mixed = torch.baddbmm(wide, weights.flatten(3).flatten(0, 1), spoken.flatten(0, 1))  # [B·P, M, C]
        return unflatten(mixed, 0, spoken.shape[:2])  # [B, P, M, C]

    def split(self, x: Tensor) -> Tensor:
        """Give each head its own slice: [B, P, N, C'] to [B, P, A, N, D]."""
        return unflatten(x, -1, (self.heads, -1)).transpose(2, 3)

    def by_head(self, weight: Tensor) -> Tensor:
        """View a projection's weight [C', C] by head: [A, D, C]."""
        return unflatten(weight, 0, (self.heads, -1))
