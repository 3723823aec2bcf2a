"""Hiera, the backbone of SAM 2: patches → four stages of windowed attention, each half the grid of the one before.

    pixels [B, 3, H, W] ─ 7×7 conv, stride 4 ─▶ [B, h, w, C] + positions ─ blocks ─▶ a map [B, h/2ˢ, w/2ˢ, C·2ˢ] a stage

A block attends inside windows, or everywhere in a few chosen ones. The first block of a later stage pools its queries,
which halves the grid, and widens the channels.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn, unflatten
from torch.nn import functional as F
from torch.nn import init
from torch.utils.checkpoint import checkpoint

from vitruvian.errors import InputError
from vitruvian.layers.mlp import activation
from vitruvian.model import Model
from vitruvian.models.sam2 import fast
from vitruvian.models.sam2.configuration import Sam2HieraDetConfig, check_image_size
from vitruvian.models.sam2.fields import pair
from vitruvian.ops.attention import attention
from vitruvian.outputs import ModelOutput

# On a CPU, parts of a block that fit this many bytes stay in its cache, and need no fresh memory from the system.
STRIP_BYTES = 6 << 20


@dataclass
class Sam2HieraDetModelOutput(ModelOutput):
    """What the backbone gives.

    Attributes:
        last_hidden_state: Map of the last stage [B, h, w, C].
        intermediate_hidden_states: Map of every stage, finest first, each [B, h, w, C].
        hidden_states: The embedded patches, then the output of every block, each [B, h, w, C].
        attentions: Weights of every block [B·windows, A, N, M].
    """

    last_hidden_state: Tensor | None = None
    intermediate_hidden_states: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class Sam2HieraDetModel(Model):
    """The Hiera backbone alone."""

    config_class = Sam2HieraDetConfig
    config: Sam2HieraDetConfig
    no_split_modules = ("HieraBlock",)
    renamed_keys = ((r"^(vision_encoder\.)?backbone\.", ""),)
    # In the file of a whole SAM 2 everything beside the backbone is of no use here.
    ignored_keys = (
        r"^(vision_encoder\.)?neck\.",
        r"^(shared_image_embedding|prompt_encoder|mask_decoder|no_memory_embedding)\b",
        r"^(memory_|mask_downsample|object_pointer_proj|temporal_positional_encoding_projection_layer)",
        r"^(no_memory_positional_encoding|no_object_pointer|occlusion_spatial_embedding_parameter)",
    )

    def __init__(self, config: Sam2HieraDetConfig) -> None:
        super().__init__(config)
        self.patch_embed = PatchEmbedding(config)
        background, window = pair(config.window_positional_embedding_background_size), config.windows[0]
        self.pos_embed = nn.Parameter(torch.zeros(1, config.hidden_size, *background))
        self.pos_embed_window = nn.Parameter(torch.zeros(1, config.hidden_size, window, window))
        self.blocks = nn.ModuleList(make_blocks(config))
        self.stage_ends = [end - 1 for end in itertools.accumulate(config.stages)]
        self.gradient_checkpointing = False
        self.quick = False
        self.start()

    def init_module(self, module: nn.Module) -> None:
        """Fill what `module` owns with starting values."""
        init_weights(module, self.config.initializer_range)

    def fuse(self) -> None:
        """Take the fused way in inference."""
        fast.fuse_sam2(self)

    def forward(
        self,
        pixel_values: Tensor,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sam2HieraDetModelOutput:
        """Encode pictures [B, 3, H, W]; H and W must be multiples of `config.size_multiple`, 32 as published."""
        check_pixels(pixel_values, self.config)
        keep_states = self.flag("output_hidden_states", output_hidden_states)
        keep_weights = self.flag("output_attentions", output_attentions)
        x = self.patch_embed(pixel_values)  # [B, h, w, C]
        x = x + self.positions((x.shape[1], x.shape[2])).to(x.dtype)
        if not (keep_states or keep_weights) and fast.takes_blocks(self, x):
            found = tuple(fast.run_blocks(self, x))
            output = Sam2HieraDetModelOutput(last_hidden_state=found[-1], intermediate_hidden_states=found)
            return self.give(output, return_dict)
        states, weights, maps = [x], [], []
        for index, block in enumerate(self.blocks):
            if self.gradient_checkpointing and self.training:
                x, given = checkpoint(block, x, keep_weights, use_reentrant=False)
            else:
                x, given = block(x, keep_weights)
            if keep_states:
                states.append(x)
            if keep_weights:
                weights.append(given)
            if index in self.stage_ends:
                maps.append(x)
        output = Sam2HieraDetModelOutput(
            last_hidden_state=x,
            intermediate_hidden_states=tuple(maps),
            hidden_states=tuple(states) if keep_states else None,
            attentions=tuple(weights) if keep_weights else None,
        )
        return self.give(output, return_dict)

    def positions(self, grid_hw: tuple[int, int]) -> Tensor:
        """Positions for a grid: the coarse table stretched over it plus the fine one in each window [1, h, w, C]."""
        table = self.pos_embed[0].float().permute(1, 2, 0)  # [h', w', C]
        rows, columns = (stretching(*sides, table.device) for sides in zip(table.shape, grid_hw, strict=False))
        tall = unflatten(rows @ table.flatten(1), 1, table.shape[1:])  # [h, w', C]
        coarse = columns @ tall  # [h, w, C]
        window = self.pos_embed_window.shape[-1]
        fine = self.pos_embed_window[0].permute(1, 2, 0)  # [n, n, C]
        return (coarse + fine.tile(grid_hw[0] // window, grid_hw[1] // window, 1))[None]  # [1, h, w, C]


class PatchEmbedding(nn.Module):
    """Overlapping patches to channels-last tokens."""

    def __init__(self, config: Sam2HieraDetConfig) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            config.num_channels,
            config.hidden_size,
            kernel_size=pair(config.patch_kernel_size),
            stride=pair(config.patch_stride),
            padding=pair(config.patch_padding),
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Map [B, 3, H, W] to [B, h, w, C]."""
        maps: Tensor = self.projection(pixel_values.to(self.projection.weight.dtype))  # [B, C, h, w]
        return maps.permute(0, 2, 3, 1)  # [B, h, w, C]


class HieraBlock(nn.Module):
    """Attention in windows (or everywhere, with `window` 0), then a feed-forward layer; may pool and widen."""

    def __init__(
        self,
        dim: int,
        dim_out: int,
        *,
        heads: int,
        window: int,
        stride: tuple[int, int] | None,
        mlp_ratio: float,
        act: str,
        eps: float,
    ) -> None:
        super().__init__()
        self.window, self.stride = window, stride
        self.layer_norm1 = nn.LayerNorm(dim, eps=eps)
        self.attn = HieraAttention(dim, dim_out, heads=heads, stride=stride)
        self.layer_norm2 = nn.LayerNorm(dim_out, eps=eps)
        self.mlp = FeedForward(dim_out, int(dim_out * mlp_ratio), dim_out, depth=2, act=act)
        self.proj = nn.Linear(dim, dim_out) if dim != dim_out else None

    def forward(self, x: Tensor, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Map [B, h, w, C] to [B, h', w', C'], and give the attention weights on demand."""
        if self.window and not need_weights:  # rows of windows do not need each other
            return in_strips(lambda rows: self.block(rows)[0], x, channels=self.widest, multiple=self.window), None
        return self.block(x, need_weights)

    def block(self, x: Tensor, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Do the work of `forward` on whole rows of windows."""
        normed = self.layer_norm1(x)
        shortcut = x if self.proj is None else self.proj(normed)
        if self.stride is not None:
            shortcut = pool(shortcut, self.stride)  # [B, h', w', C']
        if self.window:
            tiles = split_windows(normed, self.window)  # [B, rows, columns, n, n, C]
            attended, weights = self.attn(tiles.flatten(0, 2), need_weights)  # [B·windows, n', n', C']
            attended = join_windows(unflatten(attended, 0, tiles.shape[:3]), shortcut.shape[1:3])  # [B, h', w', C']
        else:
            attended, weights = self.attn(normed, need_weights)  # [B, h', w', C']
        return in_strips(self.feed, shortcut + attended, channels=self.widest), weights

    def feed(self, x: Tensor) -> Tensor:
        """Add the feed-forward layer to tokens [..., C']."""
        fed: Tensor = self.mlp(self.layer_norm2(x))
        return x + fed

    @property
    def widest(self) -> int:
        """Channels of the widest tensor inside."""
        return self.mlp.proj_in.out_features


class HieraAttention(nn.Module):
    """Self-attention over a small map, whose queries may be pooled first."""

    attn_implementation = "sdpa"

    def __init__(self, dim: int, dim_out: int, *, heads: int, stride: tuple[int, int] | None) -> None:
        super().__init__()
        self.heads, self.stride = heads, stride
        self.qkv = nn.Linear(dim, 3 * dim_out)
        self.proj = nn.Linear(dim_out, dim_out)

    def forward(self, x: Tensor, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Map [B, h, w, C] to [B, h', w', C']."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # [B, h, w, C'] each
        if self.stride is not None:
            q = pool(q, self.stride)  # [B, h', w', C']
        q_heads, k_heads, v_heads = (
            unflatten(part.flatten(1, 2), -1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v)
        )  # [B, A, N, D] each
        out, weights = attention(
            q_heads, k_heads, v_heads, implementation=self.attn_implementation, need_weights=need_weights
        )
        out = out.transpose(1, 2).reshape(q.shape)  # [B, h', w', C']
        return self.proj(out), weights


class FeedForward(nn.Module):
    """Linear layers with an activation between them: `proj_in`, `depth` − 2 of `layers`, `proj_out`."""

    def __init__(self, channels: int, hidden: int, out: int, *, depth: int, act: str = "relu") -> None:
        super().__init__()
        self.act = activation(act)
        self.proj_in = nn.Linear(channels, hidden)
        self.proj_out = nn.Linear(hidden, out)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth - 2))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C] to [..., out]."""
        x = self.act(self.proj_in(x))
        for layer in self.layers:
            x = self.act(layer(x))
        return cast(Tensor, self.proj_out(x))


def make_blocks(config: Sam2HieraDetConfig) -> list[HieraBlock]:
    """Build the blocks of all stages. The first of a stage works on the channels and windows of the stage before."""
    blocks: list[HieraBlock] = []
    for stage, count in enumerate(config.stages):
        for index in range(count):
            source = stage - 1 if stage and index == 0 else stage
            pooled = index == 0 and 0 < stage <= config.num_query_pool_stages
            blocks.append(
                HieraBlock(
                    config.dims[source],
                    config.dims[stage],
                    heads=config.heads[stage],
                    window=0 if len(blocks) in config.global_blocks else config.windows[source],
                    stride=pair(config.query_stride) if pooled else None,
                    mlp_ratio=config.mlp_ratio,
                    act=config.hidden_act,
                    eps=config.layer_norm_eps,
                )
            )
    return blocks


def stretching(source: int, target: int, device: torch.device) -> Tensor:
    """The matrix that stretches one side of a table with bicubic interpolation: float32 [target, source]."""
    # Both sides at once cost 20 times as much as two small products.
    single = torch.eye(source, device=device)[None, None]  # [1, 1, source, source]
    return F.interpolate(single, size=(target, source), mode="bicubic")[0, 0]


def pool(x: Tensor, stride: tuple[int, int]) -> Tensor:
    """Largest value of each cell of `stride`: [B, h, w, C] to [B, h/s, w/s, C]."""
    # Comparing slices is several times as fast on a CPU as one reduction over two dimensions.
    rows = functools.reduce(torch.maximum, (x[:, i :: stride[0]] for i in range(stride[0])))  # [B, h/s, w, C]
    return functools.reduce(torch.maximum, (rows[:, :, i :: stride[1]] for i in range(stride[1])))  # [B, h/s, w/s, C]


def in_strips(step: Callable[[Tensor], Tensor], x: Tensor, *, channels: int, multiple: int = 1) -> Tensor:
    """Apply a step to a map [B, h, w, C] whose rows do not need each other: in strips that fit the cache of a CPU.

    Args:
        step: Maps rows [B, n, w, C] to [B, n', w', C'].
        x: The map.
        channels: Channels of the widest tensor that the step makes.
        multiple: Number of rows that only go together.
    """
    rows = STRIP_BYTES // (x[:, :multiple, :, 0].numel() * channels * x.element_size()) * multiple
    rows = max(multiple, rows)
    whole = x.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling()
    if whole or rows >= x.shape[1]:
        return step(x)
    return torch.cat([step(strip) for strip in torch.split(x, rows, dim=1)], dim=1)


def split_windows(x: Tensor, window: int) -> Tensor:
    """Cut [B, h, w, C] into windows [B, rows, columns, n, n, C], with zeros below and to the right as needed."""
    below, right = -x.shape[1] % window, -x.shape[2] % window
    if below or right:
        x = F.pad(x, (0, 0, 0, right, 0, below))
    tiles = unflatten(unflatten(x, 2, (-1, window)), 1, (-1, window))  # [B, rows, n, columns, n, C]
    return tiles.transpose(2, 3)  # [B, rows, columns, n, n, C]


def join_windows(tiles: Tensor, grid_hw: torch.Size | tuple[int, int]) -> Tensor:
    """Put windows [B, rows, columns, n, m, C] together again and cut the map to [B, h, w, C]."""
    joined = tiles.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # [B, rows·n, columns·m, C]
    return joined[:, : grid_hw[0], : grid_hw[1]]


def check_pixels(pixel_values: Tensor, config: Sam2HieraDetConfig) -> None:
    """Raise `InputError` unless `pixel_values` is a batch of pictures that can be cut into windows."""
    if pixel_values.ndim != 4 or pixel_values.shape[1] != config.num_channels:
        raise InputError(
            f"pixel_values: expected the shape [B, {config.num_channels}, H, W], got {list(pixel_values.shape)}. "
            "Prepare pictures with Sam2ImageProcessor."
        )
    check_image_size((pixel_values.shape[2], pixel_values.shape[3]), config, "pixel_values", InputError)


def init_weights(module: nn.Module, std: float) -> None:
    """Fill the weights that `module` itself owns: matrices at random, biases and position tables with zeros."""
    if isinstance(module, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.Embedding)):
        init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.LayerNorm):
        init.ones_(module.weight)
    if isinstance(module, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.LayerNorm)) and module.bias is not None:
        init.zeros_(module.bias)
    if isinstance(module, Sam2HieraDetModel):
        init.zeros_(module.pos_embed)
        init.zeros_(module.pos_embed_window)
