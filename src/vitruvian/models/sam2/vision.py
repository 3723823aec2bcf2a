"""The vision encoder of SAM 2: Hiera, and a feature pyramid that brings its stages to one width.

    pixels [B, 3, H, W] ─ backbone ─▶ 4 maps [B, h, w, C·2ˢ] ─ neck ─▶ 3 levels [B, 256, h, w], finest first

The coarsest map has no level of its own: it is added, enlarged, to the one below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.config import Config
from vitruvian.layers.init import no_init_weights
from vitruvian.layers.sine_positions import sine_positions
from vitruvian.model import Model
from vitruvian.models.sam2 import fast
from vitruvian.models.sam2.configuration import Sam2VisionConfig
from vitruvian.models.sam2.hiera import Sam2HieraDetModel, init_weights
from vitruvian.outputs import ModelOutput

ModelT = TypeVar("ModelT", bound=Model)


@dataclass
class Sam2VisionEncoderOutput(ModelOutput):
    """What the vision encoder gives.

    Attributes:
        last_hidden_state: Map of the backbone's last stage [B, h, w, C].
        pooler_output: Not filled.
        hidden_states: The embedded patches, then the output of every block, each [B, h, w, C].
        attentions: Weights of every block [B·windows, A, N, M].
        fpn_hidden_states: Levels of the pyramid, finest first, each [B, C, h, w].
        fpn_position_encoding: Sine positions of the levels, each [B, C, h, w].
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    fpn_hidden_states: tuple[Tensor, ...] | None = None
    fpn_position_encoding: tuple[Tensor, ...] | None = None


class Sam2VisionModel(Model):
    """Backbone and feature pyramid, without prompts and masks."""

    config_class = Sam2VisionConfig
    config: Sam2VisionConfig
    no_split_modules = ("HieraBlock",)
    renamed_keys = ((r"^vision_encoder\.", ""),)
    # In the file of a whole SAM 2 everything beside the vision encoder is of no use here.
    ignored_keys = (
        r"^(shared_image_embedding|prompt_encoder|mask_decoder|no_memory_embedding)\b",
        r"^(memory_|mask_downsample|object_pointer_proj|temporal_positional_encoding_projection_layer)",
        r"^(no_memory_positional_encoding|no_object_pointer|occlusion_spatial_embedding_parameter)",
    )

    def __init__(self, config: Sam2VisionConfig) -> None:
        super().__init__(config)
        self.backbone = without_values(Sam2HieraDetModel, config.backbone)
        self.neck = FeaturePyramid(config)
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
    ) -> Sam2VisionEncoderOutput:
        """Encode pictures [B, 3, H, W]."""
        output = self.encode(
            pixel_values,
            output_hidden_states=self.flag("output_hidden_states", output_hidden_states),
            output_attentions=self.flag("output_attentions", output_attentions),
        )
        levels = output.fpn_hidden_states or ()
        output.fpn_position_encoding = tuple(positions_of(level) for level in levels)
        return self.give(output, return_dict)

    def encode(
        self, pixel_values: Tensor, *, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> Sam2VisionEncoderOutput:
        """Encode pictures without the levels' positions, which masks do not need."""
        found = self.backbone(
            pixel_values,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        levels = self.neck(found.intermediate_hidden_states)
        return Sam2VisionEncoderOutput(
            last_hidden_state=found.last_hidden_state,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
            fpn_hidden_states=tuple(levels[: self.config.num_feature_levels]),
        )


class FeaturePyramid(nn.Module):
    """A convolution for each stage, coarsest first, and enlarged coarse levels added to finer ones."""

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
        self.top_down = frozenset(config.fpn_top_down_levels or ())
        self.quick = False

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Map the stages [B, h, w, C·2ˢ], finest first, to levels [B, C, h, w], finest first."""
        levels: list[Tensor] = []
        quick = fast.takes_neck(self, maps[0])
        for conv, stage in zip(self.convs, reversed(range(len(maps))), strict=True):
            level = (
                fast.project(cast(nn.Conv2d, conv), maps[stage]) if quick else conv(maps[stage].permute(0, 3, 1, 2))
            )  # [B, C, h, w]
            if levels and stage in self.top_down:
                level = level + F.interpolate(levels[0], scale_factor=2.0, mode="nearest")
            levels.insert(0, level)
        return levels


def without_values(cls: type[ModelT], config: Config) -> ModelT:
    """Build a part whose weights its owner fills, so that large models do not draw random numbers twice."""
    with no_init_weights():
        made = cls(config)
    place = torch.get_default_device()
    return made if place.type == "meta" else made.to_empty(device=place)


def positions_of(level: Tensor) -> Tensor:
    """Sine positions of the cells of a level [B, C, h, w], of its shape."""
    grid_hw = (level.shape[2], level.shape[3])
    flat = sine_positions(grid_hw, level.shape[1], level.dtype, level.device)  # [h·w, C]
    return torch.unflatten(flat.T, 1, grid_hw).expand_as(level)  # [B, C, h, w]
