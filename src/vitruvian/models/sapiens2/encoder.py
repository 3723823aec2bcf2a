"""The Sapiens2 encoder: patches ─▶ [4K: window tokenizer] ─▶ class token, registers, patches ─▶ layers.

pixel_values [B, 3, H, W] ─▶ tokens [B, 1 + R + h·w, C] ─▶ N layers ─▶ tokens [B, 1 + R + h·w, C]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitruvian.errors import InputError
from vitruvian.layers.mlp import MLP, GatedMLP
from vitruvian.layers.norm import RMSNorm
from vitruvian.layers.residual import DropPath, LayerScale
from vitruvian.layers.rope import augment_centers, patch_centers, rope_table, rotate
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.ops.attention import attention

Rope = tuple[Tensor, Tensor]


class Encoded(NamedTuple):
    """What the layers give: tokens [B, N, C], and on demand those of every stage and the attention weights."""

    tokens: Tensor
    hidden_states: tuple[Tensor, ...] | None
    attentions: tuple[Tensor, ...] | None


class Embeddings(nn.Module):
    """Patches as tokens, after the class token and the registers."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__()
        channels = config.hidden_size
        self.cls_token = nn.Parameter(torch.zeros(1, 1, channels))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, channels)) if config.use_mask_token else None
        self.register_tokens = nn.Parameter(torch.zeros(1, config.num_register_tokens, channels))
        self.patch_embeddings = nn.Conv2d(
            config.num_channels, channels, kernel_size=config.patch_hw, stride=config.patch_hw
        )
        self.tokenizer = WindowTokenizer(config) if config.use_tokenizer else None

    def forward(self, pixel_values: Tensor, bool_masked_pos: Tensor | None = None) -> Tensor:
        """Embed [B, 3, H, W], with the patches that are True in [B, H/p · W/p] replaced by the mask token."""
        patches, grid_hw = self.embed(pixel_values)  # [B, H/p · W/p, C]
        if bool_masked_pos is not None:
            patches = self.mask(patches, bool_masked_pos)
        if self.tokenizer is not None:
            patches = self.tokenizer(patches.view(patches.shape[0], *grid_hw, -1))  # [B, h·w, C]
        batch = pixel_values.shape[0]  # not len(): export follows shapes
        front = (self.cls_token.expand(batch, -1, -1), self.register_tokens.expand(batch, -1, -1))
        return torch.cat((*front, patches), dim=1)  # [B, 1 + R + h·w, C]

    def in_place(self, pixel_values: Tensor) -> Tensor:
        """Embed [B, 3, H, W] for inference, without a tokenizer: each picture where it belongs, to move none."""
        conv, registers = self.patch_embeddings, self.register_tokens
        cut, _ = self.cut(pixel_values)  # [B, h·w, 3·p·p]
        front = 1 + registers.shape[1]
        tokens = cut.new_empty(cut.shape[0], front + cut.shape[1], conv.out_channels)  # [B, 1 + R + h·w, C]
        tokens[:, :1], tokens[:, 1:front] = self.cls_token, registers
        assert conv.bias is not None
        for patches, place in zip(cut, tokens[:, front:], strict=True):
            torch.addmm(conv.bias, patches, conv.weight.flatten(1).t(), out=place)
        return tokens

    def embed(self, pixel_values: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Project patches: what the convolution says, as a matrix product, for which every device has a quick way."""
        cut, grid_hw = self.cut(pixel_values)
        conv = self.patch_embeddings
        return F.linear(cut, conv.weight.flatten(1), conv.bias), grid_hw  # [B, h·w, C]

    def cut(self, pixel_values: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Cut [B, 3, H, W] into patches [B, h·w, 3·p·p]; return the grid (h, w) too."""
        (down, across), (batch, channels, height, width) = self.patch_embeddings.kernel_size, pixel_values.shape
        grid_hw = (height // down, width // across)
        cut = pixel_values.reshape(batch, channels, grid_hw[0], down, grid_hw[1], across)  # [B, 3, h, p, w, p]
        return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, grid_hw[0] * grid_hw[1], -1), grid_hw

    def mask(self, patches: Tensor, positions: Tensor) -> Tensor:
        """Put the mask token in the place of patches."""
        if self.mask_token is None:
            raise InputError("bool_masked_pos: needs a model with a mask token. Build it with use_mask_token=True.")
        if tuple(positions.shape) != tuple(patches.shape[:2]):
            raise InputError(
                f"bool_masked_pos: expected the shape {list(patches.shape[:2])}, one entry for each patch, "
                f"got {list(positions.shape)}."
            )
        return torch.where(positions.bool().unsqueeze(-1), self.mask_token.to(patches.dtype), patches)


class WindowTokenizer(nn.Module):
    """Merge each window of patches into one token, so that a 4K picture costs what a 1K one does.

    A window's patches, its own class token and learned positions pass a few plain layers; the class token remains.
    """

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__()
        channels, self.window = config.hidden_size, config.tokenizer_window_size
        self.cls_token = nn.Parameter(torch.zeros(1, 1, channels))
        self.position_embeddings = nn.Parameter(torch.zeros(1, 1 + self.window**2, channels))
        self.layer = nn.ModuleList(
            Layer(config, kv_heads=config.num_attention_heads, hidden=4 * channels, plain=True)
            for _ in range(config.num_tokenizer_layers)
        )

    def forward(self, patches: Tensor) -> Tensor:
        """Merge patches [B, H', W', C] into tokens [B, H'/k · W'/k, C]."""
        batch, height, width, channels = patches.shape
        k = self.window
        windows = patches.view(batch, height // k, k, width // k, k, channels).transpose(2, 3)  # [B, h, w, k, k, C]
        windows = windows.reshape(-1, k * k, channels)  # [B·h·w, k², C]
        tokens = torch.cat((self.cls_token.expand(windows.shape[0], -1, -1), windows), dim=1)  # [B·h·w, 1 + k², C]
        tokens = tokens + self.position_embeddings
        for layer in self.layer:
            tokens, _ = layer(tokens, None)
        return tokens[:, 0].view(batch, -1, channels)  # [B, h·w, C]


class Encoder(nn.Module):
    """The transformer layers."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__()
        heads = config.num_key_value_heads_per_layer or []
        self.layer = nn.ModuleList(Layer(config, kv_heads=h, hidden=config.intermediate_size) for h in heads)
        self.gradient_checkpointing = False

    def forward(self, tokens: Tensor, rope: Rope, *, hidden_states: bool = False, attentions: bool = False) -> Encoded:
        """Pass [B, N, C] through all layers."""
        states, weights = [tokens], []
        for layer in self.layer:
            if self.gradient_checkpointing and self.training:
                tokens, weight = checkpoint(layer, tokens, rope, attentions, use_reentrant=False)
            else:
                tokens, weight = layer(tokens, rope, attentions)
            if hidden_states:
                states.append(tokens)
            if attentions:
                weights.append(weight)
        return Encoded(tokens, tuple(states) if hidden_states else None, tuple(weights) if attentions else None)


class Layer(nn.Module):
    """Attention and feed-forward, each on a residual branch; `plain` leaves out qk-norm and layer scale."""

    def __init__(self, config: Sapiens2Config, *, kv_heads: int, hidden: int, plain: bool = False) -> None:
        super().__init__()
        channels, eps = config.hidden_size, config.rms_norm_eps
        self.norm1 = RMSNorm(channels, eps=eps)
        self.attention = Attention(config, kv_heads=kv_heads, qk_norm=config.use_qk_norm and not plain)
        self.layer_scale1 = nn.Identity() if plain else LayerScale(channels, value=config.layerscale_value)
        self.norm2 = RMSNorm(channels, eps=eps)
        mlp = GatedMLP if config.use_gated_mlp else MLP
        self.mlp = mlp(channels, hidden, act=config.hidden_act, bias=config.mlp_bias)
        self.drop_path = DropPath(config.drop_path_rate)

    def forward(self, tokens: Tensor, rope: Rope | None, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Update [B, N, C]; return the attention weights [B, A, N, N] too where asked."""
        attended, weights = self.attention(self.norm1(tokens), rope, need_weights)
        tokens = tokens + self.drop_path(self.layer_scale1(attended))
        return tokens + self.drop_path(self.mlp(self.norm2(tokens))), weights


class Attention(nn.Module):
    """Grouped-query self-attention with normalised, rotated queries and keys."""

    def __init__(self, config: Sapiens2Config, *, kv_heads: int, qk_norm: bool) -> None:
        super().__init__()
        channels = config.hidden_size
        self.head_dim = channels // config.num_attention_heads
        self.dropout = config.attention_dropout
        self.attn_implementation = "sdpa"
        self.q_proj = nn.Linear(channels, channels, bias=config.query_bias)
        self.k_proj = nn.Linear(channels, kv_heads * self.head_dim, bias=config.key_bias)
        self.v_proj = nn.Linear(channels, kv_heads * self.head_dim, bias=config.value_bias)
        self.o_proj = nn.Linear(channels, channels, bias=config.proj_bias)
        self.q_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps) if qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps) if qk_norm else nn.Identity()

    def forward(self, tokens: Tensor, rope: Rope | None, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Attend within [B, N, C]."""
        q = self.q_norm(split_heads(self.q_proj(tokens), self.head_dim))  # [B, A, N, D]
        k = self.k_norm(split_heads(self.k_proj(tokens), self.head_dim))  # [B, G, N, D]
        v = split_heads(self.v_proj(tokens), self.head_dim)  # [B, G, N, D]
        if rope is not None:
            q, k = rotate(q, *rope), rotate(k, *rope)
        out, weights = attention(
            q,
            k,
            v,
            implementation=self.attn_implementation,
            dropout=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )
        return self.o_proj(out.transpose(1, 2).flatten(2)), weights  # [B, N, C]


def split_heads(tokens: Tensor, head_dim: int) -> Tensor:
    """Give each head its own slice: [B, N, C] -> [B, A, N, D]."""
    return tokens.view(*tokens.shape[:2], -1, head_dim).transpose(1, 2)


def positions(config: Sapiens2Config, grid_hw: tuple[int, int], *, device: torch.device, training: bool) -> Rope:
    """Rotation tables of a token grid, moved at random in training as the configuration says."""
    centers = patch_centers(grid_hw, device)  # [h·w, 2]
    if training:
        centers = augment_centers(
            centers,
            shift=config.pos_embed_shift,
            jitter=config.pos_embed_jitter,
            rescale=config.pos_embed_rescale,
        )
    return rope_table(centers, head_dim=config.hidden_size // config.num_attention_heads, theta=config.rope_theta)


def check_pixels(pixel_values: Tensor, config: Sapiens2Config) -> tuple[int, int]:
    """Raise `InputError` unless pictures fit the model; return the token grid (h, w)."""
    shape = list(pixel_values.shape)
    if pixel_values.ndim != 4 or shape[1] != config.num_channels:
        raise InputError(
            f"pixel_values: expected the shape [batch, {config.num_channels}, height, width], got {shape}."
        )
    if not pixel_values.is_floating_point():
        raise InputError(
            f"pixel_values: expected floating-point values, got {pixel_values.dtype}. "
            "Prepare pictures with Sapiens2ImageProcessor."
        )
    down, across = config.token_hw
    if shape[2] % down or shape[3] % across or not shape[2] or not shape[3]:
        near = max(1, round(shape[2] / down)) * down, max(1, round(shape[3] / across)) * across
        raise InputError(
            f"pixel_values: expected a height that is a multiple of {down} and a width that is one of {across}, "
            f"got {shape[2]}×{shape[3]}. Resize to {near[0]}×{near[1]}."
        )
    return config.grid_hw((shape[2], shape[3]))
