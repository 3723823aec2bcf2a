"""The Sapiens2 models: the encoder, the backbone, and one class for each task.

pixel_values [B, 3, H, W] -> Sapiens2Model -> tokens [B, 1 + R + h·w, C] -> map [B, C, h, w] -> DecodeHead -> task
"""

from pathlib import Path
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.errors import InputError
from vitruvian.hub import HubOptions
from vitruvian.layers.backbone import BackboneMixin
from vitruvian.layers.gradient_checkpointing import checkpointed
from vitruvian.layers.init import init_layer
from vitruvian.layers.norm import RMSNorm
from vitruvian.losses.dense import albedo_loss, normal_loss, segmentation_loss
from vitruvian.losses.heatmap import heatmap_loss, heatmap_mse
from vitruvian.losses.matting import matting_loss
from vitruvian.losses.pointmap import canonical_scales, pointmap_loss
from vitruvian.losses.terms import LossTerms
from vitruvian.model import Model, OutputT
from vitruvian.models.sapiens2.checkpoint_keys import is_gated, is_original, target_names
from vitruvian.models.sapiens2.configuration import CANONICAL_FOCAL, Sapiens2Config
from vitruvian.models.sapiens2.encoder import Sapiens2Embeddings, Sapiens2Encoder, checked_grid_hw, token_rope
from vitruvian.models.sapiens2.heads import DecodeHead, ScaleHead
from vitruvian.models.sapiens2.multitask_checkpoint import multitask_config, multitask_files, read_heads
from vitruvian.models.sapiens2.outputs import (
    Sapiens2AlbedoEstimatorOutput,
    Sapiens2BackboneOutput,
    Sapiens2ImageMattingOutput,
    Sapiens2NormalEstimatorOutput,
    Sapiens2PointmapEstimatorOutput,
    Sapiens2PoseEstimatorOutput,
    Sapiens2SemanticSegmenterOutput,
)
from vitruvian.ops.fp8 import fp8_obstacle
from vitruvian.outputs import BaseModelOutputWithPooling, ModelOutput, OutputKwargs
from vitruvian.weights import WeightFiles

# Weights of the 29 body parts in the published segmentation recipe, in the order of `vitruvian.human.PARTS`.
PART_LOSS_WEIGHTS = (
    *(0.1, 10.0, 10.0, 3.0, 2.0, 4.0, 4.0, 2.0, 2.0, 6.0, 10.0, 3.0, 3.0, 1.0, 4.0),
    *(4.0, 2.0, 2.0, 6.0, 10.0, 3.0, 3.0, 1.0, 1.0, 10.0, 10.0, 10.0, 10.0, 10.0),
)


class Sapiens2PreTrainedModel(Model):
    """Base of all Sapiens2 models: names in checkpoints, initialization and `optimize`."""

    config_class: ClassVar[type[Config]] = Sapiens2Config
    config: Sapiens2Config
    base_model_prefix: ClassVar[str] = "model"
    no_split_modules: ClassVar[tuple[str, ...]] = ("Sapiens2Embeddings", "Sapiens2Layer")
    ignored_keys: ClassVar[tuple[str, ...]] = (r"(^|\.)periods$",)
    optional_keys: ClassVar[tuple[str, ...]] = ("mask_token",)
    checkpoint_head: ClassVar[str | None] = None  # name of the head in checkpoints
    padded: ClassVar[bool] = False  # whether images are padded, so that they keep their aspect ratio

    @classmethod
    def read_config(
        cls, source: str | Path, config: Config | str | Path | None, options: HubOptions, overrides: dict[str, Any]
    ) -> tuple[Any, bool]:
        """Return the configuration of the model; of its task, in a multi-task checkpoint."""
        heads = read_heads(source, options) if config is None else None
        if heads is not None:
            config = multitask_config(source, heads, cls.checkpoint_head, options)
        return super().read_config(source, config, options, overrides)

    @classmethod
    def open_files(
        cls, source: str | Path, options: HubOptions, *, use_safetensors: bool | None, variant: str | None
    ) -> WeightFiles:
        """Open the weights; those of the encoder and the task, in a multi-task checkpoint."""
        heads = read_heads(source, options)
        if heads is None:
            return super().open_files(source, options, use_safetensors=use_safetensors, variant=variant)
        return multitask_files(source, heads, cls.checkpoint_head, options)

    @classmethod
    def adapt_files(cls, files: WeightFiles) -> WeightFiles:
        """Rename the weights of files with the names of the original release, as on the Hub."""
        shapes = files.shapes
        if not is_original(shapes):
            return files
        gated = is_gated(shapes)

        def names(name: str) -> tuple[str, ...]:
            targets = target_names(name, gated=gated)
            return (name,) if targets is None else targets

        return WeightFiles(files.readers, renames=names)

    def fp8_obstacle(self) -> str | None:
        """Return what ``optimize(fp8=True)`` needs and this model lacks; None if it can run."""
        config, weight = self.config, next(self.parameters())
        if not (config.use_gated_mlp and config.hidden_act in ("silu", "swish")):
            return f"a gated feed-forward with SiLU, got {config.hidden_act}"
        return fp8_obstacle(weight.device, weight.dtype)

    def optimize_weights(self) -> None:
        """Join the weights of layers, quantize them for fp8, and allow Winograd convolutions in heads."""
        super().optimize_weights()
        for module in self.modules():
            if self.fp8 and isinstance(module, Sapiens2Encoder):
                module.quantize()

    def init_module(self, module: nn.Module) -> None:
        """Initialize new weights: truncated normal in the encoder, Kaiming in the heads."""
        init_layer(module, std=self.config.initializer_range, bound=2.0)


class Sapiens2Model(Sapiens2PreTrainedModel):
    """The encoder: tokens of all patches, and the class token as a feature vector of the image."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__(config)
        self.embeddings = Sapiens2Embeddings(config)
        self.model = Sapiens2Encoder(config)
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_init()

    def forward(
        self, pixel_values: Tensor, bool_masked_pos: Tensor | None = None, **kwargs: Unpack[OutputKwargs]
    ) -> BaseModelOutputWithPooling:
        """Encode images.

        Args:
            pixel_values: Prepared images [B, 3, H, W], with sides that are multiples of the patch size.
            bool_masked_pos: Patches to replace by the mask token, [B, number of patches].
            kwargs: See `OutputKwargs`. Attention weights are [B, A, N, N].
        """
        flags = self.output_flags(**kwargs)
        grid_hw = checked_grid_hw(pixel_values, self.config)
        pixel_values = pixel_values.to(self.embeddings.patch_embeddings.weight.dtype)
        x = self.embeddings(pixel_values, bool_masked_pos)  # [B, 1 + R + h·w, C]
        rope = token_rope(self.config, grid_hw, device=x.device, training=self.training)
        branch: Tensor | None = None
        states, weights = [x] if flags.hidden_states else [], []
        for layer in self.model.layer:
            x, branch, weight = checkpointed(layer)(x, branch, rope, flags.attentions)
            if flags.hidden_states:
                states.append(x + branch)
            weights.append(weight)
        tokens = self.norm(x, branch)
        output = BaseModelOutputWithPooling(
            last_hidden_state=tokens,
            pooler_output=tokens[:, 0],
            hidden_states=tuple(states) if flags.hidden_states else None,
            attentions=tuple(weights) if flags.attentions else None,
        )
        return self.format_output(output, flags.return_dict)


class Sapiens2Backbone(BackboneMixin, Sapiens2Model):
    """The encoder as a backbone: feature maps of the stages that the configuration names."""

    config: Sapiens2Config

    def forward(  # type: ignore[override]
        self, pixel_values: Tensor, *, return_class_token: bool | None = None, **kwargs: Unpack[OutputKwargs]
    ) -> Sapiens2BackboneOutput:
        """Return feature maps of images [B, 3, H, W].

        Args:
            pixel_values: Prepared images.
            return_class_token: Return the class token of each chosen stage too.
            kwargs: See `OutputKwargs`.
        """
        flags = self.output_flags(**kwargs)
        inner = flags._replace(hidden_states=True).for_inner()
        encoded = super().forward(pixel_values, **inner)
        states = encoded.hidden_states or ()
        chosen = [states[index] for index in sorted(index % len(states) for index in self.out_indices)]
        if self.config.normalize_backbone_outputs:
            chosen = [self.norm(state) for state in chosen]
        with_class = self.resolve_flag("return_class_token", return_class_token)
        output = Sapiens2BackboneOutput(
            feature_maps=tuple(self._to_map(state, pixel_values) for state in chosen),
            cls_tokens=tuple(state[:, 0] for state in chosen) if with_class else None,
            hidden_states=states if flags.hidden_states else None,
            attentions=encoded.attentions,
        )
        return self.format_output(output, flags.return_dict)

    def _to_map(self, tokens: Tensor, pixel_values: Tensor) -> Tensor:
        """Return patch tokens as a map, or as tokens if the configuration says so."""
        if self.config.reshape_hidden_states:
            return patch_map(tokens, self.config, pixel_values)
        return tokens[:, 1 + self.config.num_register_tokens :]  # [B, h·w, C]


def patch_map(tokens: Tensor, config: Sapiens2Config, pixel_values: Tensor) -> Tensor:
    """View the patch tokens of [B, 1 + R + h·w, C] as a map [B, C, h, w] with channels last in memory."""
    height, width = config.grid_hw((pixel_values.shape[-2], pixel_values.shape[-1]))
    patches = tokens[:, 1 + config.num_register_tokens :]  # [B, h·w, C]
    return torch.unflatten(patches, 1, (height, width)).permute(0, 3, 1, 2)  # [B, C, h, w]


class ForwardOptions(OutputKwargs, total=False):
    """Keyword arguments of the `forward` of all task models: those of `OutputKwargs`, and one more.

    Attributes:
        encoded: Output of `self.model` for these images, for several tasks over one encoder.
    """

    encoded: BaseModelOutputWithPooling | None


class Sapiens2TaskModel(Sapiens2PreTrainedModel):
    """The encoder and a decode head. Subclasses name the prediction and define its loss."""

    output_name: ClassVar[str]  # field of the output with the prediction

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = Sapiens2Model(config)
        self.decode_head = DecodeHead(config)
        self.build_other_heads()
        self.post_init()

    def build_other_heads(self) -> None:
        """Build heads beside the decode head. Subclasses override it."""

    def encoder_flags(self, options: OutputKwargs) -> OutputKwargs:
        """Return what the encoder outputs for these options of a task."""
        return self.output_flags(**options).for_inner()

    def feature_map(self, encoded: BaseModelOutputWithPooling, pixel_values: Tensor) -> Tensor:
        """Return the map [B, C, h, w] that the heads read."""
        if encoded.last_hidden_state is None:
            raise InputError("encoded: expected the output of the encoder for these images, got one without tokens.")
        return patch_map(encoded.last_hidden_state, self.config, pixel_values)

    def complete_output(
        self,
        output: OutputT,
        encoded: BaseModelOutputWithPooling,
        options: OutputKwargs,
        loss: LossTerms | Tensor | None = None,
    ) -> OutputT:
        """Complete the output of a task: hidden states, attentions, the loss; a tuple if the options say so."""
        output["hidden_states"], output["attentions"] = encoded.hidden_states, encoded.attentions
        if isinstance(loss, LossTerms):
            output["loss"], output["loss_terms"] = loss.total, loss.terms
        else:
            output["loss"] = loss
        return self.format_output(output, self.output_flags(**options).return_dict)


class Sapiens2ForPoseEstimation(Sapiens2TaskModel):
    """Heatmaps of keypoints."""

    checkpoint_head = "pose"
    output_name = "heatmaps"

    def forward(
        self,
        pixel_values: Tensor,
        flip_pairs: Tensor | None = None,
        labels: Tensor | None = None,
        label_weights: Tensor | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> Sapiens2PoseEstimatorOutput:
        """Predict heatmaps of people, one in each image.

        Args:
            pixel_values: Prepared crops [B, 3, H, W].
            flip_pairs: For mirrored images: heatmaps are mirrored back, and the keypoints of each pair [P, 2] are
                swapped.
            labels: Target heatmaps [B, J, H/4, W/4], as the image processor draws them.
            label_weights: Weight of each keypoint, [B, J], [B, J, 1, 1] or [B, J, H/4, W/4].
            kwargs: See `ForwardOptions`.
        """
        encoded = kwargs.pop("encoded", None) or self.model(pixel_values, **self.encoder_flags(kwargs))
        features = self.feature_map(encoded, pixel_values)
        heatmaps = self.decode_head(features)  # [B, J, H/4, W/4]
        if flip_pairs is not None:
            heatmaps = flip_back(heatmaps, flip_pairs)
        loss: LossTerms | Tensor | None = None
        if labels is not None:
            loss_function = heatmap_loss if self.config.use_loss_recipe else heatmap_mse
            loss = loss_function(heatmaps, labels, label_weights)
        return self.complete_output(Sapiens2PoseEstimatorOutput(heatmaps=heatmaps), encoded, kwargs, loss)


class Sapiens2ForSemanticSegmentation(Sapiens2TaskModel):
    """Scores of body parts for each pixel."""

    checkpoint_head = "seg"
    output_name = "logits"

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, **kwargs: Unpack[ForwardOptions]
    ) -> Sapiens2SemanticSegmenterOutput:
        """Predict class scores.

        Args:
            pixel_values: Prepared images [B, 3, H, W].
            labels: Class of each pixel [B, H, W]; `semantic_loss_ignore_index` is left out of the loss.
            kwargs: See `ForwardOptions`.
        """
        if labels is not None and self.config.num_labels == 1:
            raise InputError("labels: segmentation needs at least two classes, and this model has one.")
        encoded = kwargs.pop("encoded", None) or self.model(pixel_values, **self.encoder_flags(kwargs))
        features = self.feature_map(encoded, pixel_values)
        logits = self.decode_head(features)  # [B, K, H, W]
        loss: LossTerms | Tensor | None = None
        if labels is not None:
            recipe = self.config.use_loss_recipe
            terms = segmentation_loss(
                logits,
                labels,
                ignore_index=self.config.semantic_loss_ignore_index,
                class_weights=self.class_weights(),
                dice_weight=float(recipe),
            )
            loss = terms if recipe else terms.total
        return self.complete_output(Sapiens2SemanticSegmenterOutput(logits=logits), encoded, kwargs, loss)

    def class_weights(self) -> tuple[float, ...] | None:
        """Return the weights of the 29 body parts of the published recipe, if the configuration asks for them."""
        applies = self.config.use_loss_recipe and self.config.num_labels == len(PART_LOSS_WEIGHTS)
        return PART_LOSS_WEIGHTS if applies else None


class Sapiens2DenseModel(Sapiens2TaskModel):
    """Base of the tasks whose prediction and labels are maps of the image, with one loss over their pixels."""

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        label_mask: Tensor | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> ModelOutput:
        """Predict maps of images.

        Args:
            pixel_values: Prepared images [B, 3, H, W].
            labels: Maps [B, K, H, W] as the description of the class says.
            label_mask: Pixels that count in the loss, [B, 1, H, W] or [B, H, W].
            kwargs: See `ForwardOptions`.
        """
        encoded = kwargs.pop("encoded", None) or self.model(pixel_values, **self.encoder_flags(kwargs))
        features = self.feature_map(encoded, pixel_values)
        maps = self.activate(self.decode_head(features))  # [B, K, H, W]
        loss = None if labels is None else self.pixel_loss(maps, labels, label_mask)
        return self.complete_output(self.to_output(maps), encoded, kwargs, loss)

    def activate(self, maps: Tensor) -> Tensor:
        """Return the prediction, given the output of the decode head."""
        return maps

    def to_output(self, maps: Tensor) -> ModelOutput:
        """Return the output with the prediction [B, K, H, W] in its fields."""
        raise NotImplementedError

    @staticmethod
    def pixel_loss(pred: Tensor, target: Tensor, mask: Tensor | None = None) -> LossTerms:
        """Return the loss of maps [B, K, H, W]."""
        raise NotImplementedError


class Sapiens2ForNormalEstimation(Sapiens2DenseModel):
    """Surface normals.

    Labels are normals [B, 3, H, W] (x right, y up, z to the viewer); pixels whose normal has no length are left out of
    the loss.
    """

    checkpoint_head = "normal"
    output_name = "normals"
    padded = True
    pixel_loss = staticmethod(normal_loss)

    def to_output(self, maps: Tensor) -> Sapiens2NormalEstimatorOutput:
        """Return normals [B, 3, H, W]."""
        return Sapiens2NormalEstimatorOutput(normals=maps)


class Sapiens2ForAlbedoEstimation(Sapiens2DenseModel):
    """Color without light and shadow. Labels are albedo [B, 3, H, W] in [0, 1]."""

    checkpoint_head = "albedo"
    output_name = "albedos"
    padded = True
    pixel_loss = staticmethod(albedo_loss)

    def to_output(self, maps: Tensor) -> Sapiens2AlbedoEstimatorOutput:
        """Return albedo [B, 3, H, W]."""
        return Sapiens2AlbedoEstimatorOutput(albedos=maps)


class Sapiens2ForImageMatting(Sapiens2DenseModel):
    """Alpha and premultiplied foreground color. Labels are premultiplied RGB, then alpha [B, 4, H, W], in [0, 1]."""

    checkpoint_head = "matting"
    output_name = "alphas"
    pixel_loss = staticmethod(matting_loss)

    def activate(self, maps: Tensor) -> Tensor:
        """Limit mattes [B, 4, H, W] to [0, 1]."""
        return maps.sigmoid()

    def to_output(self, maps: Tensor) -> Sapiens2ImageMattingOutput:
        """Split mattes [B, 4, H, W]."""
        return Sapiens2ImageMattingOutput(alphas=maps[:, 3:], foregrounds=maps[:, :3])


class Sapiens2ForPointmapEstimation(Sapiens2TaskModel):
    """A point in space for each pixel, and the scale that makes it metric."""

    checkpoint_head = "pointmap"
    output_name = "pointmaps"
    padded = True
    scale_head: ScaleHead | None

    def build_other_heads(self) -> None:
        """Add the scale branch where the head's configuration has one."""
        head = self.config.head_config
        self.scale_head = ScaleHead(self.config) if head is not None and head.scale_conv_out_channels else None

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        label_scales: Tensor | None = None,
        label_intrinsics: Tensor | None = None,
        label_mask: Tensor | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> Sapiens2PointmapEstimatorOutput:
        """Predict points in the canonical camera.

        Args:
            pixel_values: Prepared images [B, 3, H, W].
            labels: Points [B, 3, H, W] in meters, in the camera's axes (x right, y down, z forward).
            label_scales: Canonical over actual focal length [B, 1]; follows from `label_intrinsics` where those are
                given. With neither, labels are taken as points of the canonical camera, and the scale is not trained.
            label_intrinsics: Camera matrices [B, 3, 3] for images of the labels' size; adds the consistency term.
            label_mask: Pixels that count in the loss, [B, 1, H, W] or [B, H, W]; by default those with depth above 0.
            kwargs: See `ForwardOptions`.
        """
        encoded = kwargs.pop("encoded", None) or self.model(pixel_values, **self.encoder_flags(kwargs))
        features = self.feature_map(encoded, pixel_values)
        pointmaps = self.decode_head(features)  # [B, 3, H, W]
        scales = None if self.scale_head is None else self.scale_head(features)  # [B, 1]
        loss: LossTerms | None = None
        if labels is not None:
            known = label_scales
            if known is None and label_intrinsics is not None:
                known = canonical_scales(label_intrinsics, canonical_focal=CANONICAL_FOCAL * labels.shape[-2])
            loss = pointmap_loss(
                pointmaps,
                labels,
                pred_scales=None if known is None else scales,
                target_scales=labels.new_ones(len(labels), 1) if known is None else known,
                intrinsics=label_intrinsics,
                mask=label_mask,
            )
        output = Sapiens2PointmapEstimatorOutput(pointmaps=pointmaps, scales=scales)
        return self.complete_output(output, encoded, kwargs, loss)


def flip_back(heatmaps: Tensor, flip_pairs: Tensor) -> Tensor:
    """Undo a horizontal flip of the image on [B, J, H, W]: mirror, and swap the keypoints of each pair [P, 2]."""
    if flip_pairs.ndim != 2 or flip_pairs.shape[-1] != 2:
        raise InputError(f"flip_pairs: expected pairs of keypoints [P, 2], got the shape {list(flip_pairs.shape)}.")
    order = torch.arange(heatmaps.shape[1], device=heatmaps.device)
    pairs = flip_pairs.to(heatmaps.device).long()
    order = order.index_put((pairs,), pairs.flip(-1))
    return heatmaps.index_select(1, order).flip(-1)
