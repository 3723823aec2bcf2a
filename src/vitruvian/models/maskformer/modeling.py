"""The public MaskFormer models.

pixel_values [B, 3, H, W] ─▶ PixelLevelModule ─▶ coarse map ─▶ TransformerModule ─▶ queries [B, Q, C] ─▶ classes
                                              └▶ pixel embeddings [B, M, H/4, W/4] ──────┴▶ masks [B, Q, H/4, W/4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.losses.masks import DenseMasks, MaskLabels, MaskLossWeights, MaskSetLoss
from vitruvian.models.mask_classification.layers import mask_head, mask_logits
from vitruvian.models.mask_classification.modeling import (
    DecoderOutput,
    MaskClassificationModel,
    MaskClassificationPreTrainedModel,
    PixelFeatures,
    check_labels,
    prediction_loss,
)
from vitruvian.models.mask_classification.padding import PADDING_LOGIT
from vitruvian.models.maskformer.configuration import MaskFormerConfig
from vitruvian.models.maskformer.outputs import MaskFormerForInstanceSegmentationOutput, MaskFormerModelOutput
from vitruvian.models.maskformer.pixel_decoder import build_pixel_level
from vitruvian.models.maskformer.transformer_decoder import TransformerModule


class MaskFormerPreTrainedModel(MaskClassificationPreTrainedModel):
    """Base of the MaskFormer models."""

    config_class: ClassVar[type[Config]] = MaskFormerConfig
    config: MaskFormerConfig


class MaskFormerModel(MaskClassificationModel, MaskFormerPreTrainedModel):
    """MaskFormer without heads."""

    def __init__(self, config: MaskFormerConfig) -> None:
        super().__init__(config)
        self.pixel_level_module = build_pixel_level(config)
        coarsest = self.pixel_level_module.encoder.channels[-1]
        self.transformer_module = TransformerModule(coarsest, config.decoder)
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        pixel_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> MaskFormerModelOutput:
        """Compute queries and pixel embeddings.

        Args:
            pixel_values: Normalised images [B, 3, H, W] of any size.
            pixel_mask: 1 for the image, 0 in the padding [B, H, W]; see `MaskFormerConfig.use_pixel_mask`.
            output_hidden_states: Also return maps and queries of every stage.
            output_attentions: Also return the attention of the queries to each other.
            return_dict: Return a `MaskFormerModelOutput` rather than a tuple.
        """
        need_weights = self.resolve_flag("output_attentions", output_attentions)
        features, decoded = self.compute(pixel_values, pixel_mask, need_weights=need_weights)
        hidden = self.resolve_flag("output_hidden_states", output_hidden_states)
        output = MaskFormerModelOutput(
            **_hidden_fields(features, decoded, all_states=hidden),
            attentions=tuple(decoded.attentions) if need_weights else None,
            auxiliary_hidden_states=tuple(decoded.normed[:-1]) if self.config.use_auxiliary_loss else None,
        )
        return self.format_output(output, return_dict)

    def decode(self, features: PixelFeatures, *, all_masks: bool, need_weights: bool) -> DecoderOutput:
        """Run the transformer decoder, which predicts no masks."""
        output: DecoderOutput = self.transformer_module(
            features.encoder[-1], auxiliary=self.config.use_auxiliary_loss, need_weights=need_weights
        )
        return output


class MaskFormerForInstanceSegmentation(MaskFormerPreTrainedModel):
    """MaskFormer with a class and a mask for each query: semantic, instance and panoptic segmentation."""

    def __init__(self, config: MaskFormerConfig) -> None:
        super().__init__(config)
        channels = config.decoder.d_model
        self.model = MaskFormerModel(config)
        self.class_predictor = nn.Linear(channels, config.num_labels + 1)
        self.mask_embedder = mask_head(channels, config.mask_feature_size)
        self.criterion = MaskSetLoss(
            num_labels=config.num_labels,
            no_object_weight=config.no_object_weight,
            weights=MaskLossWeights(config.cross_entropy_weight, config.mask_weight, config.dice_weight),
            class_cost_weight=1.0,
            measure=DenseMasks(),
        )
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        mask_labels: Sequence[MaskLabels] | None = None,
        class_labels: Sequence[Tensor] | None = None,
        pixel_mask: Tensor | None = None,
        output_auxiliary_logits: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> MaskFormerForInstanceSegmentationOutput:
        """Predict a class and a mask for each query.

        Args:
            pixel_values: Normalised images [B, 3, H, W] of any size.
            mask_labels: For each image the masks of its objects [T, H, W], bool or numbers, or a list of COCO RLEs.
            class_labels: For each image the classes of its masks [T].
            pixel_mask: 1 for the image, 0 in the padding [B, H, W]; see `MaskFormerConfig.use_pixel_mask`.
            output_auxiliary_logits: Also return the predictions after each decoder layer but the last; they exist with
                `MaskFormerConfig.use_auxiliary_loss`.
            output_hidden_states: Also return maps and queries of every stage.
            output_attentions: Also return the attention of the queries to each other.
            return_dict: Return a `MaskFormerForInstanceSegmentationOutput` rather than a tuple.
        """
        has_labels = check_labels(mask_labels, class_labels)
        need_weights = self.resolve_flag("output_attentions", output_attentions)
        features, decoded = self.model.compute(
            pixel_values, pixel_mask, has_labels=has_labels, need_weights=need_weights
        )
        predictions = [self._predict(queries, features) for queries in decoded.normed]
        loss = prediction_loss(self.criterion, predictions, mask_labels, class_labels, auxiliary=True)
        hidden = self.resolve_flag("output_hidden_states", output_hidden_states)
        return_auxiliary = self.resolve_flag("output_auxiliary_logits", output_auxiliary_logits)
        output = MaskFormerForInstanceSegmentationOutput(
            loss=None if loss is None else loss.total,
            class_queries_logits=predictions[-1]["class_queries_logits"],
            masks_queries_logits=predictions[-1]["masks_queries_logits"],
            auxiliary_logits=predictions[:-1] if return_auxiliary else None,
            **_hidden_fields(features, decoded, all_states=hidden),
            attentions=tuple(decoded.attentions) if need_weights else None,
            loss_terms=None if loss is None else loss.terms,
        )
        return self.format_output(output, return_dict)

    def _predict(self, queries: Tensor, features: PixelFeatures) -> dict[str, Tensor]:
        """Score classes and pixels for queries [B, Q, C]."""
        masks = mask_logits(self.mask_embedder(queries), features.pixels)  # [B, Q, H/4, W/4]
        if features.padding is not None:
            masks = masks.masked_fill(features.padding, PADDING_LOGIT)
        return {"class_queries_logits": self.class_predictor(queries), "masks_queries_logits": masks}


def _hidden_fields(features: PixelFeatures, decoded: DecoderOutput, *, all_states: bool) -> dict[str, Any]:
    """Fields with hidden states of both outputs: the last of each part, or all."""
    fields: dict[str, Any] = {
        "encoder_last_hidden_state": features.encoder[-1],
        "pixel_decoder_last_hidden_state": features.pixels,
        "transformer_decoder_last_hidden_state": decoded.normed[-1],
    }
    if all_states:
        queries = (*decoded.states[:-1], decoded.normed[-1])
        fields["encoder_hidden_states"] = features.encoder
        fields["pixel_decoder_hidden_states"] = features.levels
        fields["transformer_decoder_hidden_states"] = queries
        fields["hidden_states"] = (*features.encoder, *features.levels, *queries)
    return fields
