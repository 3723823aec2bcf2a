"""The public Sapiens2 models: the bare encoder, the backbone, and one class a task.

pixel_values [B, 3, H, W] ─▶ Sapiens2Model ─▶ tokens [B, 1 + R + h·w, C] ─▶ map [B, C, h, w] ─▶ DecodeHead ─▶ task
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.errors import InputError
from vitruvian.layers.norm import RMSNorm
from vitruvian.layers.residual import LayerScale
from vitruvian.losses.dense import albedo_loss, normal_loss, segmentation_loss
from vitruvian.losses.heatmap import heatmap_loss, heatmap_mse
from vitruvian.losses.matting import matting_loss
from vitruvian.losses.pointmap import canonical_scales, pointmap_loss
from vitruvian.model import Model
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.models.sapiens2.convert import is_gated, is_original, target_names
from vitruvian.models.sapiens2.encoder import (
    Embeddings,
    Encoded,
    Encoder,
    WindowTokenizer,
    check_pixels,
    positions,
)
from vitruvian.models.sapiens2.heads import DecodeHead, ScaleHead
from vitruvian.models.sapiens2.outputs import (
    Sapiens2AlbedoEstimatorOutput,
    Sapiens2BackboneOutput,
    Sapiens2ImageMattingOutput,
    Sapiens2NormalEstimatorOutput,
    Sapiens2PointmapEstimatorOutput,
    Sapiens2PoseEstimatorOutput,
    Sapiens2SemanticSegmenterOutput,
)
from vitruvian.outputs import BaseModelOutputWithPooling
from vitruvian.weights import WeightFiles

CANONICAL_FOCAL = 768 / 1024  # focal length of the canonical camera over the height of the picture


class Sapiens2PreTrainedModel(Model):
    """What all Sapiens2 models share: names in checkpoints and starting values."""

    config_class: ClassVar[type[Config]] = Sapiens2Config
    config: Sapiens2Config
    base_model_prefix: ClassVar[str] = "model"
    no_split_modules: ClassVar[tuple[str, ...]] = ("Embeddings", "Layer")
    ignored_keys: ClassVar[tuple[str, ...]] = (r"(^|\.)periods$",)
    optional_keys: ClassVar[tuple[str, ...]] = ("mask_token",)

    @classmethod
    def adapt(cls, files: WeightFiles) -> WeightFiles:
        """Read files in the naming of the original release, which is what the Hub holds."""
        shapes = files.shapes
        if not is_original(shapes):
            return files
        gated = is_gated(shapes)

        def names(name: str) -> tuple[str, ...]:
            found = target_names(name, gated=gated)
            return (name,) if found is None else found

        return WeightFiles(files.readers, renames=names)

    @torch.no_grad()
    def init_module(self, module: nn.Module) -> None:
        """Fill fresh weights: truncated normal in the encoder, Kaiming in the heads."""
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, Embeddings):
            nn.init.trunc_normal_(module.cls_token, std=std)
            nn.init.trunc_normal_(module.register_tokens, std=std)
            if module.mask_token is not None:
                nn.init.zeros_(module.mask_token)
        elif isinstance(module, WindowTokenizer):
            nn.init.trunc_normal_(module.cls_token, std=std)
            nn.init.trunc_normal_(module.position_embeddings, std=std)
        elif isinstance(module, LayerScale):
            nn.init.constant_(module.lambda1, module.value)
        elif isinstance(module, RMSNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, DecodeHead | ScaleHead):
            for part in module.modules():
                if isinstance(part, nn.Conv2d):
                    nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
                elif isinstance(part, nn.Linear):
                    nn.init.kaiming_normal_(part.weight, nonlinearity="linear")


class Sapiens2Trunk(Sapiens2PreTrainedModel):
    """Embeddings, layers and final norm, shared by the bare model and the backbone."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.model = Encoder(config)
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.start()

    def get_input_embeddings(self) -> nn.Module:
        """Return the patch embedding."""
        return self.embeddings.patch_embeddings

    def encode(
        self, pixel_values: Tensor, bool_masked_pos: Tensor | None, *, hidden_states: bool, attentions: bool
    ) -> Encoded:
        """Embed pictures and run the layers; the final norm is not applied."""
        grid_hw = check_pixels(pixel_values, self.config)
        pixel_values = pixel_values.to(self.embeddings.patch_embeddings.weight.dtype)
        tokens = self.embeddings(pixel_values, bool_masked_pos)
        rope = positions(self.config, grid_hw, device=tokens.device, training=self.training)
        found: Encoded = self.model(tokens, rope, hidden_states=hidden_states, attentions=attentions)
        return found


class Sapiens2Model(Sapiens2Trunk):
    """The encoder alone: tokens of all patches, and the class token as a vector for the picture."""

    def forward(
        self,
        pixel_values: Tensor,
        bool_masked_pos: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Encode pictures.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W], with sides that are multiples of the patch size.
            bool_masked_pos: Patches to replace by the mask token, [B, number of patches].
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights [B, A, N, N] of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        found = self.encode(
            pixel_values,
            bool_masked_pos,
            hidden_states=self.flag("output_hidden_states", output_hidden_states),
            attentions=self.flag("output_attentions", output_attentions),
        )
        tokens = self.norm(found.tokens)  # [B, 1 + R + h·w, C]
        output = BaseModelOutputWithPooling(
            last_hidden_state=tokens,
            pooler_output=tokens[:, 0],
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )
        return self.give(output, return_dict)


class Sapiens2Backbone(Sapiens2Trunk):
    """The encoder as a backbone: maps of the stages that the configuration names."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__(config)
        self.num_features = [config.hidden_size] * (config.num_hidden_layers + 1)

    @property
    def out_features(self) -> list[str]:
        """Names of the stages that are returned."""
        return list(self.config.out_features or [])

    @property
    def out_indices(self) -> list[int]:
        """Indices of the stages that are returned."""
        return list(self.config.out_indices or [])

    @property
    def stage_names(self) -> list[str]:
        """Names of all stages."""
        return self.config.stage_names

    @property
    def channels(self) -> list[int]:
        """Channels of each map that is returned."""
        return [self.config.hidden_size] * len(self.out_features)

    def forward(
        self,
        pixel_values: Tensor,
        *,
        return_class_token: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2BackboneOutput:
        """Return feature maps of pictures [B, 3, H, W].

        Args:
            pixel_values: Prepared pictures.
            return_class_token: Return the class token of each chosen stage too.
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        found = self.encode(
            pixel_values,
            None,
            hidden_states=True,
            attentions=self.flag("output_attentions", output_attentions),
        )
        states = found.hidden_states or ()
        chosen = [states[index] for index in sorted(index % len(states) for index in self.out_indices)]
        if self.config.normalize_backbone_outputs:
            chosen = [self.norm(state) for state in chosen]
        with_class = self.flag("return_class_token", return_class_token)
        output = Sapiens2BackboneOutput(
            feature_maps=tuple(self.to_map(state, pixel_values) for state in chosen),
            cls_tokens=tuple(state[:, 0] for state in chosen) if with_class else None,
            hidden_states=states if self.flag("output_hidden_states", output_hidden_states) else None,
            attentions=found.attentions,
        )
        return self.give(output, return_dict)

    def to_map(self, tokens: Tensor, pixel_values: Tensor) -> Tensor:
        """Return patch tokens as a map, or as they are where the configuration says so."""
        if self.config.reshape_hidden_states:
            return patch_map(tokens, self.config, pixel_values)
        return tokens[:, 1 + self.config.num_register_tokens :]  # [B, h·w, C]


class Sapiens2TaskModel(Sapiens2PreTrainedModel):
    """The encoder and a decode head. Tasks differ in what they call the prediction and how it is trained."""

    def __init__(self, config: Sapiens2Config) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = Sapiens2Model(config)
        self.decode_head = DecodeHead(config)
        self.build()
        self.start()

    def build(self) -> None:
        """Add what a task has beside the decode head."""

    def get_input_embeddings(self) -> nn.Module:
        """Return the patch embedding."""
        return self.model.get_input_embeddings()

    def features(
        self, pixel_values: Tensor, hidden_states: bool | None, attentions: bool | None
    ) -> tuple[Tensor, BaseModelOutputWithPooling]:
        """Return the token map [B, C, h, w] that heads read, and all that the encoder gave."""
        encoded = self.model(
            pixel_values,
            output_hidden_states=self.flag("output_hidden_states", hidden_states),
            output_attentions=self.flag("output_attentions", attentions),
            return_dict=True,
        )
        return patch_map(encoded.last_hidden_state, self.config, pixel_values), encoded


class Sapiens2ForPoseEstimation(Sapiens2TaskModel):
    """Heatmaps of keypoints."""

    def forward(
        self,
        pixel_values: Tensor,
        flip_pairs: Tensor | None = None,
        labels: Tensor | None = None,
        label_weights: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2PoseEstimatorOutput:
        """Predict heatmaps of people that fill the picture.

        Args:
            pixel_values: Prepared crops [B, 3, H, W].
            flip_pairs: Says that the pictures are mirrored: heatmaps are mirrored back, and the keypoints of each
                pair [P, 2] trade places.
            labels: Target heatmaps [B, J, H/4, W/4], as the image processor draws them.
            label_weights: Weight of each keypoint, [B, J], [B, J, 1, 1] or [B, J, H/4, W/4].
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions)
        heatmaps = self.decode_head(features)  # [B, J, H/4, W/4]
        if flip_pairs is not None:
            heatmaps = flip_back(heatmaps, flip_pairs)
        output = Sapiens2PoseEstimatorOutput(
            heatmaps=heatmaps, hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )
        if labels is not None and self.config.use_loss_recipe:
            found = heatmap_loss(heatmaps, labels, label_weights)
            output.loss, output.loss_terms = found.total, found.terms
        elif labels is not None:
            output.loss = heatmap_mse(heatmaps, labels, label_weights)
        return self.give(output, return_dict)


class Sapiens2ForSemanticSegmentation(Sapiens2TaskModel):
    """Scores of body parts for each pixel."""

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2SemanticSegmenterOutput:
        """Predict class scores.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W].
            labels: Class of each pixel [B, H, W]; `semantic_loss_ignore_index` is left out of the loss.
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        if labels is not None and self.config.num_labels == 1:
            raise InputError("labels: segmentation needs at least two classes, and this model has one.")
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions)
        output = Sapiens2SemanticSegmenterOutput(
            logits=self.decode_head(features), hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )
        if labels is not None and output.logits is not None:
            found = segmentation_loss(
                output.logits,
                labels,
                ignore_index=self.config.semantic_loss_ignore_index,
                dice_weight=float(self.config.use_loss_recipe),
            )
            output.loss = found.total
            output.loss_terms = found.terms if self.config.use_loss_recipe else None
        return self.give(output, return_dict)


class Sapiens2ForNormalEstimation(Sapiens2TaskModel):
    """Surface normals."""

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        label_mask: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2NormalEstimatorOutput:
        """Predict normals.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W].
            labels: Normals [B, 3, H, W]; pixels whose normal has no length are left out of the loss.
            label_mask: Pixels that count in the loss, [B, 1, H, W] or [B, H, W].
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions)
        output = Sapiens2NormalEstimatorOutput(
            normals=self.decode_head(features), hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )
        if labels is not None and output.normals is not None:
            found = normal_loss(output.normals, labels, label_mask)
            output.loss, output.loss_terms = found.total, found.terms
        return self.give(output, return_dict)


class Sapiens2ForAlbedoEstimation(Sapiens2TaskModel):
    """Colour without light and shadow."""

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        label_mask: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2AlbedoEstimatorOutput:
        """Predict albedo.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W].
            labels: Albedo [B, 3, H, W] in [0, 1].
            label_mask: Pixels that count in the loss, [B, 1, H, W] or [B, H, W].
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions)
        output = Sapiens2AlbedoEstimatorOutput(
            albedos=self.decode_head(features), hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )
        if labels is not None and output.albedos is not None:
            found = albedo_loss(output.albedos, labels, label_mask)
            output.loss, output.loss_terms = found.total, found.terms
        return self.give(output, return_dict)


class Sapiens2ForPointmapEstimation(Sapiens2TaskModel):
    """A point in space for each pixel, and the scale that makes it metric."""

    scale_head: ScaleHead | None

    def build(self) -> None:
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
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2PointmapEstimatorOutput:
        """Predict points in the canonical camera.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W].
            labels: Points [B, 3, H, W] in metres, in the camera's axes (x right, y down, z forward).
            label_scales: Canonical over actual focal length [B, 1]; follows from `label_intrinsics` where those are
                given. With neither, labels are taken as points of the canonical camera, and the scale is not trained.
            label_intrinsics: Camera matrices [B, 3, 3] for pictures of this size; adds the consistency term.
            label_mask: Pixels that count in the loss, [B, 1, H, W] or [B, H, W]; by default those with depth above 0.
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions)
        output = Sapiens2PointmapEstimatorOutput(
            pointmaps=self.decode_head(features),
            scales=None if self.scale_head is None else self.scale_head(features),  # [B, 1]
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
        if labels is not None and output.pointmaps is not None:
            known = label_scales
            if known is None and label_intrinsics is not None:
                known = canonical_scales(label_intrinsics, canonical_focal=CANONICAL_FOCAL * pixel_values.shape[-2])
            found = pointmap_loss(
                output.pointmaps,
                labels,
                pred_scales=None if known is None else output.scales,
                target_scales=labels.new_ones(len(labels), 1) if known is None else known,
                intrinsics=label_intrinsics,
                mask=label_mask,
            )
            output.loss, output.loss_terms = found.total, found.terms
        return self.give(output, return_dict)


class Sapiens2ForImageMatting(Sapiens2TaskModel):
    """Alpha and premultiplied foreground colour."""

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        label_mask: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2ImageMattingOutput:
        """Predict mattes.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W].
            labels: Premultiplied RGB, then alpha [B, 4, H, W], in [0, 1].
            label_mask: Pixels that count in the loss, [B, 1, H, W] or [B, H, W].
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions)
        matte = self.decode_head(features).sigmoid()  # [B, 4, H, W]
        output = Sapiens2ImageMattingOutput(
            alphas=matte[:, 3:],  # [B, 1, H, W]
            foregrounds=matte[:, :3],  # [B, 3, H, W]
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
        if labels is not None:
            found = matting_loss(matte, labels, label_mask)
            output.loss, output.loss_terms = found.total, found.terms
        return self.give(output, return_dict)


def patch_map(tokens: Tensor, config: Sapiens2Config, pixel_values: Tensor) -> Tensor:
    """Lay the patch tokens of [B, 1 + R + h·w, C] out as a map [B, C, h, w]."""
    height, width = config.grid_hw((pixel_values.shape[-2], pixel_values.shape[-1]))
    patches = tokens[:, 1 + config.num_register_tokens :]  # [B, h·w, C]
    return patches.transpose(1, 2).reshape(len(tokens), -1, height, width)  # [B, C, h, w]


def flip_back(heatmaps: Tensor, flip_pairs: Tensor) -> Tensor:
    """Undo a horizontal flip of the picture on [B, J, H, W]: mirror, and swap the keypoints of each pair [P, 2]."""
    if flip_pairs.ndim != 2 or flip_pairs.shape[-1] != 2:
        raise InputError(f"flip_pairs: expected pairs of keypoints [P, 2], got the shape {list(flip_pairs.shape)}.")
    order = torch.arange(heatmaps.shape[1], device=heatmaps.device)
    pairs = flip_pairs.to(heatmaps.device).long()
    order = order.index_put((pairs,), pairs.flip(-1))
    return heatmaps.index_select(1, order).flip(-1)
