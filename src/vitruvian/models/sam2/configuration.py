"""Configurations of SAM 2: backbone, vision encoder, prompt encoder, mask decoder, and the models of images and videos.

    Sam2HieraDetConfig ─▶ Sam2VisionConfig ─┐
                   Sam2PromptEncoderConfig ─┼─▶ Sam2Config ◀── Sam2Config.variant("tiny"), no Hub needed
                     Sam2MaskDecoderConfig ─┘   Sam2VideoConfig: the same and the memory

Checkpoints on the Hub are of the video model (`model_type` ``sam2_video``); `Sam2Config` reads their configurations.
None for a field with a default means the default.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from typing import Any, ClassVar, Self, TypeVar

from vitruvian.config import Config, ConfigBase, Size, as_hw, bounded, config_dataclass, nested
from vitruvian.errors import ConfigError, check_choice
from vitruvian.filesystem.json_files import JsonObject

ConfigT = TypeVar("ConfigT", bound=ConfigBase)


def positional_fields(*names: str) -> Callable[[type[ConfigT]], type[ConfigT]]:
    """Decorate a settings class to accept its first fields as positional arguments, as the published examples do."""

    def decorate(cls: type[ConfigT]) -> type[ConfigT]:
        build = cls.__init__

        @functools.wraps(build)
        def init(self: ConfigT, *values: object, **named: object) -> None:
            if len(values) > len(names):
                raise ConfigError(
                    f"{cls.__name__}: expected at most {len(names)} values by position ({', '.join(names)})."
                )
            repeated = [name for name in names[: len(values)] if name in named]
            if repeated:
                raise ConfigError(f"{cls.__name__}: got {', '.join(repeated)} by position and by name. Give it once.")
            build(self, **dict(zip(names, values, strict=False)), **named)  # type: ignore[arg-type]

        cls.__init__ = init  # type: ignore[assignment, method-assign]
        return cls

    return decorate


def _default(*values: int) -> Any:
    return field(default_factory=lambda: list(values))


@config_dataclass
class _Sam2PartConfig(Config):
    """Base of all configurations of SAM 2: None means the default."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if getattr(self, item.name) is None and item.default_factory is not MISSING:
                setattr(self, item.name, item.default_factory())
        super().__post_init__()

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Accept the `model_type` of the image model for the video model and vice versa: they share settings."""
        model_type = str(values.get("model_type", ""))
        if model_type.replace("sam2_video", "sam2") == cls.model_type.replace("sam2_video", "sam2"):
            values = values | {"model_type": cls.model_type}
        return super().upgrade(dict(values))


@config_dataclass
class Sam2HieraDetConfig(_Sam2PartConfig):
    """The Hiera backbone: a pyramid of windowed attention with a few global blocks.

    Args:
        hidden_size: Channels after the patch embedding.
        num_attention_heads: Heads of the first stage, for other readers; `num_attention_heads_per_stage` is used.
        num_channels: Channels of an image.
        image_size: Size of an image (height, width); by default 1024 × 1024.
        patch_kernel_size: Kernel of the patch embedding; by default 7 × 7.
        patch_stride: Its stride; by default 4 × 4.
        patch_padding: Its padding; by default 3 × 3.
        query_stride: Stride of the pooling of queries between stages; by default 2 × 2.
        window_positional_embedding_background_size: Grid of the coarse position table; by default 7 × 7.
        num_query_pool_stages: Number of stages that start by pooling.
        blocks_per_stage: By default [1, 2, 7, 2].
        embed_dim_per_stage: By default [96, 192, 384, 768].
        num_attention_heads_per_stage: By default [1, 2, 4, 8].
        window_size_per_stage: By default [8, 4, 14, 7].
        global_attention_blocks: Blocks, counted over all stages, that attend globally; by default [5, 7, 9].
        mlp_ratio: Hidden channels of a feed-forward layer over its channels.
        hidden_act: Activation of the feed-forward layers.
        layer_norm_eps: Added to the variance in layer norms.
        initializer_range: Standard deviation of initial weights.
    """

    model_type: ClassVar[str] = "sam2_hiera_det_model"

    hidden_size: int = 96
    num_attention_heads: int = 1
    num_channels: int = bounded(3, ge=1)
    image_size: Size = _default(1024, 1024)
    patch_kernel_size: Size = _default(7, 7)
    patch_stride: Size = _default(4, 4)
    patch_padding: Size = _default(3, 3)
    query_stride: Size = _default(2, 2)
    window_positional_embedding_background_size: Size = _default(7, 7)
    num_query_pool_stages: int = 3
    blocks_per_stage: list[int] = _default(1, 2, 7, 2)
    embed_dim_per_stage: list[int] = _default(96, 192, 384, 768)
    num_attention_heads_per_stage: list[int] = _default(1, 2, 4, 8)
    window_size_per_stage: list[int] = _default(8, 4, 14, 7)
    global_attention_blocks: list[int] = _default(5, 7, 9)
    mlp_ratio: float = bounded(4.0, ge=0, lt=1000)
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-6
    initializer_range: float = 0.02

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Accept the configuration of a whole model and select the part of the backbone."""
        if isinstance(values.get("vision_config"), Mapping):
            values = dict(values["vision_config"])
        return super().upgrade(dict(values.get("backbone_config") or values))

    def validate(self) -> None:
        """Raise `ConfigError` for stages that do not match each other."""
        super().validate()
        self.require_range(("image_size", "patch_kernel_size", "patch_stride", "query_stride"), 1)
        self.require_range(("blocks_per_stage", "embed_dim_per_stage", "window_size_per_stage"), 1)
        self.require_range(("patch_padding", "window_positional_embedding_background_size"), 0)
        stages, blocks = len(self.blocks_per_stage), sum(self.blocks_per_stage)
        widths, windows = self.embed_dim_per_stage, self.window_size_per_stage
        for name in ("embed_dim_per_stage", "num_attention_heads_per_stage", "window_size_per_stage"):
            if len(getattr(self, name)) != stages:
                raise ConfigError(f"{name}: expected one value for each of {stages} stages, got {getattr(self, name)}.")
        heads = self.num_attention_heads_per_stage
        if any(count < 1 or channels % count for channels, count in zip(widths, heads, strict=True)):
            raise ConfigError(
                f"num_attention_heads_per_stage: expected divisors of the channels {widths}, got {heads}."
            )
        if self.hidden_size != widths[0]:
            raise ConfigError(
                f"hidden_size: expected the first of embed_dim_per_stage ({widths[0]}), got {self.hidden_size}."
            )
        if not 0 <= self.num_query_pool_stages < stages:
            raise ConfigError(f"num_query_pool_stages: expected 0 to {stages - 1}, got {self.num_query_pool_stages}.")
        if any(not 0 <= block < blocks for block in self.global_attention_blocks):
            raise ConfigError(
                f"global_attention_blocks: expected numbers below {blocks}, got {self.global_attention_blocks}."
            )
        pooled = windows[: self.num_query_pool_stages]
        if any(window % edge for window in pooled for edge in as_hw(self.query_stride)):
            raise ConfigError(
                f"window_size_per_stage: expected multiples of query_stride before a pooled stage, got {windows}."
            )

    @property
    def size_multiple(self) -> tuple[int, int]:
        """(height, width) that the size of an image must be a multiple of.

        The fine position table is tiled window by window, and every pooling must divide the grid.
        """
        (sh, sw), (qh, qw) = as_hw(self.patch_stride), as_hw(self.query_stride)
        times = self.num_query_pool_stages
        window = self.window_size_per_stage[0]
        return sh * math.lcm(window, qh**times), sw * math.lcm(window, qw**times)


@config_dataclass
class Sam2VisionConfig(_Sam2PartConfig):
    """The vision encoder: a backbone and the feature pyramid on it.

    Args:
        backbone_config: The backbone; by default Hiera tiny.
        backbone_channel_list: Channels of the stages of the backbone, last first; by default [768, 384, 192, 96].
        backbone_feature_sizes: Grids of the pyramid's levels, finest first; by default 256², 128² and 64².
        fpn_hidden_size: Channels of the pyramid.
        fpn_kernel_size: Kernel of its convolutions.
        fpn_stride: Their stride.
        fpn_padding: Their padding.
        fpn_top_down_levels: Levels that add the level above; by default [2, 3].
        num_feature_levels: Number of levels that are used, finest first.
        hidden_act: Name of an activation, for other readers; the pyramid has none.
        layer_norm_eps: Epsilon of layer norms, for other readers; the pyramid has none.
        initializer_range: Standard deviation of initial weights.
    """

    model_type: ClassVar[str] = "sam2_vision_model"
    sub_configs: ClassVar[dict[str, type[ConfigBase]]] = {"backbone_config": Sam2HieraDetConfig}

    backbone_config: Sam2HieraDetConfig = field(default_factory=Sam2HieraDetConfig)
    backbone_channel_list: list[int] = _default(768, 384, 192, 96)
    backbone_feature_sizes: list[list[int]] = field(default_factory=lambda: [[256, 256], [128, 128], [64, 64]])
    fpn_hidden_size: int = bounded(256, ge=1)
    fpn_kernel_size: int = bounded(1, ge=1)
    fpn_stride: int = bounded(1, ge=1)
    fpn_padding: int = 0
    fpn_top_down_levels: list[int] = _default(2, 3)
    num_feature_levels: int = 3
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-6
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        self.backbone_config = nested(self.backbone_config or {}, Sam2HieraDetConfig)
        super().__post_init__()

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Accept the configuration of a whole model and select the part of the vision encoder."""
        inner = values.get("vision_config")
        return super().upgrade(dict(inner) if isinstance(inner, Mapping) else values)

    def validate(self) -> None:
        """Raise `ConfigError` for a pyramid that does not match its backbone."""
        super().validate()
        channels = self.backbone_config.embed_dim_per_stage[::-1]
        if self.backbone_channel_list != channels:
            raise ConfigError(
                f"backbone_channel_list: expected the channels of the backbone, last first ({channels}), "
                f"got {self.backbone_channel_list}."
            )
        levels = len(channels)
        if not 1 <= self.num_feature_levels <= levels:
            raise ConfigError(f"num_feature_levels: expected 1 to {levels}, got {self.num_feature_levels}.")
        if any(not 0 <= level < levels for level in self.fpn_top_down_levels):
            raise ConfigError(f"fpn_top_down_levels: expected numbers below {levels}, got {self.fpn_top_down_levels}.")


@config_dataclass
class Sam2PromptEncoderConfig(_Sam2PartConfig):
    """The prompt encoder: points, boxes and masks to embeddings.

    Args:
        hidden_size: Channels of an embedding.
        image_size: Size of an image, a number or (height, width).
        patch_size: Pixels of an image for one cell of the image embedding.
        mask_input_channels: Hidden channels of the embedding of mask prompts.
        num_point_embeddings: Number of labels of points: negative, positive, and the two corners of a box.
        hidden_act: Activation of the mask embedding.
        layer_norm_eps: Added to the variance in its norms.
        scale: Standard deviation of the random frequencies of positions.
    """

    model_type: ClassVar[str] = "sam2_prompt_encoder"

    hidden_size: int = 256
    image_size: Size = 1024
    patch_size: Size = 16
    mask_input_channels: int = 16
    num_point_embeddings: int = bounded(4, ge=4)
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-6
    scale: float = 1

    def validate(self) -> None:
        """Raise `ConfigError` for sizes that do not divide."""
        super().validate()
        if self.hidden_size % 2 or self.mask_input_channels % 4:
            raise ConfigError(
                "hidden_size and mask_input_channels: expected a multiple of 2 and of 4, "
                f"got {self.hidden_size} and {self.mask_input_channels}."
            )
        if any(
            patch < 1 or size < patch or size % patch
            for size, patch in zip(as_hw(self.image_size), as_hw(self.patch_size), strict=True)
        ):
            raise ConfigError(f"image_size: expected multiples of patch_size {self.patch_size}, got {self.image_size}.")

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of an image."""
        return as_hw(self.image_size)

    @property
    def grid_hw(self) -> tuple[int, int]:
        """Height and width of the image embedding."""
        (height, width), (ph, pw) = as_hw(self.image_size), as_hw(self.patch_size)
        return height // ph, width // pw


@config_dataclass
class Sam2MaskDecoderConfig(_Sam2PartConfig):
    """The mask decoder: a two-way transformer between prompts and image, and the heads on it.

    Args:
        hidden_size: Channels of tokens and of the image embedding.
        hidden_act: Activation where masks are upscaled.
        num_multimask_outputs: Masks that are predicted for an ambiguous prompt.
        dynamic_multimask_via_stability: Where a single mask is unstable, return the best of the others.
        dynamic_multimask_stability_delta: Distance of the two thresholds of the stability score from 0.
        dynamic_multimask_stability_thresh: Stability score from which on a mask is stable.
        mlp_dim: Hidden channels of the transformer's feed-forward layers.
        num_hidden_layers: Layers of the transformer, and of each of its feed-forward parts.
        num_attention_heads: Attention heads.
        attention_downsample_rate: Channels over channels inside cross-attention.
        iou_head_depth: Layers of the head that predicts a mask's IoU.
        iou_head_hidden_dim: Its hidden channels.
    """

    model_type: ClassVar[str] = "sam2_mask_decoder"

    hidden_size: int = 256
    hidden_act: str = "gelu"
    num_multimask_outputs: int = bounded(3, ge=1)
    dynamic_multimask_via_stability: bool = True
    dynamic_multimask_stability_delta: float = 0.05
    dynamic_multimask_stability_thresh: float = 0.98
    mlp_dim: int = bounded(2048, ge=1)
    num_hidden_layers: int = bounded(2, ge=1)
    num_attention_heads: int = 8
    attention_downsample_rate: int = 2
    iou_head_depth: int = bounded(3, ge=2)
    iou_head_hidden_dim: int = bounded(256, ge=1)

    def validate(self) -> None:
        """Raise `ConfigError` for channels that do not divide."""
        super().validate()
        parts = self.num_attention_heads * self.attention_downsample_rate
        if parts < 1 or self.hidden_size % parts or self.hidden_size % 8:
            raise ConfigError(
                "hidden_size: expected a multiple of 8 and of num_attention_heads × attention_downsample_rate "
                f"({parts}), got {self.hidden_size}."
            )


@positional_fields("vision_config", "prompt_encoder_config", "mask_decoder_config")
@config_dataclass
class Sam2Config(_Sam2PartConfig):
    """SAM 2 for images. The first three fields may be positional arguments.

    Args:
        vision_config: The vision encoder.
        prompt_encoder_config: The prompt encoder.
        mask_decoder_config: The mask decoder.
        initializer_range: Standard deviation of initial weights.
    """

    model_type: ClassVar[str] = "sam2"
    sub_configs: ClassVar[dict[str, type[ConfigBase]]] = {
        "vision_config": Sam2VisionConfig,
        "prompt_encoder_config": Sam2PromptEncoderConfig,
        "mask_decoder_config": Sam2MaskDecoderConfig,
    }

    vision_config: Sam2VisionConfig = field(default_factory=Sam2VisionConfig)
    prompt_encoder_config: Sam2PromptEncoderConfig = field(default_factory=Sam2PromptEncoderConfig)
    mask_decoder_config: Sam2MaskDecoderConfig = field(default_factory=Sam2MaskDecoderConfig)
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        self.vision_config = nested(self.vision_config or {}, Sam2VisionConfig)
        self.prompt_encoder_config = nested(self.prompt_encoder_config or {}, Sam2PromptEncoderConfig)
        self.mask_decoder_config = nested(self.mask_decoder_config or {}, Sam2MaskDecoderConfig)
        super().__post_init__()

    @classmethod
    def variant(cls, name: str, *, image_size: Size = 1024) -> Self:
        """Configuration of a published size, without the Hub: "tiny", "small", "base-plus" or "large".

        Args:
            name: The size. Names such as "sam2.1-hiera-base_plus" are accepted too.
            image_size: Size of an image, a number or (height, width), a multiple of 32.
        """
        key = name.lower().replace("_", "-").removeprefix("facebook/").split("hiera-")[-1]
        check_choice("Sam2Config.variant", key, VARIANTS, error=ConfigError)
        backbone = Sam2HieraDetConfig(**VARIANTS[key])
        vision = Sam2VisionConfig(backbone_config=backbone, backbone_channel_list=backbone.embed_dim_per_stage[::-1])
        return cls(vision_config=vision).with_image_size(image_size)

    def with_image_size(self, image_size: Size) -> Self:
        """Configuration for images of another size, a number or (height, width); weights stay valid."""
        check_image_size(as_hw(image_size), self.vision_config.backbone_config, "image_size", ConfigError)
        return type(self).from_dict(self._values_for_size(*as_hw(image_size)))

    def _values_for_size(self, height: int, width: int) -> JsonObject:
        """Return all values, with those that depend on the size of images changed."""
        values = self.to_dict()
        values["vision_config"]["backbone_config"]["image_size"] = [height, width]
        values["vision_config"]["backbone_feature_sizes"] = _feature_sizes(self.vision_config, (height, width))
        values["prompt_encoder_config"]["image_size"] = height if height == width else [height, width]
        return values

    def validate(self) -> None:
        """Raise `ConfigError` for parts that do not match, and for image sizes that the backbone does not support."""
        super().validate()
        vision, prompts, decoder = self.vision_config, self.prompt_encoder_config, self.mask_decoder_config
        widths = {vision.fpn_hidden_size, prompts.hidden_size, decoder.hidden_size}
        if len(widths) > 1:
            raise ConfigError(
                "hidden sizes: expected one value for fpn_hidden_size, prompt_encoder_config.hidden_size and "
                f"mask_decoder_config.hidden_size, got {sorted(widths)}."
            )
        if vision.num_feature_levels != 3:
            raise ConfigError(f"num_feature_levels: expected 3 for Sam2Model, got {vision.num_feature_levels}.")
        check_image_size(prompts.image_hw, vision.backbone_config, "image_size", ConfigError)
        expected = _feature_sizes(vision, prompts.image_hw)
        if [list(size) for size in vision.backbone_feature_sizes] != expected:
            raise ConfigError(
                f"backbone_feature_sizes: expected {expected} for images of {prompts.image_hw}, "
                f"got {vision.backbone_feature_sizes}. Use Sam2Config.with_image_size to change the size of all parts."
            )
        if list(prompts.grid_hw) != expected[-1]:
            raise ConfigError(
                f"prompt_encoder_config.patch_size: expected images of {prompts.image_hw} divided into {expected[-1]} "
                f"cells, got {list(prompts.grid_hw)}."
            )


@config_dataclass
class Sam2VideoPromptEncoderConfig(Sam2PromptEncoderConfig):
    """The prompt encoder of the video model; fields are those of `Sam2PromptEncoderConfig`."""

    model_type: ClassVar[str] = "sam2_video_prompt_encoder"


@config_dataclass
class Sam2VideoMaskDecoderConfig(Sam2MaskDecoderConfig):
    """The mask decoder of the video model; fields are those of `Sam2MaskDecoderConfig`."""

    model_type: ClassVar[str] = "sam2_video_mask_decoder"


@positional_fields("vision_config", "prompt_encoder_config", "mask_decoder_config")
@config_dataclass
class Sam2VideoConfig(Sam2Config):
    """SAM 2 for videos. Defaults are those of the SAM 2.1 checkpoints; the first three fields may be positional.

    Args:
        vision_config: The vision encoder.
        prompt_encoder_config: The prompt encoder.
        mask_decoder_config: The mask decoder.
        initializer_range: Standard deviation of initial weights.
        image_size: Size of a frame, a number or (height, width).
        num_maskmem: Frames whose memory is attended to: conditioning frames and up to this many less 1 recent ones. 0
            switches the memory off.
        sigmoid_scale_for_mem_enc: Factor on mask probabilities before they are encoded to memory.
        sigmoid_bias_for_mem_enc: Added to them after that.
        enable_occlusion_spatial_embedding: Whether an embedding marks memories of frames without the object (SAM 2.1).
        multimask_output_in_sam: Whether to predict several masks and select the best.
        multimask_min_pt_num: Least number of points for which this happens.
        multimask_max_pt_num: Largest number of points for which this happens.
        multimask_output_for_tracking: Whether this also happens on frames without a prompt.
        max_object_pointers_in_encoder: Frames whose object pointer is attended to.
        max_cond_frame_num: Largest number of conditioning frames that are attended to; -1 for all.
        enable_temporal_pos_encoding_for_object_pointers: Whether object pointers have a position in time (SAM 2.1).
        memory_attention_hidden_size: Channels of the memory attention.
        memory_attention_num_layers: Its layers.
        memory_attention_num_attention_heads: Its heads.
        memory_attention_downsample_rate: Channels over channels inside attention.
        memory_attention_feed_forward_hidden_size: Hidden channels of its feed-forward layers.
        memory_attention_feed_forward_hidden_act: Activation of its feed-forward layers.
        memory_attention_dropout: Dropout of its branches.
        memory_attention_rope_feat_sizes: Width and height of the grid that rotary positions cover; by default that of
            the image embedding.
        memory_attention_rope_dropout: Dropout of attention weights.
        memory_encoder_hidden_size: Channels of the memory encoder.
        memory_encoder_output_channels: Channels of a memory.
        rope_parameters: `rope_theta`, the base of the frequencies of rotary positions, and `rope_type`, "axial".
        mask_downsampler_embed_dim: Channels of an encoded mask.
        mask_downsampler_kernel_size: Kernel of the convolutions that encode a mask.
        mask_downsampler_stride: Their stride.
        mask_downsampler_padding: Their padding.
        mask_downsampler_total_stride: Pixels of a mask for one cell of a memory.
        mask_downsampler_hidden_act: Activation after each.
        memory_fuser_num_layers: Blocks that fuse the encoded mask with the features of the frame.
        memory_fuser_embed_dim: Their channels.
        memory_fuser_intermediate_dim: Their hidden channels.
        memory_fuser_kernel_size: Kernel of their depthwise convolution.
        memory_fuser_padding: Its padding.
        memory_fuser_layer_scale_init_value: Initial scale of their branches.
        memory_fuser_hidden_act: Their activation.
    """

    model_type: ClassVar[str] = "sam2_video"

    prompt_encoder_config: Sam2PromptEncoderConfig = field(default_factory=Sam2VideoPromptEncoderConfig)
    mask_decoder_config: Sam2MaskDecoderConfig = field(default_factory=Sam2VideoMaskDecoderConfig)
    image_size: Size = 1024
    # memories and object pointers
    num_maskmem: int = bounded(7, ge=0)
    sigmoid_scale_for_mem_enc: float = 20.0
    sigmoid_bias_for_mem_enc: float = -10.0
    enable_occlusion_spatial_embedding: bool = True
    # selection of masks
    multimask_output_in_sam: bool = True
    multimask_min_pt_num: int = bounded(0, ge=0)
    multimask_max_pt_num: int = bounded(1, ge=0)
    multimask_output_for_tracking: bool = True
    max_object_pointers_in_encoder: int = bounded(16, ge=1)
    max_cond_frame_num: int = bounded(-1, ge=-1)
    enable_temporal_pos_encoding_for_object_pointers: bool = True
    # memory attention
    memory_attention_hidden_size: int = 256
    memory_attention_num_layers: int = bounded(4, ge=1)
    memory_attention_num_attention_heads: int = bounded(1, ge=1)
    memory_attention_downsample_rate: int = bounded(1, ge=1)
    memory_attention_feed_forward_hidden_size: int = 2048
    memory_attention_feed_forward_hidden_act: str = "relu"
    memory_attention_dropout: float = bounded(0.1, ge=0, lt=1)
    memory_attention_rope_feat_sizes: list[int] | None = None
    rope_parameters: JsonObject = field(default_factory=dict)
    memory_attention_rope_dropout: float = bounded(0.1, ge=0, lt=1)
    # memory encoder
    memory_encoder_hidden_size: int = 256
    memory_encoder_output_channels: int = bounded(64, ge=4)
    mask_downsampler_embed_dim: int = 256
    mask_downsampler_kernel_size: int = bounded(3, ge=1)
    mask_downsampler_stride: int = bounded(2, ge=2)
    mask_downsampler_padding: int = 1
    mask_downsampler_total_stride: int = bounded(16, ge=2)
    mask_downsampler_hidden_act: str = "gelu"
    memory_fuser_num_layers: int = bounded(2, ge=0)
    memory_fuser_embed_dim: int = 256
    memory_fuser_intermediate_dim: int = 1024
    memory_fuser_kernel_size: int = bounded(7, ge=1)
    memory_fuser_padding: int = 3
    memory_fuser_layer_scale_init_value: float = 1e-6
    memory_fuser_hidden_act: str = "gelu"

    def __post_init__(self) -> None:
        self.prompt_encoder_config = nested(self.prompt_encoder_config or {}, Sam2VideoPromptEncoderConfig)
        self.mask_decoder_config = nested(self.mask_decoder_config or {}, Sam2VideoMaskDecoderConfig)
        if self.memory_attention_rope_feat_sizes is None:
            height, width = self.prompt_encoder_config.grid_hw
            self.memory_attention_rope_feat_sizes = [width, height]
        self.rope_parameters = {"rope_type": "axial", "rope_theta": 10000.0} | (self.rope_parameters or {})
        super().__post_init__()

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Accept `memory_attention_rope_theta` of the published files."""
        theta = values.pop("memory_attention_rope_theta", None)
        if theta is not None:
            values["rope_parameters"] = {"rope_theta": theta} | (values.get("rope_parameters") or {})
        return super().upgrade(values)

    def _values_for_size(self, height: int, width: int) -> JsonObject:
        values = super()._values_for_size(height, width)
        values["image_size"] = values["prompt_encoder_config"]["image_size"]
        return values | {"memory_attention_rope_feat_sizes": None}

    def validate(self) -> None:
        """Raise `ConfigError` for parts that do not match."""
        super().validate()
        height, width = self.prompt_encoder_config.grid_hw
        if self.memory_attention_rope_feat_sizes != [width, height]:
            raise ConfigError(
                f"memory_attention_rope_feat_sizes: expected {[width, height]}, the grid of the image embedding, got "
                f"{self.memory_attention_rope_feat_sizes}. Use Sam2VideoConfig.with_image_size to change all sizes."
            )
        if as_hw(self.image_size) != self.prompt_encoder_config.image_hw:
            raise ConfigError(
                f"image_size: expected that of prompt_encoder_config {self.prompt_encoder_config.image_hw}, got "
                f"{self.image_size}. Use Sam2VideoConfig.with_image_size to change all sizes."
            )
        if self.rope_parameters.get("rope_type") != "axial":
            raise ConfigError(f"rope_parameters: expected the rope_type axial, got {self.rope_parameters}.")
        heads = self.memory_attention_num_attention_heads * self.memory_attention_downsample_rate
        if self.memory_attention_hidden_size % (4 * heads):
            raise ConfigError(
                f"memory_attention_hidden_size: expected a multiple of 4 × heads × downsample rate ({4 * heads}), "
                f"got {self.memory_attention_hidden_size}."
            )
        widths = {
            self.vision_config.fpn_hidden_size,
            self.memory_attention_hidden_size,
            self.memory_encoder_hidden_size,
            self.memory_fuser_embed_dim,
            self.mask_downsampler_embed_dim,
        }
        if len(widths) > 1:
            raise ConfigError(
                "hidden sizes: expected one value for fpn_hidden_size, memory_attention_hidden_size, "
                "memory_encoder_hidden_size, memory_fuser_embed_dim and mask_downsampler_embed_dim, got "
                f"{sorted(widths)}."
            )


def _backbone(width: int, heads: int, blocks: list[int], global_blocks: list[int], **others: Any) -> dict[str, Any]:
    """Fields of a backbone; channels and heads double from stage to stage."""
    return {
        "hidden_size": width,
        "num_attention_heads": heads,
        "blocks_per_stage": blocks,
        "embed_dim_per_stage": [width * 2**stage for stage in range(4)],
        "num_attention_heads_per_stage": [heads * 2**stage for stage in range(4)],
        "global_attention_blocks": global_blocks,
        **others,
    }


VARIANTS = {
    "tiny": _backbone(96, 1, [1, 2, 7, 2], [5, 7, 9]),
    "small": _backbone(96, 1, [1, 2, 11, 2], [7, 10, 13]),
    "base-plus": _backbone(112, 2, [2, 3, 16, 3], [12, 16, 20], window_positional_embedding_background_size=[14, 14]),
    "large": _backbone(144, 2, [2, 6, 36, 4], [23, 33, 43], window_size_per_stage=[8, 4, 16, 8]),
}


def _feature_sizes(vision: Sam2VisionConfig, image_hw: tuple[int, int]) -> list[list[int]]:
    """Grids of the levels for images of this size, finest first."""
    backbone = vision.backbone_config
    strides = list(zip(as_hw(backbone.patch_stride), as_hw(backbone.query_stride), strict=True))
    pooled = [min(level, backbone.num_query_pool_stages) for level in range(vision.num_feature_levels)]
    return [
        [side // (patch * query**times) for side, (patch, query) in zip(image_hw, strides, strict=True)]
        for times in pooled
    ]


def check_image_size(
    image_hw: tuple[int, int], backbone: Sam2HieraDetConfig, subject: str, error: type[Exception]
) -> None:
    """Raise `error` unless the backbone supports images of this size."""
    multiple = backbone.size_multiple
    if any(edge < step or edge % step for edge, step in zip(image_hw, multiple, strict=True)):
        raise error(
            f"{subject}: expected height and width that are multiples of {multiple[0]} and {multiple[1]}, "
            f"got {image_hw[0]} × {image_hw[1]}. Resize the image."
        )
