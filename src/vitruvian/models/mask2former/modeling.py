"""The public Mask2Former models.

pixel_values [B, 3, H, W] ─▶ PixelLevelModule ─▶ maps at 1/32 … 1/8 ─▶ TransformerModule ─▶ queries [B, Q, C] ─▶ classes
                                              └▶ pixel embeddings [B, M, H/4, W/4] ──────┴▶ masks [B, Q, H/4, W/4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.losses.masks import MaskLabels, MaskLossWeights, MaskSetLoss, PointMasks
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.outputs import Mask2FormerForUniversalSegmentationOutput, Mask2FormerModelOutput
from vitruvian.models.mask2former.pixel_decoder import DeformableAttention, build_pixel_level
from vitruvian.models.mask2former.transformer_decoder import TransformerModule
from vitruvian.models.mask_classification.modeling import (
    DecoderOutput,
    MaskClassificationForSegmentation,
    MaskClassificationModel,
    MaskClassificationPreTrainedModel,
    PixelFeatures,
)
from vitruvian.outputs import OutputFlags


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

    def build_output(
        self, features: PixelFeatures, decoded: DecoderOutput, flags: OutputFlags
    ) -> Mask2FormerModelOutput:
        """Return the output of `forward`."""
        return Mask2FormerModelOutput(
            **self.hidden_fields(features, decoded, flags),
            transformer_decoder_intermediate_states=_queries_first(decoded.normed) if flags.hidden_states else None,
            masks_queries_logits=tuple(decoded.masks),
        )

    def query_states(self, decoded: DecoderOutput) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the last queries [B, Q, C], and those of all layers [Q, B, C]."""
        return decoded.states[-1], _queries_first(decoded.states)

    def decode(self, features: PixelFeatures, *, all_masks: bool, need_weights: bool) -> DecoderOutput:
        """Run the transformer decoder."""
        output: DecoderOutput = self.transformer_module(
            features.levels, features.pixels, all_masks=all_masks, need_weights=need_weights
        )
        return output


class Mask2FormerForUniversalSegmentation(MaskClassificationForSegmentation, Mask2FormerPreTrainedModel):
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
        flags = self.output_flags(output_hidden_states, output_attentions, return_dict)
        auxiliary = self.resolve_flag("output_auxiliary_logits", output_auxiliary_logits)
        labels, output_class = (mask_labels, class_labels), Mask2FormerForUniversalSegmentationOutput
        return self.segment(output_class, pixel_values, *labels, pixel_mask, flags, return_auxiliary=auxiliary)

    def predict(self, features: PixelFeatures, decoded: DecoderOutput) -> list[dict[str, Tensor]]:
        """Score the classes of the queries; the decoder has predicted their masks."""
        return [
            {"class_queries_logits": self.class_predictor(queries), "masks_queries_logits": masks}
            for queries, masks in zip(decoded.normed[-len(decoded.masks) :], decoded.masks, strict=True)
        ]


def _queries_first(states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Transpose queries as the published models return them: [B, Q, C] -> [Q, B, C] each."""
    return tuple(state.transpose(0, 1) for state in states)
