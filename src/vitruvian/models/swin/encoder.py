"""The parts of Swin: patch embeddings, stages of windowed attention, patch merging.

pixels [B, 3, H, W] ─▶ Embeddings ─▶ tokens [B, h·w, C] ─▶ Stage ─▶ [B, h·w, C] ─▶ Merging ─▶ [B, h·w/4, 2C] ─▶ Stage …

A layer sorts its tokens into windows, attends inside each, and sorts them back; every other layer shifts the windows by
half their side. Grids that are not whole windows are padded with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn, unflatten
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitruvian.errors import InputError
from vitruvian.layers.mlp import activation
from vitruvian.layers.residual import DropPath
from vitruvian.layers.windows import (
    WindowPlan,
    from_windows,
    relative_position_bias,
    relative_position_index,
    shift_masks,
    to_windows,
    window_order,
    window_plan,
)
from vitruvian.models.swin.configuration import SwinConfig
from vitruvian.ops.attention import attention

Grid = tuple[int, int]


@dataclass
class Encoded:
    """What the stages leave behind: each stage's tokens before and after merging, their grids, attention weights."""

    before: list[Tensor]
    before_hw: list[Grid]
    after: list[Tensor]
    after_hw: list[Grid]
    attentions: list[Tensor]


class PatchEmbeddings(nn.Module):
    """Patches of the image as tokens, the image padded to whole patches."""

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


class Embeddings(nn.Module):
    """Normalised patch tokens with, where the model has them, mask tokens and positions."""

    mask_token: nn.Parameter | None
    position_embeddings: nn.Parameter | None

    def __init__(self, config: SwinConfig, *, use_mask_token: bool = False) -> None:
        super().__init__()
        self.grid_hw = config.grid_hw
        self.patch_embeddings = PatchEmbeddings(config)
        self.norm = nn.LayerNorm(config.embed_dim)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim)) if use_mask_token else None
        tokens = self.grid_hw[0] * self.grid_hw[1]
        positions = nn.Parameter(torch.zeros(1, tokens, config.embed_dim)) if config.use_absolute_embeddings else None
        self.position_embeddings = positions

    def forward(self, pixels: Tensor, masked: Tensor | None = None, *, interpolate: bool = True) -> tuple[Tensor, Grid]:
        """Map [B, 3, H, W] to tokens [B, h·w, C] and their grid; `masked` [B, h·w] marks tokens to hide."""
        expected = self.patch_embeddings.projection.in_channels
        if pixels.ndim != 4 or pixels.shape[1] != expected:
            raise InputError(f"pixel_values: expected shape [B, {expected}, H, W], got {list(pixels.shape)}.")
        patches = self.patch_embeddings(pixels)  # [B, C, h, w]
        grid_hw = (patches.shape[-2], patches.shape[-1])
        tokens = self.norm(patches.flatten(2).transpose(1, 2))  # [B, h·w, C]
        if masked is not None:
            if self.mask_token is None:
                raise InputError("bool_masked_pos: this model has no mask token. Build it with use_mask_token=True.")
            tokens = torch.where(masked[..., None].bool(), self.mask_token.to(tokens.dtype), tokens)
        if self.position_embeddings is not None:
            tokens = tokens + self.positions(grid_hw, interpolate=interpolate)
        return self.dropout(tokens), grid_hw

    def positions(self, grid_hw: Grid, *, interpolate: bool) -> Tensor:
        """Return positions [1, h·w, C], resized for grids other than the one that was learned."""
        learned = self.position_embeddings
        assert learned is not None
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


class WindowAttention(nn.Module):
    """Attention among the tokens of a window, with a learned bias for every step between two of them."""

    relative_position_index: Tensor

    def __init__(self, config: SwinConfig, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, self.window = heads, config.window_size
        self.drop_rate = config.attention_probs_dropout_prob
        self.attn_implementation = "sdpa"
        self.query = nn.Linear(channels, channels, bias=config.qkv_bias)
        self.key = nn.Linear(channels, channels, bias=config.qkv_bias)
        self.value = nn.Linear(channels, channels, bias=config.qkv_bias)
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * self.window - 1) ** 2, heads))
        pairs = torch.empty(self.window**2, self.window**2, dtype=torch.int64)  # filled by `start_part`, or from files
        self.register_buffer("relative_position_index", pairs)
        self.kept_bias: tuple[int, Tensor] | None = None  # version of the table, and its bias [A, N, N]
        self.joint: tuple[Tensor, Tensor | None] | None = None  # of query, key and value, for inference

    @torch.no_grad()
    def prepare_for_inference(self) -> None:
        """Keep the bias of all pairs for inference, until the table changes."""
        table = self.relative_position_bias_table
        if not table.is_inference():  # such tensors do not tell that they changed
            self.kept_bias = (table._version, self.position_bias().contiguous())

    def position_bias(self) -> Tensor:
        """Bias of every head for every pair of tokens of a window [A, N, N]."""
        return relative_position_bias(self.relative_position_bias_table, self.relative_position_index)

    def current_bias(self) -> Tensor:
        """`position_bias`, or what was kept of it in inference."""
        plain = self.training or torch.is_grad_enabled() or torch.compiler.is_compiling()
        if plain or self.kept_bias is None or self.kept_bias[0] != self.relative_position_bias_table._version:
            return self.position_bias()
        return self.kept_bias[1]

    def forward(self, tokens: Tensor, plan: WindowPlan, *, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Attend inside the windows of tokens [B, h·w, C]; weights are [windows, A, N, N] in the order of the plan."""
        parts = (self.query, self.key, self.value)
        if plan.holes is None:
            windows = to_windows(tokens, plan)  # [windows, N, C]
            projected = [part(windows) for part in parts]
        else:  # A hole counts as a token of zeros, which is projected to the bias: only real tokens take the way.
            projected = [to_windows(part(tokens), plan, fill=part.bias) for part in parts]  # [windows, N, C] each
        q, k, v = (unflatten(part, -1, (self.heads, -1)).transpose(1, 2) for part in projected)  # [windows, A, N, D]
        bias = self.current_bias().to(q.dtype)
        masks = bias[None]  # [1, A, N, N]
        if plan.shift:
            blocked = shift_masks(window=plan.window, shift=plan.shift, dtype=q.dtype, device=q.device)
            masks = bias + blocked[:, None]  # [4, A, N, N]
        sizes = [count for _, count in plan.groups]
        found = [
            attention(
                *parts,
                implementation=self.attn_implementation,
                mask=masks[kind : kind + 1],
                dropout=self.drop_rate if self.training else 0.0,
                need_weights=need_weights,
            )
            for (kind, _), *parts in zip(
                plan.groups, torch.split(q, sizes), torch.split(k, sizes), torch.split(v, sizes), strict=True
            )
        ]
        out = torch.cat([part for part, _ in found]) if len(found) > 1 else found[0][0]  # [windows, A, N, D]
        weights = torch.cat([part for _, part in found if part is not None]) if need_weights else None
        return from_windows(out.transpose(1, 2).flatten(2), plan, batch=tokens.shape[0]), weights  # [B, h·w, C]


class Dense(nn.Module):
    """A linear layer under the name it has on the Hub."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        out: Tensor = self.dense(x)
        return out


class Attention(nn.Module):
    """Window attention and its output projection."""

    def __init__(self, config: SwinConfig, channels: int, heads: int) -> None:
        super().__init__()
        self.self = WindowAttention(config, channels, heads)
        self.output = Dense(channels, channels)

    def forward(self, tokens: Tensor, plan: WindowPlan, *, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Map tokens [B, h·w, C] to the same."""
        out, weights = self.self(tokens, plan, need_weights=need_weights)
        return self.output(out), weights


class SwinLayer(nn.Module):
    """Window attention and a feed-forward layer, each on a residual branch."""

    def __init__(self, config: SwinConfig, channels: int, heads: int, *, drop_path: float) -> None:
        super().__init__()
        hidden = int(config.mlp_ratio * channels)
        self.layernorm_before = nn.LayerNorm(channels, eps=config.layer_norm_eps)
        self.attention = Attention(config, channels, heads)
        self.layernorm_after = nn.LayerNorm(channels, eps=config.layer_norm_eps)
        self.intermediate = Dense(channels, hidden)
        self.output = Dense(hidden, channels)
        self.act = activation(config.hidden_act)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor, plan: WindowPlan, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Map tokens [B, h·w, C] to the same."""
        attended, weights = self.attention(self.layernorm_before(tokens), plan, need_weights=need_weights)
        tokens = tokens + self.drop_path(self.dropout(attended))
        fed = self.output(self.act(self.intermediate(self.layernorm_after(tokens))))
        return tokens + self.drop_path(self.dropout(fed)), weights


class PatchMerging(nn.Module):
    """Each 2 × 2 tokens become one with twice the channels."""

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


class Stage(nn.Module):
    """Layers at one resolution, then merging, except in the last stage."""

    def __init__(self, config: SwinConfig, channels: int, heads: int, *, drop_paths: list[float], merge: bool) -> None:
        super().__init__()
        self.window = config.window_size
        self.gradient_checkpointing = False
        self.blocks = nn.ModuleList(SwinLayer(config, channels, heads, drop_path=rate) for rate in drop_paths)
        self.downsample = PatchMerging(channels) if merge else None

    def forward(
        self, tokens: Tensor, grid_hw: Grid, *, always_shift: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor, Grid, Tensor | None]:
        """Map tokens [B, h·w, C] to the same, and to merged ones with their grid; weights are the last layer's."""
        weights = None
        batch = tokens.shape[0]
        shift = self.window // 2 if always_shift or min(grid_hw) > self.window else 0
        plans = [
            window_plan(batch, grid_hw, window=self.window, shift=moved, device=tokens.device) for moved in (0, shift)
        ]
        for number, layer in enumerate(self.blocks):
            plan = plans[number % 2]
            if self.gradient_checkpointing and self.training:
                tokens, weights = checkpoint(layer, tokens, plan, need_weights, use_reentrant=False)
            else:
                tokens, weights = layer(tokens, plan, need_weights)
            if weights is not None and number == len(self.blocks) - 1:
                weights = weights[window_order(plan, batch=batch, grid_hw=grid_hw)]
        if self.downsample is None:
            return tokens, tokens, grid_hw, weights
        half_hw = ((grid_hw[0] + 1) // 2, (grid_hw[1] + 1) // 2)
        return tokens, self.downsample(tokens, grid_hw), half_hw, weights


class Encoder(nn.Module):
    """The stages."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        total = sum(config.depths)
        rates = [config.drop_path_rate * layer / max(total - 1, 1) for layer in range(total)]
        stages = []
        for stage, depth in enumerate(config.depths):
            first = sum(config.depths[:stage])
            stages.append(
                Stage(
                    config,
                    config.stage_channels[stage],
                    config.num_heads[stage],
                    drop_paths=rates[first : first + depth],
                    merge=stage < len(config.depths) - 1,
                )
            )
        self.layers = nn.ModuleList(stages)

    def forward(self, tokens: Tensor, grid_hw: Grid, *, always_shift: bool, need_weights: bool = False) -> Encoded:
        """Run tokens [B, h·w, C] through all stages.

        Args:
            tokens: The embeddings.
            grid_hw: Their grid.
            always_shift: Shift windows even where one window holds the whole grid, as backbones were trained to.
            need_weights: Also keep the attention weights of each stage's last layer.
        """
        found = Encoded([], [], [], [], [])
        for stage in self.layers:
            found.before_hw.append(grid_hw)
            before, tokens, grid_hw, weights = stage(
                tokens, grid_hw, always_shift=always_shift, need_weights=need_weights
            )
            found.before.append(before)
            found.after.append(tokens)
            found.after_hw.append(grid_hw)
            if weights is not None:
                found.attentions.append(weights)
        return found


def as_map(tokens: Tensor, grid_hw: Grid) -> Tensor:
    """Lay tokens [B, h·w, C] out as a map [B, C, h, w]."""
    return unflatten(tokens.transpose(1, 2), 2, grid_hw)  # [B, C, h, w]


@torch.no_grad()
def start_part(module: nn.Module) -> None:
    """Fill the own weights of Swin's parts that are not plain layers: positions and biases start at zero."""
    if isinstance(module, WindowAttention):
        nn.init.zeros_(module.relative_position_bias_table)
        module.relative_position_index.copy_(relative_position_index(module.window, module.query.weight.device))
    elif isinstance(module, Embeddings):
        for own in (module.mask_token, module.position_embeddings):
            if own is not None:
                nn.init.zeros_(own)
