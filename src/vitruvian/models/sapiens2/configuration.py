"""Configurations of Sapiens2, and the table of published variants.

Sapiens2Config.variant("0.4b", task="pose")   builds what facebook/sapiens2-pose-0.4b holds, without the Hub
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal, Self

from vitruvian.config import ConfigBase, Size, as_hw, bounded, config_dataclass, nested
from vitruvian.errors import ConfigError, check_choice
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.layers.backbone import BackboneConfig, channels_by_stage

# Normals have the axes of normal maps: x right, y up, z to the viewer. Multiply by this to convert from or to the axes
# of pointmaps: x right, y down, z forward.
NORMAL_AXES = (1.0, -1.0, -1.0)
CANONICAL_FOCAL = 768 / 1024  # focal length of the canonical camera over the height of the image


@config_dataclass
class Sapiens2HeadConfig(ConfigBase):
    """A decode head: upsampling blocks, refinement convolutions, a 1×1 predictor, and optionally a scale branch.

    Args:
        upsample_out_channels: Output channels of each upsampling block; the first block reads `hidden_size`.
        upsample_kernel_sizes: Kernel size of each upsampling block; by default `upsample_kernel_size` everywhere.
        upsample_kernel_size: Kernel size of upsampling blocks that have none of their own.
        use_pixel_shuffle: Upsample by convolution and pixel shuffle, after an input convolution, rather than by
            transposed convolution.
        conv_out_channels: Output channels of the refinement convolutions.
        conv_kernel_sizes: Kernel size of each of them; by default `conv_kernel_size` everywhere.
        conv_kernel_size: Kernel size of refinement convolutions that have none of their own.
        scale_conv_out_channels: Output channels of the stride-2 convolutions of the scale branch; None for no branch.
        scale_conv_kernel_sizes: Kernel size of each of them; by default `scale_conv_kernel_size` everywhere.
        scale_conv_kernel_size: Kernel size of scale convolutions that have none of their own.
        scale_final_input_size: Number of features that enter the scale MLP; by default it follows from the image size.
        scale_final_hidden_sizes: Hidden sizes of the scale MLP.
        norm: Normalization in all blocks: ``"instance"``, or ``"rms"`` over the channels of each pixel (albedo).
    """

    sizes_are_limited: ClassVar[bool] = True
    model_type: ClassVar[str] = "sapiens2_head"

    upsample_out_channels: list[int] | None = None
    upsample_kernel_sizes: list[int] | None = None
    upsample_kernel_size: int = 4
    use_pixel_shuffle: bool | None = None
    conv_out_channels: list[int] | None = None
    conv_kernel_sizes: list[int] | None = None
    conv_kernel_size: int = 1
    scale_conv_out_channels: list[int] | None = None
    scale_conv_kernel_sizes: list[int] | None = None
    scale_conv_kernel_size: int = 1
    scale_final_input_size: int | None = None
    scale_final_hidden_sizes: list[int] | None = None
    norm: Literal["instance", "rms"] = "instance"

    def __post_init__(self) -> None:
        for stem in ("upsample", "conv", "scale_conv"):
            channels, kernels = getattr(self, f"{stem}_out_channels"), getattr(self, f"{stem}_kernel_sizes")
            if isinstance(channels, list | tuple) and kernels is None:
                setattr(self, f"{stem}_kernel_sizes", [getattr(self, f"{stem}_kernel_size")] * len(channels))
        super().__post_init__()

    def validate(self) -> None:
        """Check that channels and kernels come in pairs, and that a scale branch is complete."""
        for stem in ("upsample", "conv", "scale_conv"):
            channels, kernels = getattr(self, f"{stem}_out_channels"), getattr(self, f"{stem}_kernel_sizes")
            if len(channels or []) != len(kernels or []):
                raise ConfigError(
                    f"Sapiens2HeadConfig.{stem}_kernel_sizes: expected one for each of {channels}, got {kernels}."
                )
            if any(value < 1 for value in (channels or []) + (kernels or [])):
                raise ConfigError(f"Sapiens2HeadConfig.{stem}: channels and kernel sizes must be at least 1.")
        sizes = [*(self.scale_final_hidden_sizes or []), self.scale_final_input_size]
        if any(value is not None and value < 1 for value in sizes):
            raise ConfigError("Sapiens2HeadConfig.scale_final: sizes must be at least 1.")
        if (self.scale_conv_out_channels is None) != (self.scale_final_hidden_sizes is None):
            raise ConfigError(
                "Sapiens2HeadConfig: expected both scale_conv_out_channels and scale_final_hidden_sizes, or neither, "
                "got one of them. Pass both for a scale branch."
            )

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Drop the type, which `to_dict` adds."""
        values.pop("model_type", None)
        return values

    def to_dict(self) -> JsonObject:
        """Return the JSON object; with `norm` only if it is not the default of other libraries."""
        values = super().to_dict() | {"model_type": self.model_type}
        if self.norm == "instance":
            values.pop("norm")
        return values

    def scale_grid(self, grid_hw: tuple[int, int]) -> tuple[int, int]:
        """Return the size of the feature map after the scale convolutions, for a patch grid."""
        for kernel in self.scale_conv_kernel_sizes or []:
            padding = (kernel - 1) // 2
            height, width = ((side + 2 * padding - kernel) // 2 + 1 for side in grid_hw)
            grid_hw = (height, width)
        return grid_hw


@config_dataclass
class Sapiens2Config(BackboneConfig):
    """Sapiens2. The defaults are those of facebook/sapiens2-pretrain-0.4b, at another image size.

    Args:
        patch_size: Side of a patch in pixels, or (height, width).
        hidden_size: Channels of a token.
        intermediate_size: Hidden channels of the feed-forward layers.
        num_hidden_layers: Number of transformer layers.
        num_attention_heads: Number of query heads.
        hidden_act: Activation of the feed-forward layers.
        attention_dropout: Probability of dropping an attention weight in training.
        initializer_range: Standard deviation of new weights.
        rope_theta: Base of the rotary frequencies.
        image_size: Side of the image in pixels, or (height, width); other sizes work too.
        num_channels: Channels of the image.
        query_bias: Whether the query projection has a bias.
        key_bias: Whether the key projection has a bias.
        value_bias: Whether the value projection has a bias.
        proj_bias: Whether the output projection has a bias.
        mlp_bias: Whether the feed-forward layers have biases.
        layerscale_value: Initial value of the layer scale.
        drop_path_rate: Probability of dropping a residual branch in training.
        use_gated_mlp: SwiGLU feed-forward layers rather than plain ones.
        num_register_tokens: Number of register tokens.
        pos_embed_shift: In training, shift rotary coordinates by up to this much.
        pos_embed_jitter: In training, stretch each axis of them by a factor of up to this much.
        pos_embed_rescale: In training, scale both axes of them by one factor of up to this much.
        reshape_hidden_states: Whether the backbone returns maps [B, C, h, w] rather than tokens [B, N, C].
        use_mask_token: Whether there is a token for masked patches.
        rms_norm_eps: Epsilon of the RMS norms.
        normalize_backbone_outputs: Whether the backbone applies the final norm to its outputs.
        use_qk_norm: Whether queries and keys are normalized before the rotation.
        num_key_value_heads_per_layer: Number of key/value heads of each layer; by default all query heads in the
            first and last layers and `num_key_value_attention_heads` in the others.
        num_key_value_attention_heads: Number of key/value heads in the middle layers.
        num_first_full_attention_layers: Number of first layers with full multi-head attention.
        num_last_full_attention_layers: Number of last layers with full multi-head attention.
        semantic_loss_ignore_index: Label that the segmentation loss ignores.
        flip_pairs: Pairs of keypoints that are swapped in a mirrored image.
        head_config: The decode head.
        out_features, out_indices: See `BackboneConfig`.
        return_class_token: Whether the backbone returns the class token of each stage too.
        use_tokenizer: Whether windows of patches are merged into one token each before the encoder (the 4K variants).
        tokenizer_window_size: Side of such a window in patches.
        num_tokenizer_layers: Number of layers that merge a window.
        use_loss_recipe: Train pose and segmentation with the full published recipe rather than the plain loss.
        num_prototypes: Number of prototypes of the self-distillation in pretraining.
        projection_hidden_size: Hidden channels of the projection onto them.
        projection_bottleneck_size: Channels in which tokens and prototypes are compared.
    """

    model_type: ClassVar[str] = "sapiens2"
    sub_configs: ClassVar[dict[str, type[ConfigBase]]] = {"head_config": Sapiens2HeadConfig}
    extra_fields: ClassVar[tuple[str, ...]] = (
        "use_tokenizer",
        "tokenizer_window_size",
        "num_tokenizer_layers",
        "use_loss_recipe",
        "return_class_token",
        "num_prototypes",
        "projection_hidden_size",
        "projection_bottleneck_size",
    )

    patch_size: Size = 16
    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    hidden_act: str = "silu"
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    rope_theta: float = 100.0
    image_size: Size = 224
    num_channels: int = 3
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    proj_bias: bool = True
    mlp_bias: bool = True
    layerscale_value: float = 1.0
    drop_path_rate: float = 0.0
    use_gated_mlp: bool = True
    num_register_tokens: int = bounded(8, ge=0)
    pos_embed_shift: float | None = None
    pos_embed_jitter: float | None = None
    pos_embed_rescale: float | None = 2.0
    reshape_hidden_states: bool = True
    use_mask_token: bool = False
    rms_norm_eps: float = 1e-6
    normalize_backbone_outputs: bool = True
    use_qk_norm: bool = True
    num_key_value_heads_per_layer: list[int] | None = None
    num_key_value_attention_heads: int = 8
    num_first_full_attention_layers: int = 8
    num_last_full_attention_layers: int = 8
    semantic_loss_ignore_index: int = bounded(255)
    flip_pairs: list[list[int]] | None = None
    head_config: Sapiens2HeadConfig | None = None
    return_class_token: bool = False
    use_tokenizer: bool = False
    tokenizer_window_size: int = 4
    num_tokenizer_layers: int = 2
    use_loss_recipe: bool = False
    num_prototypes: int = bounded(8192, ge=1)
    projection_hidden_size: int = bounded(2048, ge=1)
    projection_bottleneck_size: int = bounded(256, ge=1)

    def __post_init__(self) -> None:
        self.head_config = nested(self.head_config, Sapiens2HeadConfig)
        super().__post_init__()
        if self.num_key_value_heads_per_layer is None:
            last = self.num_hidden_layers - self.num_last_full_attention_layers
            self.num_key_value_heads_per_layer = [
                self.num_attention_heads
                if layer < self.num_first_full_attention_layers or layer >= last
                else self.num_key_value_attention_heads
                for layer in range(self.num_hidden_layers)
            ]
        head = self.head_config
        if head is not None and head.scale_conv_out_channels and head.scale_final_input_size is None:
            height, width = head.scale_grid(self.grid_hw(self.image_hw))
            head.scale_final_input_size = height * width * head.scale_conv_out_channels[-1]

    def check_fields(self) -> None:
        """Check types and sizes."""
        super().check_fields()
        sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_channels")
        self.require_range(sizes, 1)
        self.require_sizes("patch_size", "image_size")

    def validate(self) -> None:
        """Check sizes that must divide each other, and the number of key/value heads of each layer."""
        super().validate()
        if self.hidden_size % (4 * self.num_attention_heads):
            raise ConfigError(
                f"Sapiens2Config.hidden_size: expected a multiple of 4 × {self.num_attention_heads} heads, since "
                f"rotations fill each head in fours, got {self.hidden_size}."
            )
        if not 0 <= self.drop_path_rate < 1 or not 0 <= self.attention_dropout < 1:
            raise ConfigError("Sapiens2Config: drop_path_rate and attention_dropout must be at least 0 and below 1.")
        heads = self.num_key_value_heads_per_layer or []
        if len(heads) != self.num_hidden_layers or any(h < 1 or self.num_attention_heads % h for h in heads):
            raise ConfigError(
                f"Sapiens2Config.num_key_value_heads_per_layer: expected {self.num_hidden_layers} divisors of "
                f"{self.num_attention_heads}, got {heads}."
            )

    @property
    def channels_of(self) -> dict[str, int]:
        """Channels of the stages of the backbone: the embeddings, then each layer."""
        return channels_by_stage(self.hidden_size, [self.hidden_size] * self.num_hidden_layers)

    @property
    def patch_hw(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return as_hw(self.patch_size)

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of the images of the model."""
        return as_hw(self.image_size)

    @property
    def token_hw(self) -> tuple[int, int]:
        """Height and width in pixels of an encoder token."""
        window = self.tokenizer_window_size if self.use_tokenizer else 1
        return self.patch_hw[0] * window, self.patch_hw[1] * window

    def grid_hw(self, image_hw: tuple[int, int]) -> tuple[int, int]:
        """Return the number of encoder tokens down and across an image."""
        return image_hw[0] // self.token_hw[0], image_hw[1] // self.token_hw[1]

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Drop the table of multi-task checkpoints."""
        values.pop("packed", None)
        return super().upgrade(values)

    def to_dict(self) -> JsonObject:
        """Return the JSON object; fields that other libraries lack appear only if they are not the default."""
        values = super().to_dict()
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {k: v for k, v in values.items() if k not in self.extra_fields or v != defaults[k]}

    @classmethod
    def variant(cls, name: str, *, task: str = "pretrain", **overrides: Any) -> Self:
        """Return the configuration of a published model, such as ``variant("0.4b", task="pose")``.

        Args:
            name: One of 0.1b, 0.4b, 0.8b, 1b, 1b-4k, 5b.
            task: One of pretrain, pose, seg, normal, pointmap, matting, albedo.
            overrides: Fields to change.
        """
        check_choice("variant", name, VARIANTS)
        check_choice("task", task, CHECKPOINT_HEADS)
        return cls(**({"image_size": [1024, 768]} | VARIANTS[name] | head_fields(task, name) | overrides))


def _encoder_fields(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    """Return the fields of an encoder: half as many key/value heads, and an MLP of four times its width."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_attention_heads": heads // 2,
        "intermediate_size": 4 * hidden,
        **more,
    }


VARIANTS: dict[str, JsonObject] = {
    "0.1b": _encoder_fields(768, 12, 12),
    "0.4b": _encoder_fields(1024, 24, 16),
    "0.8b": _encoder_fields(1280, 32, 16, num_tokenizer_layers=3),
    "1b": _encoder_fields(1536, 40, 24, num_tokenizer_layers=4),
    "1b-4k": _encoder_fields(1536, 40, 24, num_tokenizer_layers=4, use_tokenizer=True, image_size=[4096, 3072]),
    "5b": _encoder_fields(2432, 56, 32, num_tokenizer_layers=6),
}
CHECKPOINT_HEADS = ("pretrain", "pose", "seg", "normal", "pointmap", "matting", "albedo")


def head_fields(task: str, name: str) -> JsonObject:
    """Return the fields that a task of a published model, or "people", adds to an encoder: labels, flips, the head."""
    from vitruvian.human import FLIP_PAIRS, KEYPOINT_NAMES, PART_NAMES

    large = name == "5b"
    wide = [1536, 768, 512, 256]
    if task == "pretrain":
        return {}
    if task == "pose":
        up, conv = ([1536, 1024], [768, 512, 256]) if name.startswith("1b") else ([1024, 768], [512, 512, 256])
        return {
            "id2label": dict(enumerate(KEYPOINT_NAMES)),
            "flip_pairs": [list(p) for p in FLIP_PAIRS],
            "head_config": _deconvolution_head(up, conv),
        }
    if task == "seg":
        return {
            "id2label": dict(enumerate(PART_NAMES)),
            "head_config": _deconvolution_head([512, 256, 128, 64], [64, 64]),
        }
    if task == "people":
        return {"num_labels": 5, "head_config": _deconvolution_head([256], [128])}
    if task == "pointmap":
        head = _shuffle_head([1536, 768, 768, 768] if large else wide, [128, 64, 32] if large else [64, 32, 16])
        scale = {"scale_conv_out_channels": [1536, 512, 128], "scale_final_hidden_sizes": [512, 128]}
        return {"num_labels": 3, "head_config": head | scale}
    up = wide if large else [768, 512, 256, 128]
    if task == "albedo":
        return {"num_labels": 3, "head_config": _shuffle_head(up, [64, 32, 16]) | {"norm": "rms"}}
    head = _shuffle_head(up, [128, 64, 32] if large else [64, 32, 16])
    return {"num_labels": 3 if task == "normal" else 4, "head_config": head}


def _deconvolution_head(up: list[int], conv: list[int]) -> JsonObject:
    """Return a head of transposed convolutions and 1×1 refinement convolutions."""
    return {"upsample_out_channels": up, "conv_out_channels": conv}


def _shuffle_head(up: list[int], conv: list[int]) -> JsonObject:
    """Return a head of pixel shuffles and 3×3 refinement convolutions."""
    return {
        "upsample_out_channels": up,
        "upsample_kernel_sizes": [3] * len(up),
        "use_pixel_shuffle": True,
        "conv_out_channels": conv,
        "conv_kernel_sizes": [3] * len(conv),
    }
