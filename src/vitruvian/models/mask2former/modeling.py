"""The public Mask2Former models.

pixel_values [B, 3, H, W] ─▶ PixelLevelModule ─▶ maps at 1/32 … 1/8 ─▶ decoder ─▶ queries [B, Q, C] ─▶ classes
                                              └▶ pixel embeddings [B, M, H/4, W/4] ──────┴▶ masks [B, Q, H/4, W/4]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.losses.mask_comparison import PointComparison
from vitruvian.losses.mask_set import MaskLossWeights, MaskSetLoss
from vitruvian.models.mask2former.checkpoint_keys import RENAMED_KEYS, SAVED_KEYS
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.pixel_decoder import build_pixel_level
from vitruvian.models.mask2former.transformer_decoder import Mask2FormerTransformerModule
from vitruvian.models.mask_classification.modeling import (
    MaskClassificationForSegmentation,
    MaskClassificationModel,
    MaskClassificationPreTrainedModel,
)
from vitruvian.models.mask_classification.outputs import DecoderOutput, HiddenStates, PixelFeatures, QueryPredictions
from vitruvian.outputs import OutputFlags
from vitruvian.weights import KeyRenames


@dataclass
class Mask2FormerModelOutput(HiddenStates):
    """Everything the logits are computed from; `transformer_decoder_hidden_states` are [Q, B, C].

    Attributes:
        transformer_decoder_intermediate_states: The same, normed as for a prediction [Q, B, C].
        masks_queries_logits: Scores of the pixels before the first layer and after each [B, Q, H/4, W/4].
        attentions: Attention of the queries to each other in each layer [B, A, Q, Q].
    """

    transformer_decoder_intermediate_states: tuple[Tensor, ...] | None = None
    masks_queries_logits: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class Mask2FormerForUniversalSegmentationOutput(HiddenStates, QueryPredictions):
    """Class and mask of each query; post-process it with `Mask2FormerImageProcessor`.

    The first of the `auxiliary_logits` precede the first decoder layer. `transformer_decoder_hidden_states` are
    [Q, B, C].

    Attributes:
        attentions: Attention of the queries to each other in each layer [B, A, Q, Q].
        loss_terms: Each loss by name, before its weight, with labels.
    """

    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, Tensor] | None = None


class Mask2FormerPreTrainedModel(MaskClassificationPreTrainedModel):
    """Base of the Mask2Former models."""

    config_class: ClassVar[type[Config]] = Mask2FormerConfig
    config: Mask2FormerConfig
    renamed_keys: ClassVar[KeyRenames] = RENAMED_KEYS
    saved_keys: ClassVar[KeyRenames] = SAVED_KEYS
    # The last norm of the bare Swin is not part of the backbone.
    ignored_keys: ClassVar[tuple[str, ...]] = (
        *MaskClassificationPreTrainedModel.ignored_keys,
        r"pixel_level_module\.encoder\.(swin\.)?layernorm\.",
    )


class Mask2FormerModel(MaskClassificationModel, Mask2FormerPreTrainedModel):
    """Mask2Former without the class head."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__(config)
        self.pixel_level_module = build_pixel_level(config)
        self.transformer_module = Mask2FormerTransformerModule(config)
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

    def hidden_fields(self, features: PixelFeatures, decoded: DecoderOutput, flags: OutputFlags) -> dict[str, Any]:
        """As in the base class, with the queries of all layers as [Q, B, C]."""
        fields = super().hidden_fields(features, decoded, flags)
        if flags.hidden_states:
            fields["transformer_decoder_hidden_states"] = tuple(decoded.queries_first) or _queries_first(decoded.states)
        return fields

    def decode(self, features: PixelFeatures, *, all_masks: bool, need_weights: bool) -> DecoderOutput:
        """Run the transformer decoder."""
        output: DecoderOutput = self.transformer_module(
            features.levels, features.pixels, all_masks=all_masks, need_weights=need_weights
        )
        return output


class Mask2FormerForUniversalSegmentation(MaskClassificationForSegmentation, Mask2FormerPreTrainedModel):
    """Mask2Former with a class and a mask for each query: semantic, instance and panoptic segmentation."""

    output_class: ClassVar[type[QueryPredictions]] = Mask2FormerForUniversalSegmentationOutput

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__(config)
        self.model = Mask2FormerModel(config)
        self.class_predictor = nn.Linear(config.hidden_dim, config.num_labels + 1)
        self.criterion = MaskSetLoss(
            num_labels=config.num_labels,
            no_object_weight=config.no_object_weight,
            weights=MaskLossWeights(config.class_weight, config.mask_weight, config.dice_weight),
            class_cost_weight=config.class_weight,
            comparison=PointComparison(
                config.train_num_points, config.oversample_ratio, config.importance_sample_ratio
            ),
        )
        self.post_init()

    def predict(self, features: PixelFeatures, decoded: DecoderOutput) -> list[dict[str, Tensor]]:
        """Score the classes of the queries; the decoder has predicted their masks."""
        return [
            {"class_queries_logits": self.class_predictor(queries), "masks_queries_logits": masks}
            for queries, masks in zip(decoded.normed[-len(decoded.masks) :], decoded.masks, strict=True)
        ]


def _queries_first(states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Transpose queries as the published models return them: [B, Q, C] -> [Q, B, C] each."""
    return tuple(state.transpose(0, 1) for state in states)
