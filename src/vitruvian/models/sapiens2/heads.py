"""Decode heads: token maps [B, C, h, w] ─▶ predictions, and the scale branch of pointmaps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.errors import ConfigError
from vitruvian.kernels.available import is_traced, takes_kernel
from vitruvian.kernels.fused import fill_planes_, instance_norm_silu, norm_silu_shuffled
from vitruvian.kernels.linear_cpu import packs, stamp
from vitruvian.kernels.maps_cpu import MapChain, Stage
from vitruvian.kernels.pointwise import mix_channels
from vitruvian.kernels.winograd_half import Maps, TiledConv, pays
from vitruvian.layers.init import with_init
from vitruvian.layers.mlp import activation
from vitruvian.layers.norm import ChannelRMSNorm
from vitruvian.models.sapiens2.configuration import Sapiens2Config, Sapiens2HeadConfig


class DecodeHead(nn.Module):
    """Upsampling blocks, refinement blocks and a 1×1 convolution to `num_labels` channels."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__()
        head = required_head(config)
        up, convs = head.upsample_out_channels or [], head.conv_out_channels or []
        shuffles = bool(head.use_pixel_shuffle)
        self.input_conv: nn.Module = (
            ConvBlock(config.hidden_size, config.hidden_size, kernel=3, padding=1, norm=head.norm)
            if shuffles
            else nn.Identity()
        )
        widths = [config.hidden_size, *up]
        self.upsample_layers = nn.ModuleList(
            ConvBlock(before, after, kernel=kernel, padding=(kernel - 1) // 2, shuffles=True, norm=head.norm)
            if shuffles
            else ConvBlock(before, after, kernel=kernel, padding=1, stride=2, transposed=True, norm=head.norm)
            for before, after, kernel in zip(widths[:-1], up, head.upsample_kernel_sizes or [], strict=True)
        )
        widths = [widths[-1], *convs]
        self.conv_layers = nn.ModuleList(
            ConvBlock(before, after, kernel=kernel, padding=(kernel - 1) // 2 if shuffles else 0, norm=head.norm)
            for before, after, kernel in zip(widths[:-1], convs, head.conv_kernel_sizes or [], strict=True)
        )
        self.predictor = with_init(nn.Conv2d(widths[-1], config.num_labels, kernel_size=1), "kaiming")
        self.fast: FastHead | CpuHead | None = None
        self.fusible = head.norm == "instance"

    def fuse(self) -> None:
        """Lay the weights out for inference."""
        if self.fusible:
            blocks = (self.input_conv, *self.upsample_layers, *self.conv_layers)
            convs = [block for block in blocks if isinstance(block, ConvBlock)]
            on_cpu = packs(self.predictor.weight)
            self.fast = CpuHead(convs, self.predictor) if on_cpu else FastHead(convs, self.predictor)

    def forward(self, features: Tensor) -> Tensor:
        """Predict [B, K, s·h, s·w] from [B, C, h, w], with s = 2 for each upsampling block."""
        followed = isinstance(self.fast, CpuHead) and is_traced()
        if self.fast is not None and not (self.training or torch.is_grad_enabled() or followed):
            return self.fast(features)
        x = self.input_conv(features)
        for block in (*self.upsample_layers, *self.conv_layers):
            x = block(x)
        # Rounded to bfloat16, a depth of 4 m would move in steps of 3 cm: what is finer could not be learned.
        with torch.autocast(x.device.type, enabled=False):
            out: Tensor = self.predictor(x.to(self.predictor.weight.dtype))
        return out


class ConvBlock(nn.Module):
    """Convolution, [pixel shuffle], normalisation, SiLU."""

    def __init__(
        self,
        before: int,
        after: int,
        *,
        kernel: int,
        padding: int = 0,
        stride: int = 1,
        transposed: bool = False,
        shuffles: bool = False,
        norm: str = "instance",
    ) -> None:
        super().__init__()
        self.convolution: nn.Module = with_init(
            nn.ConvTranspose2d(before, after, kernel, stride, padding, bias=False)
            if transposed
            else nn.Conv2d(before, after * 4 if shuffles else after, kernel, stride, padding),
            "kaiming",
        )
        self.shuffles = shuffles
        self.norm = ChannelRMSNorm(after) if norm == "rms" else nn.InstanceNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, h, w] to [B, C', s·h, s·w]."""
        x = self.convolution(x)
        if self.shuffles:
            x = F.pixel_shuffle(x, 2)  # [B, C', 2h, 2w]
        return F.silu(self.norm(x))


LARGE_MAP = 2**26  # bytes of a picture's largest map, above which fewer pictures are decoded at a time


class FastHead:
    """A decode head on channels-last maps, with its norms fused and its weights laid out for that.

    Pictures are decoded a few at a time: maps at full size are what takes the memory of these models. Convolutions
    with many channels run as minimal filters (`winograd_half.pays` is the rule), all others through cuDNN. The weights
    themselves become channels-last, so that nothing but the factors of minimal filters is held beside them.
    """

    def __init__(self, blocks: list[ConvBlock], predictor: nn.Conv2d, *, pictures: int | None = None) -> None:
        self.blocks, self.predictor, self.pictures = blocks, predictor, pictures
        self.seen: list[tuple[int, int]] = []
        self.tiled: dict[int, TiledConv] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.blocks, self.predictor)  # copies and pickles lay out anew

    def __call__(self, features: Tensor) -> Tensor:
        """Predict [B, K, s·h, s·w], contiguous, from a map [B, C, h, w]."""
        if self.stamp() != self.seen:  # new weights were loaded or trained
            for block in self.blocks:
                lay_out_(block)
            self.seen, self.tiled = self.stamp(), {}
        pictures = self.pictures or pictures_at_a_time(self.blocks, features)
        out: Tensor | None = None
        for first in range(0, len(features), pictures):
            few = features[first : first + pictures].contiguous(memory_format=torch.channels_last)
            x = self.decode(few, batch=len(features))  # [b, C, s·h, s·w]
            if out is None:
                out = x.new_empty(len(features), self.predictor.out_channels, *x.shape[2:])
            self.predict(x, out[first : first + pictures])
            del x  # before the next ones need its memory
        return features.new_empty(0) if out is None else out

    def stamp(self) -> list[tuple[int, int]]:
        """Tell the state of the weights."""
        return stamp([value for block in self.blocks for value in block.parameters()])

    def decode(self, features: Tensor, *, batch: int) -> Tensor:
        """Run the blocks on channels-last maps of some pictures of a batch."""
        maps = Maps(features)
        for number in range(len(self.blocks)):
            maps = self.run_block(number, maps, features.dtype, batch=batch)
        return maps.activate_(features.dtype)

    def predict(self, x: Tensor, out: Tensor) -> None:
        """Write the predictions from channels-last maps [B, C, H, W] into [B, K, H, W]."""
        # As a matrix product, so that any number of outputs (308) is quick and planes come out whole.
        flat = x.permute(0, 2, 3, 1).flatten(1, 2).transpose(1, 2)  # [B, C, H·W]
        weight = self.predictor.weight.flatten(1).expand(len(x), -1, -1)  # [B, K, C]
        if self.predictor.bias is None:
            torch.bmm(weight, flat, out=out.flatten(2))
        else:
            fill_planes_(out, self.predictor.bias)
            out.flatten(2).baddbmm_(weight, flat)

    def run_block(self, number: int, maps: Maps, dtype: torch.dtype, *, batch: int) -> Maps:
        """Run a block on [B, C, h, w], out of a batch; the maps are then gone."""
        block = self.blocks[number]
        conv: Any = block.convolution
        transposed = isinstance(conv, nn.ConvTranspose2d)
        B, _, H, W = maps.values.shape
        if takes_kernel(maps.values, name="winograd") and (
            pays(conv.weight, (H, W), pictures=B, batch=batch, transposed=transposed) and matches(conv)
        ):
            if number not in self.tiled:
                bias = conv.bias if block.shuffles else None  # without a shuffle, the norm takes it away again
                self.tiled[number] = TiledConv(conv.weight, bias, transposed=transposed, shuffles=block.shuffles)
            return self.tiled[number](maps, batch=batch)
        x = maps.activate_(dtype)
        own = number > 0 and x.is_contiguous(memory_format=torch.channels_last)  # nobody else's, and as wanted
        if batch == 1 and own and conv.kernel_size == (1, 1):
            x = mix_channels(x, conv.weight)  # with one picture, these maps are most of what is beside the weights
        else:
            function = F.conv_transpose2d if transposed else F.conv2d
            x = function(x, conv.weight, None, stride=conv.stride, padding=conv.padding)
        # Without a shuffle there is no bias: the norm takes it away again.
        return Maps(norm_silu_shuffled(x, conv.bias) if block.shuffles else instance_norm_silu(x))


class CpuHead:
    """A decode head on the CPU, with weights laid out for it and few passes over its maps."""

    def __init__(self, blocks: list[ConvBlock], predictor: nn.Conv2d) -> None:
        self.blocks, self.predictor = blocks, predictor
        self.seen: list[tuple[int, int]] = []
        self.chain: MapChain | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.blocks, self.predictor)  # copies and pickles lay out anew

    def __call__(self, features: Tensor) -> Tensor:
        """Predict [B, K, s·h, s·w] from maps [B, C, h, w]."""
        seen = stamp([value for module in (*self.blocks, self.predictor) for value in module.parameters()])
        if self.chain is None or seen != self.seen:
            self.seen = seen
            self.chain = MapChain([stage_of(b) for b in self.blocks], self.predictor.weight, self.predictor.bias)
        return torch.stack([self.chain(values) for values in features.permute(0, 2, 3, 1)])


def stage_of(block: ConvBlock) -> Stage:
    """Describe a block's convolution."""
    conv: Any = block.convolution
    return Stage(
        conv.weight,
        conv.bias,
        padding=conv.padding[0],
        stride=conv.stride[0],
        transposed=isinstance(conv, nn.ConvTranspose2d),
        shuffles=block.shuffles,
    )


def matches(conv: Any) -> bool:
    """Tell whether a convolution has the stride and padding of minimal filters."""
    stride = (2, 2) if isinstance(conv, nn.ConvTranspose2d) else (1, 1)
    return bool(conv.padding == (1, 1) and conv.stride == stride)


@torch.no_grad()
def lay_out_(block: ConvBlock) -> None:
    """Let a block's weight have its channels last in memory; its shape and values stay."""
    weight = block.convolution.get_parameter("weight")
    if not weight.is_contiguous(memory_format=torch.channels_last):
        with torch.inference_mode(weight.is_inference()):
            weight.data = weight.detach().contiguous(memory_format=torch.channels_last)


def pictures_at_a_time(blocks: list[ConvBlock], features: Tensor) -> int:
    """Return how many pictures to decode together, given their token maps [B, C, h, w]: two where maps are large."""
    H, W = features.shape[2:]
    size, largest = H * W * features.element_size(), 0  # bytes
    for block in blocks:
        conv: Any = block.convolution
        size *= 4 if block.shuffles or isinstance(conv, nn.ConvTranspose2d) else 1
        channels = conv.out_channels // (4 if block.shuffles else 1)
        largest = max(largest, size * channels)
    return 2 if largest > LARGE_MAP else 4


class ScaleHead(nn.Module):
    """Predict one number a picture, canonical focal length over actual, from the token map."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__()
        head = required_head(config)
        self.grid_hw = config.grid_hw(config.image_hw)
        widths = [config.hidden_size, *(head.scale_conv_out_channels or [])]
        self.conv_layers = nn.ModuleList(
            ConvBlock(before, after, kernel=kernel, stride=2, padding=(kernel - 1) // 2)
            for before, after, kernel in zip(widths[:-1], widths[1:], head.scale_conv_kernel_sizes or [], strict=True)
        )
        self.predictor = ScaleMLP(
            head.scale_final_input_size or 0, head.scale_final_hidden_sizes or [], act=config.hidden_act
        )

    def forward(self, features: Tensor) -> Tensor:
        """Predict [B, 1] from [B, C, h, w]; a grid of another size is brought to the one the MLP was made for."""
        if tuple(features.shape[-2:]) != self.grid_hw:
            features = F.interpolate(features, size=self.grid_hw, mode="bilinear", antialias=True)
        for block in self.conv_layers:
            features = block(features)
        out: Tensor = self.predictor(features.flatten(1))
        return out


class ScaleMLP(nn.Module):
    """Linear layers with activations between; the names are those of checkpoints."""

    def __init__(self, before: int, hidden: list[int], *, act: str) -> None:
        super().__init__()
        self.act, self.depth = activation(act), len(hidden)
        for number, after in enumerate(hidden, start=1):
            block = nn.Module()
            block.layers = nn.ModuleList([with_init(nn.Linear(before, after), "kaiming")])
            self.add_module(f"block{number}", block)
            before = after
        self.proj = with_init(nn.Linear(before, 1), "kaiming")

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, F] to [B, 1]."""
        for number in range(1, self.depth + 1):
            x = self.act(self.get_submodule(f"block{number}.layers.0")(x))
        out: Tensor = self.proj(x)
        return out


def required_head(config: Sapiens2Config) -> Sapiens2HeadConfig:
    """Return the head's configuration, which a task model must have."""
    head = config.head_config
    if head is None or (head.upsample_out_channels is None and head.conv_out_channels is None):
        found = "None" if head is None else "one without any layers, as pretraining checkpoints have it"
        raise ConfigError(
            f"Sapiens2Config.head_config: expected a Sapiens2HeadConfig for a task model, got {found}. "
            'Take one from Sapiens2Config.variant("0.4b", task="pose"), for example, and pass it as head_config=…'
        )
    return head
