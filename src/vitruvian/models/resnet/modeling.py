"""ResNet as a backbone.

pixel_values [B, 3, H, W] ─▶ stem [B, 64, H/4, W/4] ─▶ stage1 [B, 256, H/4, W/4] ─▶ stage2 [B, 512, H/8, W/8] ─▶ …
"""

from typing import ClassVar, Unpack

from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.layers.backbone import BackboneMixin, check_pixels
from vitruvian.layers.init import init_layer, with_init
from vitruvian.layers.mlp import activation
from vitruvian.model import Model
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.outputs import BackboneOutput, OutputKwargs

_REDUCTION = 4  # a bottleneck works on a quarter of the channels


class ResNetBackbone(BackboneMixin, Model):
    """ResNet as a source of feature maps: each stage in `out_features`."""

    config_class: ClassVar[type[Config]] = ResNetConfig
    config: ResNetConfig
    base_model_prefix: ClassVar[str] = "resnet"
    no_split_modules: ClassVar[tuple[str, ...]] = ("ResNetConvLayer",)
    ignored_keys: ClassVar[tuple[str, ...]] = (r"^classifier\.",)
    optional_keys: ClassVar[tuple[str, ...]] = ("num_batches_tracked",)

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        self.embedder = ResNetStem(config)
        self.encoder = ResNetEncoder(config)
        self.post_init()

    def init_module(self, module: nn.Module) -> None:
        """Initialize weights."""
        init_layer(module)

    @property
    def strides_hw(self) -> list[tuple[int, int]]:
        """Pixels of the image, down and across, for a cell of each map that the backbone returns."""
        first = 1 if self.config.downsample_in_first_stage else 0
        stages = [self.config.stage_names.index(name) for name in self.out_features]
        strides = [4 << (stage - 1 + first) if stage else 4 for stage in stages]
        return [(stride, stride) for stride in strides]

    def forward(self, pixel_values: Tensor, **kwargs: Unpack[OutputKwargs]) -> BackboneOutput:
        """Map images [B, 3, H, W] of any size to `feature_maps` [B, C, h, w] of the chosen stages; has no attention."""
        flags = self.output_flags(**kwargs)
        maps = dict(zip(self.config.stage_names, self.encoder(self.embedder(pixel_values)), strict=True))
        output = BackboneOutput(
            feature_maps=tuple(maps[name] for name in self.out_features),
            hidden_states=tuple(maps.values()) if flags.hidden_states else None,
        )
        return self.format_output(output, flags.return_dict)


class ResNetConvLayer(nn.Module):
    """Convolution, batch norm and, unless it closes a block, an activation."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, act: str | None) -> None:
        super().__init__()
        convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.convolution = with_init(convolution, "kaiming")
        self.normalization = nn.BatchNorm2d(outputs)
        self.act = None if act is None else activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, h, w] to [B, C', h/stride, w/stride]."""
        out: Tensor = self.normalization(self.convolution(x))
        return out if self.act is None else self.act(out)


class ResNetStem(nn.Module):
    """A large convolution and a pooling: a quarter of the resolution."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.embedder = ResNetConvLayer(config.num_channels, config.embedding_size, 7, stride=2, act=config.hidden_act)
        self.pooler = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map [B, 3, H, W] to [B, C, H/4, W/4]."""
        check_pixels(pixels, self.embedder.convolution.in_channels)
        out: Tensor = self.pooler(self.embedder(pixels.to(self.embedder.convolution.weight.dtype)))
        return out


class ResNetBlock(nn.Module):
    """Convolutions on a residual branch, and a projection beside them where the shape changes."""

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__()
        changes_shape = inputs != outputs or stride != 1
        self.shortcut = ResNetConvLayer(inputs, outputs, 1, stride=stride, act=None) if changes_shape else None
        if config.layer_type == "basic":
            layers = [
                ResNetConvLayer(inputs, outputs, 3, stride=stride, act="relu"),
                ResNetConvLayer(outputs, outputs, 3, act=None),
            ]
        else:
            inner = outputs // _REDUCTION
            first, second = (stride, 1) if config.downsample_in_bottleneck else (1, stride)
            layers = [
                ResNetConvLayer(inputs, inner, 1, stride=first, act="relu"),
                ResNetConvLayer(inner, inner, 3, stride=second, act="relu"),
                ResNetConvLayer(inner, outputs, 1, act=None),
            ]
        self.layer = nn.Sequential(*layers)
        self.act = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, h, w] to [B, C', h/stride, w/stride]."""
        return self.act(self.layer(x) + (x if self.shortcut is None else self.shortcut(x)))


class ResNetStage(nn.Module):
    """Blocks at one resolution, of which the first may halve it."""

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, *, depth: int, stride: int) -> None:
        super().__init__()
        first = ResNetBlock(config, inputs, outputs, stride=stride)
        self.layers = nn.Sequential(first, *(ResNetBlock(config, outputs, outputs) for _ in range(depth - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, h, w] to [B, C', h/stride, w/stride]."""
        out: Tensor = self.layers(x)
        return out


class ResNetEncoder(nn.Module):
    """The stages."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        sizes = [config.embedding_size, *config.hidden_sizes]
        strides = [2 if config.downsample_in_first_stage else 1] + [2] * (len(config.depths) - 1)
        self.stages = nn.ModuleList(
            ResNetStage(config, sizes[i], sizes[i + 1], depth=depth, stride=stride)
            for i, (depth, stride) in enumerate(zip(config.depths, strides, strict=True))
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the stem's map [B, C, h, w] and those of all stages."""
        maps = [x]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps
