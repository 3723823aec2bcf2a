"""The Sapiens2 encoder: patches -> [4K: window tokenizer] -> class token, registers, patches -> layers.

pixel_values [B, 3, H, W] -> tokens [B, 1 + R + h·w, C] -> layers -> RMS norm -> tokens [B, 1 + R + h·w, C]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images.types import SizeHW
from vitruvian.layers.backbone import check_pixels
from vitruvian.layers.gradient_checkpointing import CheckpointedLayer, checkpointed
from vitruvian.layers.joined_linear import JoinedLinear
from vitruvian.layers.mlp import MLP, GatedMLP
from vitruvian.layers.norm import RMSNorm
from vitruvian.layers.residual import DropPath, LayerScale
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.ops.attention import attention
from vitruvian.ops.dispatch import is_tracing, wants_grad
from vitruvian.ops.fp8 import (
    FP8_MAX,
    Fp8Rows,
    add_rms_norm_fp8,
    gated_linear_bound,
    gated_linear_fp8,
    linear_fp8,
    quantize_rows,
)
from vitruvian.ops.rms_norm import add_rms_norm
from vitruvian.ops.rope import RopeTables, augment_centers, patch_centers, rms_norm_rope, rope_tables
from vitruvian.ops.swiglu import prefers_joined
from vitruvian.ops.unshifted_attention import query_scale, suits_unshifted_attention, unshifted_attention
from vitruvian.tensor_cache import WeightCache, cached_tensors


class _Fp8Weights(NamedTuple):
    """The large matrices of a layer in fp8."""

    qkv: Fp8Rows
    qkv_bias: Tensor | None
    out: Fp8Rows
    gate_up: Fp8Rows
    gate_up_bias: Tensor | None
    hidden_scale: Tensor  # [F] brings the hidden channels of the feed-forward into the range of fp8
    down: Fp8Rows  # divided by `hidden_scale`


class Sapiens2Embeddings(nn.Module):
    """Class token, register tokens and patch embeddings."""

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
        self.init_std = config.initializer_range

    def init_parameters(self) -> None:
        """Initialize the tokens."""
        nn.init.trunc_normal_(self.cls_token, std=self.init_std)
        nn.init.trunc_normal_(self.register_tokens, std=self.init_std)
        if self.mask_token is not None:
            nn.init.zeros_(self.mask_token)

    def forward(self, pixel_values: Tensor, bool_masked_pos: Tensor | None = None) -> Tensor:
        """Embed [B, 3, H, W], with the patches that are True in [B, H/p · W/p] replaced by the mask token."""
        patches, grid_hw = self._embed(pixel_values)  # [B, H/p · W/p, C]
        if bool_masked_pos is not None:
            patches = self._mask(patches, bool_masked_pos)
        if self.tokenizer is not None:
            patches = self.tokenizer(patches.view(patches.shape[0], *grid_hw, -1))  # [B, h·w, C]
        batch = pixel_values.shape[0]  # not len(), which export cannot trace
        prefix = (self.cls_token.expand(batch, -1, -1), self.register_tokens.expand(batch, -1, -1))
        return torch.cat((*prefix, patches), dim=1)  # [B, 1 + R + h·w, C]

    def _embed(self, pixel_values: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Project the patches of [B, 3, H, W] to [B, h·w, C]; return the grid (h, w) too.

        A matrix product, which gives the numbers of the convolution and is fast on every device.
        """
        conv = self.patch_embeddings
        (down, across), (batch, channels, height, width) = conv.kernel_size, pixel_values.shape
        grid_hw = (height // down, width // across)
        patches = pixel_values.reshape(batch, channels, grid_hw[0], down, grid_hw[1], across)  # [B, 3, h, p, w, p]
        patches = patches.permute(0, 2, 4, 1, 3, 5).reshape(batch, grid_hw[0] * grid_hw[1], -1)  # [B, h·w, 3·p·p]
        return F.linear(patches, conv.weight.flatten(1), conv.bias), grid_hw

    def _mask(self, patches: Tensor, positions: Tensor) -> Tensor:
        """Replace patches by the mask token."""
        if self.mask_token is None:
            raise InputError("bool_masked_pos: needs a model with a mask token. Build it with use_mask_token=True.")
        if tuple(positions.shape) != tuple(patches.shape[:2]):
            raise InputError(
                f"bool_masked_pos: expected the shape {list(patches.shape[:2])}, one entry for each patch, "
                f"got {list(positions.shape)}."
            )
        return torch.where(positions.bool().unsqueeze(-1), self.mask_token.to(patches.dtype), patches)


class WindowTokenizer(nn.Module):
    """Merge each window of patches into one token, so that a 4K image has as many tokens as a 1K image.

    The patches of a window, a class token and learned positions pass a few plain layers; the class token is the result.
    """

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__()
        channels, self.window = config.hidden_size, config.tokenizer_window_size
        self.cls_token = nn.Parameter(torch.zeros(1, 1, channels))
        self.position_embeddings = nn.Parameter(torch.zeros(1, 1 + self.window**2, channels))
        self.layer = nn.ModuleList(
            Sapiens2Layer(config, kv_heads=config.num_attention_heads, hidden=4 * channels, plain=True)
            for _ in range(config.num_tokenizer_layers)
        )
        self.init_std = config.initializer_range

    def init_parameters(self) -> None:
        """Initialize the class token and the positions."""
        nn.init.trunc_normal_(self.cls_token, std=self.init_std)
        nn.init.trunc_normal_(self.position_embeddings, std=self.init_std)

    def forward(self, patches: Tensor) -> Tensor:
        """Merge patches [B, H', W', C] into tokens [B, H'/k · W'/k, C]."""
        batch, height, width, channels = patches.shape
        k = self.window
        windows = patches.view(batch, height // k, k, width // k, k, channels).transpose(2, 3)  # [B, h, w, k, k, C]
        windows = windows.reshape(-1, k * k, channels)  # [B·h·w, k², C]
        x = torch.cat((self.cls_token.expand(windows.shape[0], -1, -1), windows), dim=1)  # [B·h·w, 1 + k², C]
        x = x + self.position_embeddings
        branch: Tensor | None = None
        for layer in self.layer:
            x, branch, _ = checkpointed(layer)(x, branch, None)
        tokens = x[:, 0] if branch is None else x[:, 0] + branch[:, 0]  # [B·h·w, C]
        return tokens.view(batch, -1, channels)  # [B, h·w, C]


class Sapiens2Encoder(nn.Module):
    """The transformer layers. `Sapiens2Model` runs them."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__()
        heads = config.num_key_value_heads_per_layer or []
        self.layer = nn.ModuleList(Sapiens2Layer(config, kv_heads=h, hidden=config.intermediate_size) for h in heads)

    def optimize_weights(self) -> None:
        """Join the weights of all layers where that is faster."""
        for layer in self.layer:
            if isinstance(layer, Sapiens2Layer) and prefers_joined(layer.norm1.weight):
                layer.join_weights()

    def quantize(self) -> None:
        """Quantize the joined weights of all layers to fp8."""
        for layer in self.layer:
            if isinstance(layer, Sapiens2Layer):
                layer.quantize()


class Sapiens2Layer(CheckpointedLayer):
    """A pre-norm block: attention and feed-forward, each residual addition fused into the norm that follows it.

    The layer adds the output of the previous one to the residual stream, and returns the stream and its own output.

    `plain` omits qk-norm and layer scale.

    Attributes:
        fp8: Quantized weights for inference, made by `quantize`.
    """

    def __init__(self, config: Sapiens2Config, *, kv_heads: int, hidden: int, plain: bool = False) -> None:
        super().__init__()
        channels, eps = config.hidden_size, config.rms_norm_eps
        self.norm1 = RMSNorm(channels, eps=eps)
        self.attention = Sapiens2Attention(config, kv_heads=kv_heads, qk_norm=config.use_qk_norm and not plain)
        self.layer_scale1 = nn.Identity() if plain else LayerScale(channels, value=config.layerscale_value)
        self.norm2 = RMSNorm(channels, eps=eps)
        mlp = GatedMLP if config.use_gated_mlp else MLP
        self.mlp: GatedMLP | MLP = mlp(channels, hidden, act=config.hidden_act, bias=config.mlp_bias)
        self.drop_path = DropPath(config.drop_path_rate)
        self.fp8: _Fp8Weights | None = None

    def forward(
        self, x: Tensor, branch: Tensor | None, rope: RopeTables | None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add the branch of the last layer to x, attend and feed forward.

        Args:
            x: Residual stream [B, N, C].
            branch: What the last layer adds to it [B, N, C].
            rope: Cosines and sines [N, D/2].
            need_weights: Return the attention weights.

        Returns:
            The residual stream [B, N, C], what this layer adds to it [B, N, C], and the weights [B, A, N, N] or None.
        """
        fp8 = None if self.fp8 is None or is_tracing() or wants_grad(x, self.norm1.weight) else self.fp8
        scale = self.layer_scale1.lambda1 if isinstance(self.layer_scale1, LayerScale) else None
        add_norm = add_rms_norm if fp8 is None else add_rms_norm_fp8
        x, normed = add_norm(x, branch, self.norm1.weight, eps=self.norm1.eps)
        attended, weights = self.attention(normed, rope, need_weights, fp8)
        x, normed = add_norm(x, self.drop_path(attended), self.norm2.weight, eps=self.norm2.eps, scale=scale)
        out = self._feed_forward_fp8(normed, fp8, dtype=x.dtype) if isinstance(normed, Fp8Rows) else self.mlp(normed)
        return x, self.drop_path(out), weights

    def join_weights(self) -> None:
        """Join the matrices that read the same tokens."""
        self.fp8 = None
        self.attention.join_weights()
        if isinstance(self.mlp, GatedMLP):
            self.mlp.join_weights()

    @torch.no_grad()
    def quantize(self) -> None:
        """Quantize the large matrices, which `join_weights` has joined, to fp8."""
        assert isinstance(self.mlp, GatedMLP)
        qkv, gate_up = self.attention.joined, self.mlp.joined
        assert qkv is not None
        assert gate_up is not None
        scale = FP8_MAX / gated_linear_bound(self.norm2.weight, gate_up.weight, gate_up.bias)  # [F]
        self.fp8 = _Fp8Weights(
            qkv=quantize_rows(qkv.weight),
            qkv_bias=qkv.bias,
            out=quantize_rows(self.attention.o_proj.weight),
            gate_up=quantize_rows(gate_up.weight),
            gate_up_bias=gate_up.bias,
            hidden_scale=scale,
            down=quantize_rows(self.mlp.down_proj.weight.float() / scale),
        )

    def _feed_forward_fp8(self, x: Fp8Rows, fp8: _Fp8Weights | None, *, dtype: torch.dtype) -> Tensor:
        """Feed [B, N, C] forward in fp8."""
        assert fp8 is not None
        hidden = gated_linear_fp8(x, fp8.gate_up, fp8.gate_up_bias, fp8.hidden_scale, dtype=dtype)  # [B, N, F]
        return linear_fp8(hidden, fp8.down, self.mlp.down_proj.bias, dtype=dtype)


class Sapiens2Attention(nn.Module):
    """Grouped-query self-attention with normalized, rotated queries and keys.

    Attributes:
        joined: Queries, keys and values as one matrix for inference, made by `join_weights`.
    """

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
        self.joined: JoinedLinear | None = None
        self._has_bounded_scores: WeightCache[bool] = WeightCache()

    def forward(
        self,
        tokens: Tensor | Fp8Rows,
        rope: RopeTables | None,
        need_weights: bool = False,
        fp8: _Fp8Weights | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend within [B, N, C]; in fp8, tokens are `Fp8Rows`. Return the weights [B, A, N, N] too on demand."""
        q, k, v = self._project(tokens, fp8)  # [B, N, heads, D] each
        unshifted = not need_weights and self._uses_unshifted_attention(q)
        q = _normalize_and_rotate(q, self.q_norm, rope, scale=query_scale(self.head_dim) if unshifted else 1.0)
        k = _normalize_and_rotate(k, self.k_norm, rope)  # [B, G, N, D]
        v = v.transpose(1, 2)  # [B, G, N, D]
        weights: Tensor | None = None
        if unshifted:
            out = unshifted_attention(q, k, v).flatten(2)  # [B, N, C]
        else:
            dropout = self.dropout if self.training else 0.0
            out, weights = attention(
                q, k, v, implementation=self.attn_implementation, dropout=dropout, need_weights=need_weights
            )
            out = out.transpose(1, 2).flatten(2)  # [B, N, C]
        if fp8 is not None:
            return linear_fp8(quantize_rows(out), fp8.out, self.o_proj.bias, dtype=out.dtype), weights
        return self.o_proj(out), weights

    def join_weights(self) -> None:
        """Join queries, keys and values."""
        self.joined = JoinedLinear([self.q_proj, self.k_proj, self.v_proj])

    def _project(self, tokens: Tensor | Fp8Rows, fp8: _Fp8Weights | None) -> list[Tensor]:
        """Project [B, N, C] to queries [B, N, A, D], keys and values [B, N, G, D]."""
        linears = (self.q_proj, self.k_proj, self.v_proj)
        if isinstance(tokens, Fp8Rows):
            assert fp8 is not None
            joined: Tensor | None = linear_fp8(tokens, fp8.qkv, fp8.qkv_bias, dtype=self.o_proj.weight.dtype)
        else:
            joined = self.joined(tokens) if self.joined is not None and self.joined.is_usable(*linears) else None
        if joined is None:
            parts = [linear(tokens) for linear in linears]
        else:
            parts = list(torch.split(joined, [linear.out_features for linear in linears], dim=-1))
        return [part.view(*part.shape[:2], -1, self.head_dim) for part in parts]

    def _uses_unshifted_attention(self, q: Tensor) -> bool:
        """Return whether `unshifted_attention` may attend with queries like these."""
        q_norm, k_norm = self.q_norm, self.k_norm
        if not (isinstance(q_norm, RMSNorm) and isinstance(k_norm, RMSNorm)) or self.attn_implementation != "sdpa":
            return False
        if self.training and self.dropout:
            return False
        return suits_unshifted_attention(q, q_norm.weight, k_norm.weight, self._has_bounded_scores)


def _normalize_and_rotate(x: Tensor, norm: nn.Module, rope: RopeTables | None, *, scale: float = 1.0) -> Tensor:
    """Normalize and rotate heads: [B, N, A, D] -> [B, A, N, D]."""
    if rope is None:
        normed: Tensor = norm(x)
        return normed.transpose(1, 2)
    if not isinstance(norm, RMSNorm):
        return rms_norm_rope(x, None, rope, scale=scale)
    return rms_norm_rope(x, norm.weight, rope, eps=norm.eps, scale=scale)


def token_rope(config: Sapiens2Config, grid_hw: SizeHW, *, device: torch.device, training: bool) -> RopeTables:
    """Return the rotary tables of all tokens [1 + R + h·w, D/2], augmented in training as the configuration says."""
    head_dim, prefix = config.hidden_size // config.num_attention_heads, 1 + config.num_register_tokens
    if not training:
        return _cached_rope_tables(grid_hw, device, head_dim, config.rope_theta, prefix)
    centers = augment_centers(
        patch_centers(grid_hw, device),
        shift=config.pos_embed_shift,
        jitter=config.pos_embed_jitter,
        rescale=config.pos_embed_rescale,
    )
    return rope_tables(centers, head_dim=head_dim, theta=config.rope_theta, prefix=prefix)


@cached_tensors
def _cached_rope_tables(grid_hw: SizeHW, device: torch.device, head_dim: int, theta: float, prefix: int) -> RopeTables:
    return rope_tables(patch_centers(grid_hw, device), head_dim=head_dim, theta=theta, prefix=prefix)


def checked_grid_hw(pixel_values: Tensor, config: Sapiens2Config) -> SizeHW:
    """Return the token grid (h, w) of images [B, 3, H, W]; raise `InputError` unless the model accepts them."""
    check_pixels(pixel_values, config.num_channels)
    shape = list(pixel_values.shape)
    if not pixel_values.is_floating_point():
        raise InputError(
            f"pixel_values: expected floating-point values, got {pixel_values.dtype}. "
            "Prepare images with Sapiens2ImageProcessor."
        )
    down, across = config.token_hw
    if shape[2] % down or shape[3] % across or not shape[2] or not shape[3]:
        near = max(1, round(shape[2] / down)) * down, max(1, round(shape[3] / across)) * across
        raise InputError(
            f"pixel_values: expected a height that is a multiple of {down} and a width that is one of {across}, "
            f"got {shape[2]}×{shape[3]}. Resize to {near[0]}×{near[1]}."
        )
    return config.grid_hw((shape[2], shape[3]))
