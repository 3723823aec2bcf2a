"""Outputs of the Sapiens2 models. Fields are None if they were not requested or do not exist."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitruvian.outputs import BackboneOutput, ModelOutput, SemanticSegmenterOutput


@dataclass
class Sapiens2BackboneOutput(BackboneOutput):
    """Maps of the chosen stages: `feature_maps` [B, C, h, w] each, and `cls_tokens` [B, C] each."""

    cls_tokens: tuple[Tensor, ...] | None = None


@dataclass
class Sapiens2PoseEstimatorOutput(ModelOutput):
    """`heatmaps` [B, J, H/4, W/4], one for each keypoint."""

    loss: Tensor | None = None
    heatmaps: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, Tensor] | None = None


@dataclass
class Sapiens2SemanticSegmenterOutput(SemanticSegmenterOutput):
    """`logits` [B, K, H, W]: scores of the body parts."""

    loss_terms: dict[str, Tensor] | None = None


@dataclass
class Sapiens2NormalEstimatorOutput(ModelOutput):
    """`normals` [B, 3, H, W], of any length; the image processor normalizes them."""

    loss: Tensor | None = None
    normals: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, Tensor] | None = None


@dataclass
class Sapiens2PointmapEstimatorOutput(ModelOutput):
    """`pointmaps` [B, 3, H, W], XYZ in the canonical camera, and `scales` [B, 1]: canonical / actual focal length."""

    loss: Tensor | None = None
    pointmaps: Tensor | None = None
    scales: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, Tensor] | None = None


@dataclass
class Sapiens2ImageMattingOutput(ModelOutput):
    """`alphas` [B, 1, H, W] and premultiplied `foregrounds` [B, 3, H, W], both in [0, 1]."""

    loss: Tensor | None = None
    alphas: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    foregrounds: Tensor | None = None
    loss_terms: dict[str, Tensor] | None = None


@dataclass
class Sapiens2AlbedoEstimatorOutput(ModelOutput):
    """`albedos` [B, 3, H, W]: RGB without light and shadow, unbounded; decoding clamps it to [0, 1]."""

    loss: Tensor | None = None
    albedos: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, Tensor] | None = None


@dataclass
class Sapiens2PreTrainingOutput(ModelOutput):
    """`reconstructions` [B, N, p·p·3] of all patches, and `projections` [B, K]: scores over the prototypes."""

    loss: Tensor | None = None
    reconstructions: Tensor | None = None
    projections: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, Tensor] | None = None
