"""The parts of Swin: patch embeddings, stages of windowed attention, patch merging.

pixels [B, 3, H, W] ─▶ embeddings ─▶ tokens [B, h·w, C] ─▶ stage ─▶ [B, h·w, C] ─▶ merging ─▶ [B, h·w/4, 2C] ─▶ stage …

Every other layer shifts the windows by half their side. Grids that are not whole windows are padded with zeros. Blocks
are pre-norm, with each residual addition fused into the norm that follows it: a layer returns the residual stream and
its own output, which the next norm adds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn, unflatten
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.layers.backbone import check_pixels
from vitruvian.layers.gradient_checkpointing import CheckpointedLayer, checkpointed
from vitruvian.layers.joined_linear import JoinedLinear
from vitruvian.layers.mlp import FeedForward, activation
from vitruvian.layers.residual import DropPath
from vitruvian.models.swin.configuration import MaskFormerSwinConfig, SwinConfig
from vitruvian.ops.dispatch import is_tracing, wants_grad
from vitruvian.ops.layer_norm import add_layer_norm
from vitruvian.ops.window_attention import window_attention
from vitruvian.tensor_cache import WeightCache

Grid = tuple[int, int]


class TokenGrid(NamedTuple):
    """Tokens [B, h·w, C] and their grid (h, w)."""

    tokens: Tensor
    grid_hw: Grid

    def as_map(self) -> Tensor:
        """Return the tokens as a feature map [B, C, h, w]."""
        return unflatten(self.tokens.transpose(1, 2), 2, self.grid_hw)  # [B, C, h, w]


@dataclass
class SwinEncoderOutput:
    """Outputs of each stage.

    Attributes:
        block_states: Tokens [B, h·w, C] before and after each layer, if requested.
        before_merging: Tokens before patch merging.
        after_merging: Tokens after patch merging.
        attentions: Attention weights of the last layer, if requested.
    """

    block_states: list[tuple[Tensor, ...]] = field(default_factory=list)
    before_merging: list[TokenGrid] = field(default_factory=list)
    after_merging: list[TokenGrid] = field(default_factory=list)
    attentions: list[Tensor] = field(default_factory=list)


class SwinPatchEmbeddings(nn.Module):
    """Patch embedding by a strided convolution; the image is padded to whole patches."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        self.patch_hw = config.patch_hw
        self.projection = nn.Conv2d(config.num_channels, config.embed_dim, self.patch_hw, stride=self.patch_hw)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map [B, 3, H, W] to [B, C, h, w]."""
        bottom, right = (-side % patch for side, patch in zip(pixels.shape[-2:], self.patch_hw, strict=True))
        if bottom or right:
            pixels = F.pad(pixels, (0, right, 0, bottom))
        patches: Tensor = self.projection(pixels.to(self.projection.weight.dtype))
        return patches


class SwinEmbeddings(nn.Module):
    """Normalized patch tokens with, where the model has them, mask tokens and positions."""

    mask_token: nn.Parameter | None
    position_embeddings: nn.Parameter | None

    def __init__(self, config: SwinConfig, *, use_mask_token: bool = False) -> None:
        super().__init__()
        self.grid_hw = config.grid_hw
        self.patch_embeddings = SwinPatchEmbeddings(config)
        self.norm = nn.LayerNorm(config.embed_dim)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim)) if use_mask_token else None
        tokens = self.grid_hw[0] * self.grid_hw[1]
        positions = nn.Parameter(torch.zeros(1, tokens, config.embed_dim)) if config.use_absolute_embeddings else None
        self.position_embeddings = positions

    def forward(self, pixels: Tensor, masked: Tensor | None = None, *, interpolate: bool = True) -> TokenGrid:
        """Map [B, 3, H, W] to tokens [B, h·w, C] and their grid; `masked` [B, h·w] marks tokens to hide."""
        check_pixels(pixels, self.patch_embeddings.projection.in_channels)
        patches = self.patch_embeddings(pixels)  # [B, C, h, w]
        grid_hw = (patches.shape[-2], patches.shape[-1])
        tokens = self.norm(patches.flatten(2).transpose(1, 2))  # [B, h·w, C]
        if masked is not None:
            if self.mask_token is None:
                raise InputError("bool_masked_pos: this model has no mask token. Build it with use_mask_token=True.")
            tokens = torch.where(masked[..., None].bool(), self.mask_token.to(tokens.dtype), tokens)
        if self.position_embeddings is not None:
            tokens = tokens + self._positions(self.position_embeddings, grid_hw, interpolate=interpolate)
        return TokenGrid(self.dropout(tokens), grid_hw)

    def init_parameters(self) -> None:
        """Set the mask token and the positions to zero."""
        for parameter in (self.mask_token, self.position_embeddings):
            if parameter is not None:
                nn.init.zeros_(parameter)

    def _positions(self, learned: Tensor, grid_hw: Grid, *, interpolate: bool) -> Tensor:
        """Return positions [1, h·w, C], resized for grids other than the configured one."""
        if grid_hw == self.grid_hw:
            return learned
        if not interpolate:
            raise InputError(
                f"pixel_values: expected a grid of {self.grid_hw} patches, got {grid_hw}. "
                "Pass interpolate_pos_encoding=True to resize the positions."
            )
        grid = unflatten(learned.transpose(1, 2), 2, self.grid_hw)  # [1, C, h, w]
        resized = F.interpolate(grid, size=grid_hw, mode="bicubic", align_corners=False)
        return resized.flatten(2).transpose(1, 2)  # [1, h·w, C]


class RelativePositionBias(nn.Module):
    """A learned bias of attention for every relative position in a window."""

    relative_position_index: Tensor

    def __init__(self, window: int, heads: int) -> None:
        super().__init__()
        self.window = window
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        tokens = window**2
        index = torch.empty(tokens, tokens, dtype=torch.int64)  # set by `init_parameters`, or from files
        self.register_buffer("relative_position_index", index)
        self._cached_bias: WeightCache[Tensor] | None = None  # [A, N, N]; None until `optimize_weights`

    def position_bias(self) -> Tensor:
        """Bias of every head for every pair of tokens in a window [A, N, N]; cached for inference."""
        table = self.relative_position_bias_table
        if self._cached_bias is None or wants_grad(table) or is_tracing():
            return self._compute_bias()
        with torch.inference_mode(False), torch.no_grad():  # an ordinary tensor, which autograd can save
            return self._cached_bias.get([table], lambda: self._compute_bias().contiguous())

    def _compute_bias(self) -> Tensor:
        rows = F.embedding(self.relative_position_index.flatten(), self.relative_position_bias_table)  # [N·N, A]
        return unflatten(rows.t(), 1, self.relative_position_index.shape)  # [A, N, N]

    def optimize_weights(self) -> None:
        """Cache the position bias until the table changes."""
        self._cached_bias = WeightCache()
        with torch.no_grad():
            self.position_bias()

    def init_parameters(self) -> None:
        """Set the biases to zero, and compute the index of the table's row for every pair of tokens."""
        nn.init.zeros_(self.relative_position_bias_table)
        self.relative_position_index.copy_(relative_position_index(self.window, self.relative_position_index.device))


class _AttentionParts(NamedTuple):
    """The layers of a window attention."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    bias: RelativePositionBias
    output: nn.Linear


class SwinWindowAttention(nn.Module):
    """Attention among the tokens of a window, with a learned bias for every relative position."""

    def __init__(self, config: SwinConfig, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, self.window = heads, config.window_size
        self.drop_rate = config.attention_probs_dropout_prob
        self.attn_implementation = "sdpa"
        self._joined_qkv: JoinedLinear | None = None
        self.add_layers(config, channels)

    def add_layers(self, config: SwinConfig, channels: int) -> None:
        """Make the layers. Subclasses give them other names."""
        self.q_proj = nn.Linear(channels, channels, bias=config.qkv_bias)
        self.k_proj = nn.Linear(channels, channels, bias=config.qkv_bias)
        self.v_proj = nn.Linear(channels, channels, bias=config.qkv_bias)
        self.relative_position_bias = RelativePositionBias(self.window, self.heads)
        self.o_proj = nn.Linear(channels, channels)

    def parts(self) -> _AttentionParts:
        """Return the layers."""
        return _AttentionParts(self.q_proj, self.k_proj, self.v_proj, self.relative_position_bias, self.o_proj)

    def forward(self, tokens: Tensor, grid_hw: Grid, *, shift: int, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Attend inside the windows of tokens [B, h·w, C]; weights are [B · windows, A, N, N]."""
        query, key, value, bias, output = self.parts()
        # The fill of the padding, tokens of zeros, is their projection: the bias.
        if self._joined_qkv is not None and self._joined_qkv.is_usable(query, key, value):
            qkv, fill = self._joined_qkv(tokens), self._joined_qkv.bias  # [B, h·w, 3C], [3C]
        else:
            qkv = torch.cat((query(tokens), key(tokens), value(tokens)), dim=-1)  # [B, h·w, 3C]
            biases: list[Tensor] = [part.bias for part in (query, key, value) if part.bias is not None]
            fill = torch.cat(biases) if biases else None  # [3C]
        out, weights = window_attention(
            qkv, grid_hw=grid_hw, heads=self.heads, window=self.window, shift=shift, fill=fill,
            bias=bias.position_bias(), dropout=self.drop_rate if self.training else 0.0,
            need_weights=need_weights or self.attn_implementation == "eager",
        )  # fmt: skip
        return output(out), weights

    def optimize_weights(self) -> None:
        """Join the projections."""
        query, key, value, *_ = self.parts()
        self._joined_qkv = JoinedLinear([query, key, value])


class MaskFormerWindowAttention(SwinWindowAttention):
    """`SwinWindowAttention` with the parameter names of MaskFormer: `self.query`, …, `output.dense`."""

    def add_layers(self, config: SwinConfig, channels: int) -> None:
        """Make the layers."""
        self.self = _SelfAttentionLayers(config, channels, self.heads)
        self.output = Dense(channels, channels)

    def parts(self) -> _AttentionParts:
        """Return the layers."""
        return _AttentionParts(self.self.query, self.self.key, self.self.value, self.self, self.output.dense)


class _SelfAttentionLayers(RelativePositionBias):
    """Projections and position bias in one module."""

    def __init__(self, config: SwinConfig, channels: int, heads: int) -> None:
        super().__init__(config.window_size, heads)
        self.query = nn.Linear(channels, channels, bias=config.qkv_bias)
        self.key = nn.Linear(channels, channels, bias=config.qkv_bias)
        self.value = nn.Linear(channels, channels, bias=config.qkv_bias)


def relative_position_index(window: int, device: torch.device | None = None) -> Tensor:
    """Row of the bias table for each pair of tokens of a window, by their relative position: [N, N]."""
    side = torch.arange(window, device=device)
    y, x = side.repeat_interleave(window), side.repeat(window)  # [N] each
    step_y, step_x = y[:, None] - y, x[:, None] - x  # [N, N], each from 1 - window to window - 1
    return (step_y + window - 1) * (2 * window - 1) + step_x + window - 1


class Dense(nn.Module):
    """A linear layer with the parameter names of MaskFormer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        out: Tensor = self.dense(x)
        return out


class SwinLayer(CheckpointedLayer):
    """Window attention and a feed-forward layer, each on a residual branch."""

    attention: SwinWindowAttention

    def __init__(self, config: SwinConfig, channels: int, heads: int, *, drop_path: float) -> None:
        super().__init__()
        self.layernorm_before = nn.LayerNorm(channels, eps=config.layer_norm_eps)
        self.layernorm_after = nn.LayerNorm(channels, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drop_path = DropPath(drop_path)
        self.add_layers(config, channels, heads)

    def add_layers(self, config: SwinConfig, channels: int, heads: int) -> None:
        """Make the attention and the feed-forward layer. Subclasses give their parameters other names."""
        self.attention = SwinWindowAttention(config, channels, heads)
        self.mlp = FeedForward(channels, int(config.mlp_ratio * channels), act=config.hidden_act)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward layer to tokens [B, h·w, C]."""
        out: Tensor = self.mlp(x)
        return out

    def forward(
        self, tokens: Tensor, branch: Tensor | None, grid_hw: Grid, shift: int, need_weights: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add the output of the previous layer to the residual stream [B, h·w, C].

        Returns:
            The residual stream, the output of this layer, which is not added yet, and the attention weights.
        """
        tokens, normed = add_layer_norm(tokens, branch, self.layernorm_before)
        attended, weights = self.attention(normed, grid_hw, shift=shift, need_weights=need_weights)
        tokens, normed = add_layer_norm(tokens, self.drop_path(self.dropout(attended)), self.layernorm_after)
        branch = self.drop_path(self.dropout(self.feed_forward(normed)))
        return tokens, branch, weights


class MaskFormerSwinLayer(SwinLayer):
    """`SwinLayer` with the parameter names of MaskFormer."""

    def add_layers(self, config: SwinConfig, channels: int, heads: int) -> None:
        """Make the attention and the feed-forward layer."""
        hidden = int(config.mlp_ratio * channels)
        self.attention = MaskFormerWindowAttention(config, channels, heads)
        self.intermediate = Dense(channels, hidden)
        self.output = Dense(hidden, channels)
        self.act = activation(config.hidden_act)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward layer to tokens [B, h·w, C]."""
        out: Tensor = self.output(self.act(self.intermediate(x)))
        return out


class SwinPatchMerging(nn.Module):
    """Merge 2 × 2 tokens into one with twice the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduction = nn.Linear(4 * channels, 2 * channels, bias=False)
        self.norm = nn.LayerNorm(4 * channels)

    def forward(self, tokens: Tensor, grid_hw: Grid) -> Tensor:
        """Map [B, h·w, C] to [B, ⌈h/2⌉·⌈w/2⌉, 2C]."""
        grid = unflatten(tokens, 1, grid_hw)  # [B, h, w, C]
        if grid_hw[0] % 2 or grid_hw[1] % 2:
            grid = F.pad(grid, (0, 0, 0, grid_hw[1] % 2, 0, grid_hw[0] % 2))
        pairs = unflatten(unflatten(grid, 2, (-1, 2)), 1, (-1, 2))  # [B, h/2, 2, w/2, 2, C]
        merged = pairs.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)  # [B, h/2·w/2, 4C]
        out: Tensor = self.reduction(self.norm(merged))
        return out


class SwinStage(nn.Module):
    """Layers at one resolution, then patch merging, except in the last stage."""

    def __init__(self, config: SwinConfig, channels: int, heads: int, *, drop_paths: list[float], merge: bool) -> None:
        super().__init__()
        self.window = config.window_size
        layer = MaskFormerSwinLayer if isinstance(config, MaskFormerSwinConfig) else SwinLayer
        self.blocks = nn.ModuleList(layer(config, channels, heads, drop_path=rate) for rate in drop_paths)
        self.downsample = SwinPatchMerging(channels) if merge else None

    def forward(
        self, inputs: TokenGrid, *, always_shift: bool, need_weights: bool, states: list[Tensor] | None = None
    ) -> tuple[TokenGrid, TokenGrid, Tensor | None]:
        """Return tokens before and after merging, and the attention weights of the last layer.

        Tokens before and after each layer are appended to `states`.
        """
        tokens, grid_hw = inputs
        shift = self.window // 2 if always_shift or min(grid_hw) > self.window else 0
        branch, weights = None, None
        for number, layer in enumerate(self.blocks):
            last = need_weights and number == len(self.blocks) - 1
            if states is not None:
                tokens, branch = tokens if branch is None else tokens + branch, None
                states.append(tokens)
            tokens, branch, weights = checkpointed(layer)(tokens, branch, grid_hw, shift if number % 2 else 0, last)
            if states is not None:
                tokens, branch = tokens + branch, None
                states.append(tokens)
        output = TokenGrid(tokens if branch is None else tokens + branch, grid_hw)
        if self.downsample is None:
            return output, output, weights
        half_hw = ((grid_hw[0] + 1) // 2, (grid_hw[1] + 1) // 2)
        return output, TokenGrid(self.downsample(*output), half_hw), weights


class SwinEncoder(nn.Module):
    """The stages."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        total = sum(config.depths)
        rates = iter([config.drop_path_rate * layer / max(total - 1, 1) for layer in range(total)])
        stages = zip(config.stage_channels, config.num_heads, config.depths, strict=True)
        self.layers = nn.ModuleList(
            SwinStage(config, channels, heads, drop_paths=list(islice(rates, depth)), merge=number < config.num_layers)
            for number, (channels, heads, depth) in enumerate(stages, start=1)
        )

    def forward(
        self, inputs: TokenGrid, *, always_shift: bool, need_weights: bool = False, need_block_states: bool = False
    ) -> SwinEncoderOutput:
        """Run embeddings [B, h·w, C] through all stages.

        With `always_shift`, windows are shifted even if one window covers the grid, as backbones were trained.
        """
        output = SwinEncoderOutput()
        for stage in self.layers:
            states: list[Tensor] | None = [] if need_block_states else None
            before, inputs, weights = stage(inputs, always_shift=always_shift, need_weights=need_weights, states=states)
            if states is not None:
                output.block_states.append(tuple(states))
            output.before_merging.append(before)
            output.after_merging.append(inputs)
            if weights is not None:
                output.attentions.append(weights)
        return output
