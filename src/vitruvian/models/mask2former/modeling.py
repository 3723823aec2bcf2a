"""The public Mask2Former models.

pixel_values [B, 3, H, W] ─▶ PixelLevelModule ─▶ maps at 1/32 … 1/8 ─▶ TransformerModule ─▶ queries [B, Q, C] ─▶ classes
                                              └▶ pixel embeddings [B, M, H/4, W/4] ──────┴▶ masks [B, Q, H/4, W/4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.losses.masks import MaskLabels, MaskLossWeights, MaskSetLoss, PointMasks
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.outputs import Mask2FormerForUniversalSegmentationOutput, Mask2FormerModelOutput
from vitruvian.models.mask2former.pixel_decoder import DeformableAttention, build_pixel_level
from vitruvian.models.mask2former.transformer_decoder import TransformerModule
from vitruvian.models.mask_classification.modeling import (
    DecoderOutput,
    MaskClassificationModel,
    MaskClassificationPreTrainedModel,
    PixelFeatures,
    check_labels,
    prediction_loss,
)


class Mask2FormerPreTrainedModel(MaskClassificationPreTrainedModel):
    """Base of the Mask2Former models."""

    config_class: ClassVar[type[Config]] = Mask2FormerConfig
    config: Mask2FormerConfig
    # The last norm of the bare Swin is not part of the backbone.
    ignored_keys: ClassVar[tuple[str, ...]] = (
        *MaskClassificationPreTrainedModel.ignored_keys,
        r"\.encoder\.swin\.layernorm\.",
    )

    def prepare_for_inference(self) -> None:
        """Join projections and cache the position biases of the backbone's windows."""
        super().prepare_for_inference()
        for module in self.modules():
            if isinstance(module, DeformableAttention):
                module.optimize()


class Mask2FormerModel(MaskClassificationModel, Mask2FormerPreTrainedModel):
    """Mask2Former without the class head."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__(config)
        self.pixel_level_module = build_pixel_level(config)
        self.transformer_module = TransformerModule(config)
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        pixel_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Mask2FormerModelOutput:
        """Compute queries and masks.

        Args:
            pixel_values: Normalised images [B, 3, H, W] of any size.
            pixel_mask: 1 for the image, 0 in the padding [B, H, W]; see `Mask2FormerConfig.use_pixel_mask`.
            output_hidden_states: Also return maps and queries of every stage.
            output_attentions: Also return the attention of the queries to each other.
            return_dict: Return a `Mask2FormerModelOutput` rather than a tuple.
        """
        need_weights = self.resolve_flag("output_attentions", output_attentions)
        features, decoded = self.compute(pixel_values, pixel_mask, need_weights=need_weights)
        hidden = self.resolve_flag("output_hidden_states", output_hidden_states)
        output = Mask2FormerModelOutput(
            **_hidden_fields(features, decoded, all_states=hidden),
            transformer_decoder_intermediate_states=_queries_first(decoded.normed) if hidden else None,
            masks_queries_logits=tuple(decoded.masks),
            attentions=tuple(decoded.attentions) if need_weights else None,
        )
        return self.format_output(output, return_dict)

    def decode(self, features: PixelFeatures, *, all_masks: bool, need_weights: bool) -> DecoderOutput:
        """Run the transformer decoder."""
        output: DecoderOutput = self.transformer_module(
            features.levels, features.pixels, all_masks=all_masks, need_weights=need_weights
        )
        return output


class Mask2FormerForUniversalSegmentation(Mask2FormerPreTrainedModel):
    """Mask2Former with a class and a mask for each query: semantic, instance and panoptic segmentation."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__(config)
        self.model = Mask2FormerModel(config)
        self.class_predictor = nn.Linear(config.hidden_dim, config.num_labels + 1)
        self.criterion = MaskSetLoss(
            num_labels=config.num_labels,
            no_object_weight=config.no_object_weight,
            weights=MaskLossWeights(config.class_weight, config.mask_weight, config.dice_weight),
            class_cost_weight=config.class_weight,
            measure=PointMasks(config.train_num_points, config.oversample_ratio, config.importance_sample_ratio),
        )
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        mask_labels: Sequence[MaskLabels] | None = None,
        class_labels: Sequence[Tensor] | None = None,
        pixel_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_auxiliary_logits: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Mask2FormerForUniversalSegmentationOutput:
        """Predict a class and a mask for each query.

        Args:
            pixel_values: Normalised images [B, 3, H, W] of any size.
            mask_labels: For each image the masks of its objects [T, H, W], bool or numbers, or a list of COCO RLEs.
            class_labels: For each image the classes of its masks [T].
            pixel_mask: 1 for the image, 0 in the padding [B, H, W]; see `Mask2FormerConfig.use_pixel_mask`.
            output_hidden_states: Also return maps and queries of every stage.
            output_auxiliary_logits: Also return the predictions before the last.
            output_attentions: Also return the attention of the queries to each other.
            return_dict: Return a `Mask2FormerForUniversalSegmentationOutput` rather than a tuple.
        """
        has_labels = check_labels(mask_labels, class_labels)
        return_auxiliary = self.resolve_flag("output_auxiliary_logits", output_auxiliary_logits)
        need_weights = self.resolve_flag("output_attentions", output_attentions)
        features, decoded = self.model.compute(
            pixel_values,
            pixel_mask,
            has_labels=has_labels,
            all_masks=return_auxiliary or (has_labels and self.config.use_auxiliary_loss),
            need_weights=need_weights,
        )
        predictions = [
            {"class_queries_logits": self.class_predictor(queries), "masks_queries_logits": masks}
            for queries, masks in zip(decoded.normed[-len(decoded.masks) :], decoded.masks, strict=True)
        ]
        auxiliary = self.config.use_auxiliary_loss
        loss = prediction_loss(self.criterion, predictions, mask_labels, class_labels, auxiliary=auxiliary)
        hidden = self.resolve_flag("output_hidden_states", output_hidden_states)
        output = Mask2FormerForUniversalSegmentationOutput(
            loss=None if loss is None else loss.total,
            **predictions[-1],
            auxiliary_logits=predictions[:-1] if return_auxiliary else None,
            **_hidden_fields(features, decoded, all_states=hidden),
            attentions=tuple(decoded.attentions) if need_weights else None,
            loss_terms=None if loss is None else loss.terms,
        )
        return self.format_output(output, return_dict)


def _hidden_fields(features: PixelFeatures, decoded: DecoderOutput, *, all_states: bool) -> dict[str, Any]:
    """Fields with hidden states of both outputs: the last of each part, or all."""
    fields: dict[str, Any] = {
        "encoder_last_hidden_state": features.encoder[-1],
        "pixel_decoder_last_hidden_state": features.pixels,
        "transformer_decoder_last_hidden_state": decoded.states[-1],
    }
    if all_states:
        fields["encoder_hidden_states"] = features.encoder
        fields["pixel_decoder_hidden_states"] = features.levels
        fields["transformer_decoder_hidden_states"] = _queries_first(decoded.states)
    return fields


def _queries_first(states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Transpose queries as the published models return them: [B, Q, C] -> [Q, B, C] each."""
    return tuple(state.transpose(0, 1) for state in states)
