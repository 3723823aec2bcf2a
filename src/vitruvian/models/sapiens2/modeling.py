"""The public Sapiens2 models: the bare encoder, the backbone, and one class a task.

pixel_values [B, 3, H, W] ─▶ Sapiens2Model ─▶ tokens [B, 1 + R + h·w, C] ─▶ map [B, C, h, w] ─▶ DecodeHead ─▶ task
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitruvian.errors import InputError
from vitruvian.losses.dense import albedo_loss, normal_loss, segmentation_loss
from vitruvian.losses.heatmap import heatmap_loss, heatmap_mse
from vitruvian.losses.matting import matting_loss
from vitruvian.losses.pointmap import canonical_scales, pointmap_loss
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.models.sapiens2.heads import DecodeHead, ScaleHead
from vitruvian.models.sapiens2.outputs import (
    Sapiens2AlbedoEstimatorOutput,
    Sapiens2ImageMattingOutput,
    Sapiens2NormalEstimatorOutput,
    Sapiens2PointmapEstimatorOutput,
    Sapiens2PoseEstimatorOutput,
    Sapiens2SemanticSegmenterOutput,
)
from vitruvian.models.sapiens2.trunk import Sapiens2Backbone, Sapiens2Model, Sapiens2PreTrainedModel, patch_map
from vitruvian.outputs import BaseModelOutputWithPooling

__all__ = [
    "Sapiens2Backbone",
    "Sapiens2ForAlbedoEstimation",
    "Sapiens2ForImageMatting",
    "Sapiens2ForNormalEstimation",
    "Sapiens2ForPointmapEstimation",
    "Sapiens2ForPoseEstimation",
    "Sapiens2ForSemanticSegmentation",
    "Sapiens2Model",
    "Sapiens2PreTrainedModel",
]

# Weights of the 29 body parts in the published segmentation recipe, in the order of `vitruvian.human.PARTS`.
PART_LOSS_WEIGHTS = (
    *(0.1, 10.0, 10.0, 3.0, 2.0, 4.0, 4.0, 2.0, 2.0, 6.0, 10.0, 3.0, 3.0, 1.0, 4.0),
    *(4.0, 2.0, 2.0, 6.0, 10.0, 3.0, 3.0, 1.0, 1.0, 10.0, 10.0, 10.0, 10.0, 10.0),
)
# Normals are predicted in these axes: x right, y up, z to the viewer, as normal maps have them. Multiply by this for
# the axes of pointmaps (x right, y down, z forward), and back.
NORMAL_AXES = (1.0, -1.0, -1.0)
CANONICAL_FOCAL = 768 / 1024  # focal length of the canonical camera over the height of the picture


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

    def fuse(self) -> None:
        """Join matrices and lay heads out for inference."""
        self.model.fuse()
        self.decode_head.fuse()

    def get_input_embeddings(self) -> nn.Module:
        """Return the patch embedding."""
        return self.model.get_input_embeddings()

    def features(
        self,
        pixel_values: Tensor,
        hidden_states: bool | None,
        attentions: bool | None,
        encoded: BaseModelOutputWithPooling | None = None,
    ) -> tuple[Tensor, BaseModelOutputWithPooling]:
        """Return the token map [B, C, h, w] that heads read, and all that the encoder gave."""
        if encoded is None:
            encoded = self.model(
                pixel_values,
                output_hidden_states=self.flag("output_hidden_states", hidden_states),
                output_attentions=self.flag("output_attentions", attentions),
                return_dict=True,
            )
        if encoded.last_hidden_state is None:
            raise InputError("encoded: expected what the encoder returned for these pictures, got it without tokens.")
        return patch_map(encoded.last_hidden_state, self.config, pixel_values), encoded


class Sapiens2ForPoseEstimation(Sapiens2TaskModel):
    """Heatmaps of keypoints."""

    packed_task = "pose"

    def forward(
        self,
        pixel_values: Tensor,
        flip_pairs: Tensor | None = None,
        labels: Tensor | None = None,
        label_weights: Tensor | None = None,
        *,
        encoded: BaseModelOutputWithPooling | None = None,
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
            encoded: What `self.model` returned for these pictures, where several tasks share one encoder.
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions, encoded)
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

    packed_task = "seg"

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        *,
        encoded: BaseModelOutputWithPooling | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2SemanticSegmenterOutput:
        """Predict class scores.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W].
            labels: Class of each pixel [B, H, W]; `semantic_loss_ignore_index` is left out of the loss.
            encoded: What `self.model` returned for these pictures, where several tasks share one encoder.
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        if labels is not None and self.config.num_labels == 1:
            raise InputError("labels: segmentation needs at least two classes, and this model has one.")
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions, encoded)
        output = Sapiens2SemanticSegmenterOutput(
            logits=self.decode_head(features), hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )
        if labels is not None and output.logits is not None:
            found = segmentation_loss(
                output.logits,
                labels,
                ignore_index=self.config.semantic_loss_ignore_index,
                class_weights=self.class_weights(),
                dice_weight=float(self.config.use_loss_recipe),
            )
            output.loss = found.total
            output.loss_terms = found.terms if self.config.use_loss_recipe else None
        return self.give(output, return_dict)

    def class_weights(self) -> tuple[float, ...] | None:
        """Weights of the 29 body parts in the published recipe, where that is asked for and fits."""
        fits = self.config.use_loss_recipe and self.config.num_labels == len(PART_LOSS_WEIGHTS)
        return PART_LOSS_WEIGHTS if fits else None


class Sapiens2ForNormalEstimation(Sapiens2TaskModel):
    """Surface normals."""

    packed_task = "normal"

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        label_mask: Tensor | None = None,
        *,
        encoded: BaseModelOutputWithPooling | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2NormalEstimatorOutput:
        """Predict normals.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W].
            labels: Normals [B, 3, H, W] (x right, y up, z to the viewer); pixels whose normal has no length are left
                out of the loss.
            label_mask: Pixels that count in the loss, [B, 1, H, W] or [B, H, W].
            encoded: What `self.model` returned for these pictures, where several tasks share one encoder.
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions, encoded)
        output = Sapiens2NormalEstimatorOutput(
            normals=self.decode_head(features), hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )
        if labels is not None and output.normals is not None:
            found = normal_loss(output.normals, labels, label_mask)
            output.loss, output.loss_terms = found.total, found.terms
        return self.give(output, return_dict)


class Sapiens2ForAlbedoEstimation(Sapiens2TaskModel):
    """Colour without light and shadow."""

    packed_task = "albedo"

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        label_mask: Tensor | None = None,
        *,
        encoded: BaseModelOutputWithPooling | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2AlbedoEstimatorOutput:
        """Predict albedo.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W].
            labels: Albedo [B, 3, H, W] in [0, 1].
            label_mask: Pixels that count in the loss, [B, 1, H, W] or [B, H, W].
            encoded: What `self.model` returned for these pictures, where several tasks share one encoder.
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions, encoded)
        output = Sapiens2AlbedoEstimatorOutput(
            albedos=self.decode_head(features), hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )
        if labels is not None and output.albedos is not None:
            found = albedo_loss(output.albedos, labels, label_mask)
            output.loss, output.loss_terms = found.total, found.terms
        return self.give(output, return_dict)


class Sapiens2ForPointmapEstimation(Sapiens2TaskModel):
    """A point in space for each pixel, and the scale that makes it metric."""

    packed_task = "pointmap"
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
        encoded: BaseModelOutputWithPooling | None = None,
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
            label_intrinsics: Camera matrices [B, 3, 3] for pictures of the labels' size; adds the consistency term.
            label_mask: Pixels that count in the loss, [B, 1, H, W] or [B, H, W]; by default those with depth above 0.
            encoded: What `self.model` returned for these pictures, where several tasks share one encoder.
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions, encoded)
        output = Sapiens2PointmapEstimatorOutput(
            pointmaps=self.decode_head(features),
            scales=None if self.scale_head is None else self.scale_head(features),  # [B, 1]
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
        if labels is not None and output.pointmaps is not None:
            known = label_scales
            if known is None and label_intrinsics is not None:
                known = canonical_scales(label_intrinsics, canonical_focal=CANONICAL_FOCAL * labels.shape[-2])
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

    packed_task = "matting"

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        label_mask: Tensor | None = None,
        *,
        encoded: BaseModelOutputWithPooling | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Sapiens2ImageMattingOutput:
        """Predict mattes.

        Args:
            pixel_values: Prepared pictures [B, 3, H, W].
            labels: Premultiplied RGB, then alpha [B, 4, H, W], in [0, 1].
            label_mask: Pixels that count in the loss, [B, 1, H, W] or [B, H, W].
            encoded: What `self.model` returned for these pictures, where several tasks share one encoder.
            output_hidden_states: Return the tokens after the embeddings and after each layer.
            output_attentions: Return the attention weights of each layer.
            return_dict: Return a `ModelOutput` rather than a tuple.
        """
        features, encoded = self.features(pixel_values, output_hidden_states, output_attentions, encoded)
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


def flip_back(heatmaps: Tensor, flip_pairs: Tensor) -> Tensor:
    """Undo a horizontal flip of the picture on [B, J, H, W]: mirror, and swap the keypoints of each pair [P, 2]."""
    if flip_pairs.ndim != 2 or flip_pairs.shape[-1] != 2:
        raise InputError(f"flip_pairs: expected pairs of keypoints [P, 2], got the shape {list(flip_pairs.shape)}.")
    order = torch.arange(heatmaps.shape[1], device=heatmaps.device)
    pairs = flip_pairs.to(heatmaps.device).long()
    order = order.index_put((pairs,), pairs.flip(-1))
    return heatmaps.index_select(1, order).flip(-1)
