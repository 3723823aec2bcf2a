"""Decode heads: token maps [B, C, h, w] -> predictions, and the scale branch of pointmaps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.errors import ConfigError
from vitruvian.layers.init import with_init
from vitruvian.layers.mlp import activation
from vitruvian.layers.norm import RMSNorm2d
from vitruvian.models.sapiens2.configuration import Sapiens2Config, Sapiens2HeadConfig
from vitruvian.ops.conv_norm import conv_norm_silu, fastest_memory_format, fastest_weight_format
from vitruvian.ops.dispatch import is_tracing
from vitruvian.ops.instance_norm import FeatureMaps
from vitruvian.ops.interpolate import bilinear
from vitruvian.ops.winograd import WinogradConv
from vitruvian.tensor_cache import WeightCache

_LARGE_MAP_BYTES = 2**26  # bytes of the largest map of an image, above which fewer images are decoded at a time


class DecodeHead(nn.Module):
    """Upsampling blocks, refinement blocks and a 1×1 convolution to `num_labels` channels."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__()
        head = _require_head(config)
        up, convs = head.upsample_out_channels or [], head.conv_out_channels or []
        shuffle = bool(head.use_pixel_shuffle)
        self.input_conv: nn.Module = (
            ConvBlock(config.hidden_size, config.hidden_size, kernel=3, padding=1, norm=head.norm)
            if shuffle
            else nn.Identity()
        )
        widths = [config.hidden_size, *up]
        self.upsample_layers = nn.ModuleList(
            ConvBlock(before, after, kernel=kernel, padding=(kernel - 1) // 2, shuffle=True, norm=head.norm)
            if shuffle
            else ConvBlock(before, after, kernel=kernel, padding=1, stride=2, transposed=True, norm=head.norm)
            for before, after, kernel in zip(widths[:-1], up, head.upsample_kernel_sizes or [], strict=True)
        )
        widths = [widths[-1], *convs]
        self.conv_layers = nn.ModuleList(
            ConvBlock(before, after, kernel=kernel, padding=(kernel - 1) // 2 if shuffle else 0, norm=head.norm)
            for before, after, kernel in zip(widths[:-1], convs, head.conv_kernel_sizes or [], strict=True)
        )
        self.predictor = with_init(nn.Conv2d(widths[-1], config.num_labels, kernel_size=1), "kaiming")

    def forward(self, features: Tensor) -> Tensor:
        """Predict [B, K, s·h, s·w] from [B, C, h, w], with s = 2 for each upsampling block.

        In inference, a few images at a time: maps at full size take most of the memory of these models.
        """
        if self.training or torch.is_grad_enabled() or is_tracing():
            return self._predict(self._decode(features, batch=features.shape[0]))
        step = self._images_at_a_time(features)
        planes: Tensor | None = None
        for first in range(0, len(features), step):
            maps = self._decode(features[first : first + step], batch=len(features))  # [b, C, H, W]
            if planes is None:
                shape = (len(features), self.predictor.out_channels, *maps.values.shape[2:])
                planes = features.new_empty(shape, dtype=self.predictor.weight.dtype)
            self._predict(maps, planes[first : first + step])
            del maps  # the next images need its memory
        return features.new_empty(0) if planes is None else planes

    def _decode(self, features: Tensor, *, batch: int) -> FeatureMaps:
        """Run all blocks on the maps of some images of a batch."""
        blocks = self._blocks()
        maps = FeatureMaps(blocks[0].in_fastest_format(features, batch) if blocks else features)
        for block in blocks:
            maps = block(maps, batch)
        return maps

    def _predict(self, maps: FeatureMaps, out: Tensor | None = None) -> Tensor:
        """Run the last convolution on [B, C, H, W], into `out` where that is given."""
        # Rounded to bfloat16, a depth of 4 m would have steps of 3 cm, and finer ones could not be learned.
        with torch.autocast(maps.values.device.type, enabled=False):
            dtype = self.predictor.weight.dtype
            planes: Tensor = self.predictor(maps.activated(dtype, inplace=True).to(dtype))
            return planes if out is None else out.copy_(planes)

    def _blocks(self) -> list[ConvBlock]:
        """Return all blocks in order."""
        blocks = (self.input_conv, *self.upsample_layers, *self.conv_layers)
        return [block for block in blocks if isinstance(block, ConvBlock)]

    def _images_at_a_time(self, features: Tensor) -> int:
        """Return how many images to decode together, given their token maps [B, C, h, w]: two if maps are large."""
        size, largest = features.shape[2] * features.shape[3] * features.element_size(), 0  # bytes
        for block in self._blocks():
            size *= 4 if block.shuffle or block.transposed else 1
            largest = max(largest, size * block.channels)
        return 2 if largest > _LARGE_MAP_BYTES else 4

    def optimize_weights(self) -> None:
        """Allow Winograd convolutions, whose weights take memory, and store weights in the fastest memory format."""
        for block in self._blocks():
            block.allow_winograd()


class ConvBlock(nn.Module):
    """Convolution, [pixel shuffle], normalization, SiLU.

    Attributes:
        winograd: Transformed weights of Winograd convolutions for inference; None until `allow_winograd`.
    """

    def __init__(
        self,
        before: int,
        after: int,
        *,
        kernel: int,
        padding: int = 0,
        stride: int = 1,
        transposed: bool = False,
        shuffle: bool = False,
        norm: str = "instance",
    ) -> None:
        super().__init__()
        self.convolution: nn.Conv2d | nn.ConvTranspose2d = with_init(
            nn.ConvTranspose2d(before, after, kernel, stride, padding, bias=False)
            if transposed
            else nn.Conv2d(before, after * 4 if shuffle else after, kernel, stride, padding),
            "kaiming",
        )
        self.channels, self.transposed, self.shuffle = after, transposed, shuffle
        self.norm = RMSNorm2d(after) if norm == "rms" else nn.InstanceNorm2d(after)
        self.winograd: WeightCache[WinogradConv] | None = None

    def forward(self, maps: FeatureMaps, batch: int) -> FeatureMaps:
        """Map [B, C, h, w], images of a larger batch, to [B, C', s·h, s·w]. The norm of the result may be deferred."""
        if isinstance(self.norm, nn.InstanceNorm2d):
            return conv_norm_silu(
                maps,
                self.convolution,
                eps=self.norm.eps,
                batch=batch,
                shuffle=self.shuffle,
                winograd=self.winograd,
            )
        x = self.convolution(maps.activated(self.convolution.weight.dtype))
        if self.shuffle:
            x = F.pixel_shuffle(x, 2)  # [B, C', 2h, 2w]
        return FeatureMaps(F.silu(self.norm(x)))

    def in_fastest_format(self, x: Tensor, batch: int) -> Tensor:
        """Return maps [B, C, h, w] in the memory format in which this block is fastest."""
        winograd = self.winograd is not None and isinstance(self.norm, nn.InstanceNorm2d)
        memory_format = fastest_memory_format(x, self.convolution, batch=batch, winograd=winograd)
        return x.contiguous(memory_format=memory_format)

    @torch.no_grad()
    def allow_winograd(self) -> None:
        """Allow Winograd, and store the weight in the fastest memory format; its shape and values stay."""
        self.winograd = WeightCache()
        weight = self.convolution.weight
        if isinstance(self.norm, nn.InstanceNorm2d):
            with torch.inference_mode(weight.is_inference()):
                weight.data = weight.detach().to(memory_format=fastest_weight_format(weight))


class ScaleHead(nn.Module):
    """Predict canonical over actual focal length, one number for each image, from the token map."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__()
        head = _require_head(config)
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
        """Predict [B, 1] from [B, C, h, w]; a grid of another size is resized to that of the MLP."""
        features = bilinear(features, self.grid_hw, antialias=True)
        maps = FeatureMaps(features)
        for block in self.conv_layers:
            maps = block(maps, len(features))
        out: Tensor = self.predictor(maps.activated(features.dtype).flatten(1))
        return out


class ScaleMLP(nn.Module):
    """Linear layers with activations between, under the names of checkpoints."""

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


def _require_head(config: Sapiens2Config) -> Sapiens2HeadConfig:
    """Return the configuration of the head, which task models need."""
    head = config.head_config
    if head is None or (head.upsample_out_channels is None and head.conv_out_channels is None):
        actual = "None" if head is None else "one without any layers, as pretraining checkpoints have it"
        raise ConfigError(
            f"Sapiens2Config.head_config: expected a Sapiens2HeadConfig for a task model, got {actual}. "
            'Take one from Sapiens2Config.variant("0.4b", task="pose"), for example, and pass it as head_config=…'
        )
    return head
