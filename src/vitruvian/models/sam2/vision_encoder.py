"""The vision encoder of SAM 2: Hiera, and a feature pyramid that projects its stages to one width.

    pixels [B, 3, H, W] ─ backbone ─▶ 4 maps [B, h, w, C·2ˢ] ─ neck ─▶ 3 levels [B, 256, h, w], finest first

The coarsest map has no level: it is upsampled and added to the next finer one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, Unpack, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.config import Config
from vitruvian.layers.init import no_init_weights
from vitruvian.layers.sine_positions import sine_positions
from vitruvian.model import Model
from vitruvian.models.sam2.checkpoint_keys import VISION_IGNORED_KEYS, VISION_RENAMED_KEYS
from vitruvian.models.sam2.configuration import Sam2VisionConfig
from vitruvian.models.sam2.hiera import Sam2HieraDetModel, Sam2PreTrainedModel
from vitruvian.outputs import BaseModelOutputWithPooling, OutputFlags, OutputKwargs

ModelT = TypeVar("ModelT", bound=Model)


@dataclass
class Sam2VisionEncoderOutput(BaseModelOutputWithPooling):
    """Output of the vision encoder.

    Attributes:
        last_hidden_state: Map of the backbone's last stage [B, h, w, C].
        pooler_output: Always None.
        hidden_states, attentions: Those of `Sam2HieraDetModelOutput`.
        fpn_hidden_states: Levels of the pyramid, finest first, each [B, C, h, w].
        fpn_position_encoding: Sine positions of the levels, each [B, C, h, w].
    """

    fpn_hidden_states: tuple[Tensor, ...] | None = None
    fpn_position_encoding: tuple[Tensor, ...] | None = None


class Sam2VisionModel(Sam2PreTrainedModel):
    """Backbone and feature pyramid, without prompts and masks."""

    config_class = Sam2VisionConfig
    config: Sam2VisionConfig
    no_split_modules = ("HieraBlock",)
    renamed_keys = VISION_RENAMED_KEYS
    ignored_keys = VISION_IGNORED_KEYS

    def __init__(self, config: Sam2VisionConfig) -> None:
        super().__init__(config)
        self.backbone = build_uninitialized(Sam2HieraDetModel, config.backbone_config)
        self.neck = Sam2FeaturePyramid(config)
        self.post_init()

    def forward(self, pixel_values: Tensor, **kwargs: Unpack[OutputKwargs]) -> Sam2VisionEncoderOutput:
        """Encode images [B, 3, H, W]."""
        flags = self.output_flags(**kwargs)
        output = self.encode(pixel_values, flags)
        levels = output.fpn_hidden_states or ()
        output.fpn_position_encoding = tuple(_level_positions(level) for level in levels)
        return self.format_output(output, flags.return_dict)

    def encode(self, pixel_values: Tensor, flags: OutputFlags) -> Sam2VisionEncoderOutput:
        """Encode images without the positions of the levels, which masks do not need."""
        stages = self.backbone(pixel_values, **flags.for_inner())
        levels = self.neck(stages.intermediate_hidden_states)
        return Sam2VisionEncoderOutput(
            last_hidden_state=stages.last_hidden_state,
            hidden_states=stages.hidden_states,
            attentions=stages.attentions,
            fpn_hidden_states=tuple(levels[: self.config.num_feature_levels]),
        )


class Sam2FeaturePyramid(nn.Module):
    """A convolution for each stage, coarsest first, and upsampled coarse levels added to finer ones."""

    def __init__(self, config: Sam2VisionConfig) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(
                channels,
                config.fpn_hidden_size,
                kernel_size=config.fpn_kernel_size,
                stride=config.fpn_stride,
                padding=config.fpn_padding,
            )
            for channels in config.backbone_channel_list or ()
        )
        self.top_down = frozenset(config.fpn_top_down_levels)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Map the stages [B, h, w, C·2ˢ], finest first, to levels [B, C, h, w], finest first."""
        levels: list[Tensor] = []
        for conv, stage in zip(self.convs, reversed(range(len(maps))), strict=True):
            level = _project(cast(nn.Conv2d, conv), maps[stage])  # [B, C, h, w]
            if levels and stage in self.top_down:
                level = level + F.interpolate(levels[0], scale_factor=2.0, mode="nearest")
            levels.insert(0, level)
        return levels


def _project(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Apply a convolution to a map [B, h, w, C]: [B, C', h', w'], channels last in memory."""
    if conv.kernel_size == (1, 1) and conv.stride == (1, 1) and conv.padding == (0, 0):  # a matrix product is faster
        return F.linear(x, conv.weight.flatten(1), conv.bias).permute(0, 3, 1, 2)
    out: Tensor = conv(x.permute(0, 3, 1, 2))
    return out


def build_uninitialized(cls: type[ModelT], config: Config) -> ModelT:
    """Build a part whose parameters its parent model initializes, so that this happens once."""
    with no_init_weights():
        model = cls(config)
    device = torch.get_default_device()
    return model if device.type == "meta" else model.to_empty(device=device)


def _level_positions(level: Tensor) -> Tensor:
    """Sine positions of the cells of a level [B, C, h, w], of its shape."""
    grid_hw = (level.shape[2], level.shape[3])
    flat = sine_positions(grid_hw, level.shape[1], level.dtype, level.device)  # [h·w, C]
    return torch.unflatten(flat.T, 1, grid_hw).expand_as(level)  # [B, C, h, w]
