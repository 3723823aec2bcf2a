"""The transformer between prompts and image: tokens look at the image, and the image looks back at the tokens.

    tokens [B, P, N, C] ──self──▶ ──to image──▶ ──mlp──▶ tokens [B, P, N, C]
    image  [B, 1, M, C] ◀──────────────────────to tokens── image [B, P, M, C]

The image is the same for all P prompts until it has looked at their tokens for the first time. Until then it is kept
once (the second dimension is 1), its projections are made once (`SharedImage`) and all tokens attend to it as one long
sequence. Afterwards there is a copy a prompt, and M, the cells of the image, is far larger than N, the tokens. There
the projections of the image are folded into the tokens' side: (x Wᵀ) k = x (Wᵀ k), which costs A·N instead of C/2
columns a cell, half of the work for a click.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn, unflatten
from torch.utils.checkpoint import checkpoint

from vitruvian.models.sam2 import fast
from vitruvian.models.sam2.configuration import Sam2MaskDecoderConfig
from vitruvian.models.sam2.hiera import FeedForward
from vitruvian.ops.attention import attention


class SharedImage(NamedTuple):
    """The first layer's projections of an image that all prompts share, each [B, A, M, D].

    Attributes:
        keys: What tokens compare themselves with.
        values: What they take from the image.
        queries: What the image asks the tokens with.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor


class TwoWayTransformer(nn.Module):
    """Layers that update tokens and image in turn, and a last look of the tokens at the image."""

    def __init__(self, config: Sam2MaskDecoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TwoWayLayer(config, first=i == 0) for i in range(config.num_hidden_layers))
        self.final_attn_token_to_image = CrossAttention(config)
        self.layer_norm_final_attn = nn.LayerNorm(config.hidden_size)
        self.gradient_checkpointing = False
        self.quick = False

    def forward(
        self,
        tokens: Tensor,
        image: Tensor,
        image_positions: Tensor,
        *,
        shared: SharedImage | None = None,
        similarity: Tensor | None = None,
        target: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the tokens [B, P, N, C], the image [B, P, M, C] and on demand each layer's weights [B, P, A, N, M].

        Args:
            tokens: Output tokens and prompts [B, P, N, C]; they are also the tokens' positions.
            image: Cells of the image [B, 1 | P, M, C].
            image_positions: Their positions [1, 1, M, C].
            shared: What `share` makes of the image.
            similarity: Added to the scores of tokens looking at the image, broadcasts to [B, P, A, N, M].
            target: Added to the tokens before each layer, broadcasts to [B, P, N, C].
            need_weights: Whether to return weights.
        """
        special = need_weights or similarity is not None or target is not None
        if not special and fast.takes_transformer(self, image):
            return *fast.run_transformer(self, tokens, image, image_positions, shared), []
        # As PerSAM has it, the target also becomes part of the tokens' positions.
        positions = tokens if target is None else tokens + target
        weights: list[Tensor] = []
        for layer in self.layers:
            if target is not None:
                tokens = tokens + target
            given = (tokens, positions, image, image_positions, shared, similarity, need_weights)
            if self.gradient_checkpointing and self.training:
                tokens, image, seen = checkpoint(layer, *given, use_reentrant=False)
            else:
                tokens, image, seen = layer(*given)
            if need_weights:
                weights.append(seen)
            shared = None
        looked, _ = self.final_attn_token_to_image.look_at_each(tokens + positions, image + image_positions, image)
        return self.layer_norm_final_attn(tokens + looked), image, weights

    def share(self, image: Tensor, image_positions: Tensor, *, tokens: int) -> SharedImage | None:
        """Project the image [B, 1 | P, M, C] for the first layer once for a picture's `tokens`, those of all prompts.

        None where each prompt has an image of its own, or where folding is less work because there are few tokens.
        """
        layer = cast(TwoWayLayer, self.layers[0])
        worth = image.shape[1] == 1 and layer.worth_sharing(tokens)
        return layer.share(image, image_positions) if worth else None


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
        shared: SharedImage | None = None,
        similarity: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return tokens [B, P, N, C], image [B, P, M, C] and on demand weights [B, P, A, N, M]."""
        if self.first:  # the tokens are their own positions here
            tokens = self.self_attn(tokens, tokens)
        else:
            tokens = tokens + self.self_attn(tokens + positions, tokens)
        tokens = self.layer_norm1(tokens)
        to_image, to_tokens = self.cross_attn_token_to_image, self.cross_attn_image_to_token
        weights: Tensor | None
        if shared is None:
            placed = image + image_positions  # [B, P, M, C]
            looked, weights = to_image.look_at_each(tokens + positions, placed, image, similarity)
        else:
            looked, weights = to_image.look_at_one(tokens + positions, shared, similarity, need_weights)
        tokens = self.layer_norm2(tokens + looked)
        tokens = self.layer_norm3(tokens + self.mlp(tokens))
        keys = to_tokens.keys_of(tokens + positions)  # [B, P, A, N, D]
        scores = to_tokens.scores_of_each(placed, keys) if shared is None else to_tokens.scores_of_one(shared, keys)
        image = to_tokens.look_back(image, scores, tokens)  # [B, P, M, C]
        return tokens, self.layer_norm4(image), weights

    def share(self, image: Tensor, image_positions: Tensor) -> SharedImage:
        """Project an image [B, 1, M, C] that all prompts share."""
        to_image, to_tokens = self.cross_attn_token_to_image, self.cross_attn_image_to_token
        placed = image + image_positions  # [B, 1, M, C]
        return SharedImage(
            keys=to_image.split(to_image.k_proj(placed))[:, 0],
            values=to_image.split(to_image.v_proj(image))[:, 0],
            queries=to_tokens.split(to_tokens.q_proj(placed))[:, 0],
        )

    def worth_sharing(self, tokens: int) -> bool:
        """Tell whether projecting the image costs less than folding its projections into this many tokens."""
        cross = self.cross_attn_token_to_image
        return tokens * cross.heads > cross.q_proj.out_features


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
        out, _ = attention(q, k, v, implementation=self.attn_implementation)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))  # [B·P, N, C]
        return unflatten(mixed, 0, tokens.shape[:2])  # [B, P, N, C]


class CrossAttention(nn.Module):
    """Attention between tokens and image in either direction, in fewer channels inside."""

    attn_implementation = "sdpa"

    def __init__(self, config: Sam2MaskDecoderConfig) -> None:
        super().__init__()
        channels, inner = config.hidden_size, config.hidden_size // config.attention_downsample_rate
        self.heads = config.num_attention_heads
        self.scale: float = (inner // self.heads) ** -0.5
        self.q_proj = nn.Linear(channels, inner)
        self.k_proj = nn.Linear(channels, inner)
        self.v_proj = nn.Linear(channels, inner)
        self.o_proj = nn.Linear(inner, channels)

    def look_at_one(
        self, tokens: Tensor, shared: SharedImage, similarity: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Let tokens [B, P, N, C] look at one image for all prompts, as one sequence.

        Returns [B, P, N, C] and on demand the weights [B, P, A, N, M].
        """
        count, length = tokens.shape[1:3]
        q = self.split(self.q_proj(tokens.flatten(1, 2)[:, None]))[:, 0]  # [B, A, P·N, D]
        mask = None
        if similarity is not None:
            wide = similarity.to(q.dtype).expand(*tokens.shape[:2], -1, length, -1)  # [B, P, A | 1, N, M]
            mask = wide.transpose(1, 2).flatten(2, 3)  # [B, A | 1, P·N, M]
        out, weights = attention(
            q,
            shared.keys,
            shared.values,
            implementation=self.attn_implementation,
            mask=mask,
            scale=self.scale,
            need_weights=need_weights,
        )
        if weights is not None:
            weights = unflatten(weights, 2, (count, length)).transpose(1, 2)  # [B, P, A, N, M]
        mixed: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))  # [B, P·N, C]
        return unflatten(mixed, 1, (count, length)), weights  # [B, P, N, C]

    def look_at_each(
        self, tokens: Tensor, placed: Tensor, image: Tensor, similarity: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Let tokens [B, P, N, C] look at an image a prompt: keys `placed` and values `image`, both [B, P, M, C].

        The image's projections are folded into the tokens. Returns [B, P, N, C] and the weights [B, P, A, N, M].
        """
        q = self.split(self.q_proj(tokens)) * self.scale  # [B, P, A, N, D]
        folded = q @ self.by_head(self.k_proj.weight)  # [B, P, A, N, C]
        scores = folded.flatten(2, 3) @ placed.transpose(-2, -1)  # [B, P, A·N, M]
        scores = unflatten(scores, 2, folded.shape[2:4])  # [B, P, A, N, M]
        if torch.is_grad_enabled():
            # The keys' bias adds the same to all scores of a token, which softmax does not see. Training in parallel
            # wants a gradient for every parameter all the same.
            scores = scores + q @ unflatten(self.k_proj.bias, 0, (self.heads, -1, 1))  # [B, P, A, N, M]
        if similarity is not None:
            scores = scores + similarity.to(scores.dtype)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        seen = unflatten(weights.flatten(2, 3) @ image, 2, folded.shape[2:4])  # [B, P, A, N, C]
        bias = unflatten(self.v_proj.bias, 0, (self.heads, 1, -1))  # [A, 1, D]
        heads = seen @ self.by_head(self.v_proj.weight).transpose(-2, -1) + bias  # [B, P, A, N, D]
        out: Tensor = self.o_proj(heads.transpose(2, 3).flatten(3))  # [B, P, N, C]
        return out, weights

    def keys_of(self, tokens: Tensor) -> Tensor:
        """Keys of tokens [B, P, N, C] that the image asks, scaled: [B, P, A, N, D]."""
        return self.split(self.k_proj(tokens)) * self.scale

    def scores_of_one(self, shared: SharedImage, keys: Tensor) -> Tensor:
        """Compare one image with the tokens of all prompts: keys [B, P, A, N, D] to scores [B, P, A, N, M]."""
        scores = keys.transpose(1, 2).flatten(2, 3) @ shared.queries.transpose(-2, -1)  # [B, A, P·N, M]
        return unflatten(scores, 2, (keys.shape[1], -1)).transpose(1, 2)  # [B, P, A, N, M]

    def scores_of_each(self, placed: Tensor, keys: Tensor) -> Tensor:
        """Compare an image a prompt [B, P, M, C] with keys [B, P, A, N, D]: scores [B, P, A, N, M]."""
        folded = keys @ self.by_head(self.q_proj.weight)  # [B, P, A, N, C]
        scores = folded.flatten(2, 3) @ placed.transpose(-2, -1)  # [B, P, A·N, M]
        bias = keys @ unflatten(self.q_proj.bias, 0, (self.heads, -1, 1))  # [B, P, A, N, 1]
        return unflatten(scores, 2, keys.shape[2:4]) + bias  # [B, P, A, N, M]

    def look_back(self, image: Tensor, scores: Tensor, tokens: Tensor) -> Tensor:
        """Add to the image [B, 1 | P, M, C] what it sees in tokens [B, P, N, C], by scores [B, P, A, N, M]."""
        # The few tokens of a prompt lie next to last: a softmax over a short last dimension is slow.
        weights = scores.softmax(dim=-2, dtype=torch.float32).to(tokens.dtype).flatten(2, 3)  # [B, P, A·N, M]
        out_weight = unflatten(self.o_proj.weight, 1, (self.heads, -1)).permute(1, 2, 0)  # [A, D, C]
        # What each token says to the image. A head's weights add up to 1, so its share of the bias can be said with it.
        spoken = self.split(self.v_proj(tokens)) @ out_weight  # [B, P, A, N, C]
        spoken = spoken.flatten(2, 3) + self.o_proj.bias / self.heads  # [B, P, A·N, C]
        wide = image.expand(*spoken.shape[:2], -1, -1).flatten(0, 1)  # [B·P, M, C]
        mixed = torch.baddbmm(wide, weights.flatten(0, 1).transpose(1, 2), spoken.flatten(0, 1))  # [B·P, M, C]
        return unflatten(mixed, 0, spoken.shape[:2])  # [B, P, M, C]

    def split(self, x: Tensor) -> Tensor:
        """Give each head its own slice: [B, P, N, C'] to [B, P, A, N, D]."""
        return unflatten(x, -1, (self.heads, -1)).transpose(2, 3)

    def by_head(self, weight: Tensor) -> Tensor:
        """View a projection's weight [C', C] by head: [A, D, C]."""
        return unflatten(weight, 0, (self.heads, -1))
