"""Hiera, the backbone of SAM 2: patches, then four stages of windowed attention, each with half the grid of the last.

    pixels [B, 3, H, W] ─ 7×7 conv, stride 4 ─▶ [B, h, w, C] + positions ─ blocks ─▶ a map [B, h/2ˢ, w/2ˢ, C·2ˢ] a stage

A block attends inside windows; a few blocks attend globally. The first block of a later stage max-pools its queries,
which halves the grid, and widens the channels. Blocks carry the residual stream and the last branch separately, so that
the sum and the next layer norm are one operation.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn, unflatten
from torch.nn import functional as F

from vitruvian.config import as_hw
from vitruvian.errors import InputError
from vitruvian.images.types import SizeHW
from vitruvian.layers.backbone import check_pixels
from vitruvian.layers.gradient_checkpointing import CheckpointedLayer, checkpointed
from vitruvian.layers.init import init_layer
from vitruvian.model import Model
from vitruvian.models.sam2.checkpoint_keys import HIERA_IGNORED_KEYS, HIERA_RENAMED_KEYS
from vitruvian.models.sam2.configuration import Sam2Config, Sam2HieraDetConfig, Sam2VisionConfig, check_image_size
from vitruvian.models.sam2.layers import Sam2MLP
from vitruvian.ops.attention import attention
from vitruvian.ops.dispatch import is_tracing
from vitruvian.ops.layer_norm import add_layer_norm
from vitruvian.ops.window_attention import window_attention
from vitruvian.outputs import ModelOutput, OutputKwargs

_CPU_STRIP_BYTES = 6 << 20  # widest tensor of a strip of rows that stays in the cache of a CPU


@dataclass
class Sam2HieraDetModelOutput(ModelOutput):
    """Output of the backbone.

    Attributes:
        last_hidden_state: Map of the last stage [B, h, w, C].
        intermediate_hidden_states: Map of every stage, finest first, each [B, h, w, C].
        hidden_states: The embedded patches, then the output of every block, each [B, h, w, C].
        attentions: Attention weights of every block [B·windows, A, N, M].
    """

    last_hidden_state: Tensor | None = None
    intermediate_hidden_states: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class Sam2PreTrainedModel(Model):
    """Base of the SAM 2 models."""

    config: Sam2HieraDetConfig | Sam2VisionConfig | Sam2Config

    def init_module(self, module: nn.Module) -> None:
        """Initialize the parameters of `module` itself: matrices at random, biases and position tables with zeros."""
        std = self.config.initializer_range
        init_layer(module, std=std, bound=2 * std)


class Sam2HieraDetModel(Sam2PreTrainedModel):
    """The Hiera backbone."""

    config_class = Sam2HieraDetConfig
    config: Sam2HieraDetConfig
    no_split_modules = ("HieraBlock",)
    renamed_keys = HIERA_RENAMED_KEYS
    ignored_keys = HIERA_IGNORED_KEYS

    def __init__(self, config: Sam2HieraDetConfig) -> None:
        super().__init__(config)
        self.patch_embed = PatchEmbedding(config)
        background, window = as_hw(config.window_positional_embedding_background_size), config.window_size_per_stage[0]
        self.pos_embed = nn.Parameter(torch.zeros(1, config.hidden_size, *background))
        self.pos_embed_window = nn.Parameter(torch.zeros(1, config.hidden_size, window, window))
        stages = [(stage, i == 0) for stage, count in enumerate(config.blocks_per_stage) for i in range(count)]
        self.blocks = nn.ModuleList(
            HieraBlock(config, number=number, stage=stage, first=first) for number, (stage, first) in enumerate(stages)
        )
        self.stage_ends = [end - 1 for end in itertools.accumulate(config.blocks_per_stage)]
        self.post_init()

    def init_parameters(self) -> None:
        """Set the positions to zero."""
        nn.init.zeros_(self.pos_embed)
        nn.init.zeros_(self.pos_embed_window)

    def forward(self, pixel_values: Tensor, **kwargs: Unpack[OutputKwargs]) -> Sam2HieraDetModelOutput:
        """Encode images [B, 3, H, W]; H and W must be multiples of `config.size_multiple`, 32 as published."""
        check_pixels(pixel_values, self.config.num_channels)
        check_image_size((pixel_values.shape[2], pixel_values.shape[3]), self.config, "pixel_values", InputError)
        need_states, need_weights, return_dict = self.output_flags(**kwargs)
        x = self.patch_embed(pixel_values)  # [B, h, w, C]
        x = x + self.positions((x.shape[1], x.shape[2])).to(x.dtype)
        branch: Tensor | None = None
        states, weights, maps = [x] if need_states else [], [], []
        for index, block in enumerate(self.blocks):
            x, branch, block_weights = checkpointed(block)(x, branch, need_weights)
            if branch is not None and (need_states or index in self.stage_ends):
                x, branch = x + branch, None  # [B, h, w, C]
            if need_states:
                states.append(x)
            if need_weights:
                weights.append(block_weights)
            if index in self.stage_ends:
                maps.append(x)
        output = Sam2HieraDetModelOutput(
            last_hidden_state=x,
            intermediate_hidden_states=tuple(maps),
            hidden_states=tuple(states) if need_states else None,
            attentions=tuple(weights) if need_weights else None,
        )
        return self.format_output(output, return_dict)

    def positions(self, grid_hw: SizeHW) -> Tensor:
        """Positions of a grid [1, h, w, C]: the coarse table resized to it, plus the fine table in each window."""
        table = self.pos_embed[0].float().permute(1, 2, 0)  # [h', w', C]
        rows, columns = (_bicubic_matrix(*sides, table.device) for sides in zip(table.shape, grid_hw, strict=False))
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
            kernel_size=as_hw(config.patch_kernel_size),
            stride=as_hw(config.patch_stride),
            padding=as_hw(config.patch_padding),
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Map [B, 3, H, W] to [B, h, w, C]."""
        pixels = pixel_values.to(self.projection.weight.dtype, memory_format=torch.channels_last)
        maps: Tensor = self.projection(pixels)  # [B, C, h, w]
        return maps.permute(0, 2, 3, 1)  # [B, h, w, C]


class HieraBlock(CheckpointedLayer):
    """Pre-norm block: attention in windows (globally with `window` 0), then an MLP; may pool and widen."""

    def __init__(self, config: Sam2HieraDetConfig, *, number: int, stage: int, first: bool) -> None:
        """Build block `number` of all; the first of a stage works on the channels and windows of the stage before."""
        super().__init__()
        source = stage - 1 if stage and first else stage
        dim, dim_out = config.embed_dim_per_stage[source], config.embed_dim_per_stage[stage]
        self.window = 0 if number in config.global_attention_blocks else config.window_size_per_stage[source]
        self.stride = as_hw(config.query_stride) if first and 0 < stage <= config.num_query_pool_stages else None
        heads = config.num_attention_heads_per_stage[stage]
        self.layer_norm1 = nn.LayerNorm(dim, eps=config.layer_norm_eps)
        self.attn = HieraAttention(dim, dim_out, heads=heads, window=self.window, stride=self.stride)
        self.layer_norm2 = nn.LayerNorm(dim_out, eps=config.layer_norm_eps)
        self.mlp = Sam2MLP(dim_out, int(dim_out * config.mlp_ratio), dim_out, depth=2, act=config.hidden_act)
        self.proj = nn.Linear(dim, dim_out) if dim != dim_out else None

    def forward(
        self, x: Tensor, branch: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Map x + branch [B, h, w, C] to a sum of two, each [B, h', w', C'].

        Returns:
            The residual stream, the branch to add to it (None where it is added already), and where `need_weights`
            the attention weights [B·windows, A, N, M].
        """
        rows = self._strip_rows(x)
        if not self.window or need_weights or rows >= x.shape[1]:
            return self._forward(x, branch, need_weights)
        # Rows of windows are independent, so strips of them go through the whole block in the cache of a CPU.
        x = x if branch is None else x + branch
        strips = [self._forward(strip, None, False) for strip in torch.split(x, rows, dim=1)]
        return torch.cat([stream + last for stream, last, _ in strips], dim=1), None, None

    def _forward(self, x: Tensor, branch: Tensor | None, need_weights: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        x, normed = add_layer_norm(x, branch, self.layer_norm1)
        if self.proj is not None:
            x = self.proj(normed)  # [B, h, w, C']
        if self.stride is not None:
            x = max_pool(x, self.stride)  # [B, h', w', C']
        attended, weights = self.attn(normed, need_weights)  # [B, h', w', C']
        x, normed = add_layer_norm(x, attended, self.layer_norm2)
        return x, self.mlp(normed), weights

    def _strip_rows(self, x: Tensor) -> int:
        """Number of rows of a map [B, h, w, C], whole windows, whose MLP stays in the cache; all rows off the CPU."""
        if x.device.type != "cpu" or torch.is_grad_enabled() or is_tracing() or not self.window:
            return x.shape[1]
        window_row = x[:, : self.window, :, 0].numel() * self.mlp.proj_in.out_features * x.element_size()
        return max(1, _CPU_STRIP_BYTES // window_row) * self.window


class HieraAttention(nn.Module):
    """Self-attention in the windows of a map, or over the whole map, with queries that may be max-pooled."""

    attn_implementation = "sdpa"

    def __init__(self, dim: int, dim_out: int, *, heads: int, window: int, stride: tuple[int, int] | None) -> None:
        super().__init__()
        self.heads, self.window, self.stride = heads, window, stride
        self.qkv = nn.Linear(dim, 3 * dim_out)
        self.proj = nn.Linear(dim_out, dim_out)

    def forward(self, x: Tensor, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Map [B, h, w, C] to [B, h', w', C'], with attention weights [B·windows, A, N, M] where `need_weights`."""
        stride = self.stride or (1, 1)
        grid_hw = (x.shape[1], x.shape[2])
        weights: Tensor | None = None
        if not self.window:
            out, weights = self._attend(self.qkv(x), need_weights)  # [B, h', w', C']
        elif need_weights or self.attn_implementation == "eager" or stride[0] != stride[1]:
            windows = _split_windows(x, self.window)  # [B, rows, columns, n, n, C]
            out, weights = self._attend(self.qkv(windows.flatten(0, 2)), need_weights)  # [B·windows, n', n', C']
            out = _join_windows(unflatten(out, 0, windows.shape[:3]))
            out = out[:, : grid_hw[0] // stride[0], : grid_hw[1] // stride[1]]  # [B, h', w', C']
        else:
            out, _ = window_attention(
                self.qkv(x).flatten(1, 2),
                grid_hw=grid_hw,
                heads=self.heads,
                window=self.window,
                pool=stride[0],
                fill=self.qkv.bias,
                implementation=self.attn_implementation,
            )
            out = unflatten(out, 1, (grid_hw[0] // stride[0], -1))  # [B, h', w', C']
        return self.proj(out), weights

    def _attend(self, qkv: Tensor, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Attend from all cells of maps [B, h, w, 3C'] to all cells: [B, h', w', C']."""
        q, k, v = qkv.chunk(3, dim=-1)  # [B, h, w, C'] each
        if self.stride is not None:
            q = max_pool(q, self.stride)  # [B, h', w', C']
        heads = (unflatten(part.flatten(1, 2), -1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        out, weights = attention(*heads, implementation=self.attn_implementation, need_weights=need_weights)
        return out.transpose(1, 2).reshape(q.shape), weights  # [B, h', w', C']


def max_pool(x: Tensor, stride: tuple[int, int]) -> Tensor:
    """Maximum of each cell of `stride`: [B, h, w, C] to [B, h/s, w/s, C]."""
    # Comparing slices is several times as fast on a CPU as a reduction over two dimensions.
    rows = functools.reduce(torch.maximum, (x[:, i :: stride[0]] for i in range(stride[0])))  # [B, h/s, w, C]
    return functools.reduce(torch.maximum, (rows[:, :, i :: stride[1]] for i in range(stride[1])))  # [B, h/s, w/s, C]


def _bicubic_matrix(source: int, target: int, device: torch.device) -> Tensor:
    """Matrix of a bicubic interpolation along one side: float32 [target, source]."""
    # Two products with it cost a twentieth of interpolating both sides together.
    identity = torch.eye(source, device=device)[None, None]  # [1, 1, source, source]
    return F.interpolate(identity, size=(target, source), mode="bicubic")[0, 0]


def _split_windows(x: Tensor, window: int) -> Tensor:
    """Cut [B, h, w, C] into windows [B, rows, columns, n, n, C], padded with zeros below and to the right."""
    x = F.pad(x, (0, 0, 0, -x.shape[2] % window, 0, -x.shape[1] % window))
    tiles = unflatten(unflatten(x, 2, (-1, window)), 1, (-1, window))  # [B, rows, n, columns, n, C]
    return tiles.transpose(2, 3)  # [B, rows, columns, n, n, C]


def _join_windows(tiles: Tensor) -> Tensor:
    """Join windows [B, rows, columns, n, m, C] to a map [B, rows·n, columns·m, C]."""
    return tiles.transpose(2, 3).flatten(3, 4).flatten(1, 2)
