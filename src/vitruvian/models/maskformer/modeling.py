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
    MaskClassificationForSegmentation,
    MaskClassificationModel,
    MaskClassificationPreTrainedModel,
    PixelFeatures,
)
from vitruvian.models.mask_classification.padding import PADDING_LOGIT
from vitruvian.models.maskformer.configuration import MaskFormerConfig
from vitruvian.models.maskformer.outputs import MaskFormerForInstanceSegmentationOutput, MaskFormerModelOutput
from vitruvian.models.maskformer.pixel_decoder import build_pixel_level
from vitruvian.models.maskformer.transformer_decoder import TransformerModule
from vitruvian.outputs import OutputFlags


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

    def build_output(
        self, features: PixelFeatures, decoded: DecoderOutput, flags: OutputFlags
    ) -> MaskFormerModelOutput:
        """Return the output of `forward`."""
        return MaskFormerModelOutput(
            **self.hidden_fields(features, decoded, flags),
            auxiliary_hidden_states=tuple(decoded.normed[:-1]) if self.config.use_auxiliary_loss else None,
        )

    def query_states(self, decoded: DecoderOutput) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the last queries, normed, and those of all layers, each [B, Q, C]."""
        last = decoded.normed[-1]
        return last, (*decoded.states[:-1], last)

    def hidden_fields(self, features: PixelFeatures, decoded: DecoderOutput, flags: OutputFlags) -> dict[str, Any]:
        """Return the fields of outputs with hidden states, also those of all parts in one tuple, and attentions."""
        fields = super().hidden_fields(features, decoded, flags)
        if flags.hidden_states:
            queries = fields["transformer_decoder_hidden_states"]
            fields["hidden_states"] = (*features.encoder, *features.levels, *queries)
        return fields

    def decode(self, features: PixelFeatures, *, all_masks: bool, need_weights: bool) -> DecoderOutput:
        """Run the transformer decoder, which predicts no masks."""
        output: DecoderOutput = self.transformer_module(
            features.encoder[-1], auxiliary=self.config.use_auxiliary_loss, need_weights=need_weights
        )
        return output


class MaskFormerForInstanceSegmentation(MaskClassificationForSegmentation, MaskFormerPreTrainedModel):
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
        flags = self.output_flags(output_hidden_states, output_attentions, return_dict)
        auxiliary = self.resolve_flag("output_auxiliary_logits", output_auxiliary_logits)
        labels, output_class = (mask_labels, class_labels), MaskFormerForInstanceSegmentationOutput
        return self.segment(output_class, pixel_values, *labels, pixel_mask, flags, return_auxiliary=auxiliary)

    def predict(self, features: PixelFeatures, decoded: DecoderOutput) -> list[dict[str, Tensor]]:
        """Score classes and pixels for the queries of each prediction."""
        predictions = []
        for queries in decoded.normed:
            masks = mask_logits(self.mask_embedder(queries), features.pixels)  # [B, Q, H/4, W/4]
            if features.padding is not None:
                masks = masks.masked_fill(features.padding, PADDING_LOGIT)
            predictions.append({"class_queries_logits": self.class_predictor(queries), "masks_queries_logits": masks})
        return predictions
