"""The public MaskFormer models.

pixel_values [B, 3, H, W] ─▶ PixelLevelModule ─▶ coarse map ─▶ transformer decoder ─▶ queries [B, Q, C] ─▶ classes
                                              └▶ pixel embeddings [B, M, H/4, W/4] ──────┴▶ masks [B, Q, H/4, W/4]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from vitruvian.config import Config
from vitruvian.losses.mask_comparison import PixelComparison
from vitruvian.losses.mask_set import MaskLossWeights, MaskSetLoss
from vitruvian.models.mask_classification.layers import mask_head, mask_logits
from vitruvian.models.mask_classification.modeling import (
    MaskClassificationForSegmentation,
    MaskClassificationModel,
    MaskClassificationPreTrainedModel,
)
from vitruvian.models.mask_classification.outputs import DecoderOutput, HiddenStates, PixelFeatures, QueryPredictions
from vitruvian.models.mask_classification.padding import PADDING_LOGIT
from vitruvian.models.maskformer.checkpoint_keys import RENAMED_KEYS, SAVED_KEYS
from vitruvian.models.maskformer.configuration import MaskFormerConfig
from vitruvian.models.maskformer.pixel_decoder import build_pixel_level
from vitruvian.models.maskformer.transformer_decoder import MaskFormerTransformerModule
from vitruvian.outputs import OutputFlags
from vitruvian.weights import KeyRenames


@dataclass
class MaskFormerHiddenStates(HiddenStates):
    """What both outputs have; queries are [B, Q, C], and the last have passed the final norm.

    Attributes:
        hidden_states: The hidden states of the three parts, one after the other.
        attentions: Attention of the queries to each other in each layer [B, A, Q, Q].
    """

    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class MaskFormerModelOutput(MaskFormerHiddenStates):
    """Everything the logits are computed from.

    Attributes:
        auxiliary_hidden_states: Queries after each layer but the last, normed as for a prediction [B, Q, C]; with
            `use_auxiliary_loss`.
    """

    auxiliary_hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class MaskFormerForInstanceSegmentationOutput(MaskFormerHiddenStates, QueryPredictions):
    """Class and mask of each query; post-process it with `MaskFormerImageProcessor`.

    Attributes:
        loss_terms: Each loss by name, before its weight, with labels.
    """

    loss_terms: dict[str, Tensor] | None = None


class MaskFormerPreTrainedModel(MaskClassificationPreTrainedModel):
    """Base of the MaskFormer models."""

    config_class: ClassVar[type[Config]] = MaskFormerConfig
    config: MaskFormerConfig
    renamed_keys: ClassVar[KeyRenames] = RENAMED_KEYS
    saved_keys: ClassVar[KeyRenames] = SAVED_KEYS


class MaskFormerModel(MaskClassificationModel, MaskFormerPreTrainedModel):
    """MaskFormer without heads."""

    def __init__(self, config: MaskFormerConfig) -> None:
        super().__init__(config)
        self.pixel_level_module = build_pixel_level(config)
        coarsest = self.pixel_level_module.encoder.channels[-1]
        self.transformer_module = MaskFormerTransformerModule(coarsest, config.decoder_config)
        self.post_init()

    def build_output(
        self, features: PixelFeatures, decoded: DecoderOutput, flags: OutputFlags
    ) -> MaskFormerModelOutput:
        """Return the output of `forward`."""
        return MaskFormerModelOutput(
            **self.hidden_fields(features, decoded, flags),
            auxiliary_hidden_states=tuple(decoded.normed[:-1]) if self.config.use_auxiliary_loss else None,
        )

    def hidden_fields(self, features: PixelFeatures, decoded: DecoderOutput, flags: OutputFlags) -> dict[str, Any]:
        """Return the fields of outputs with hidden states, also those of all parts in one tuple, and attentions."""
        fields = super().hidden_fields(features, decoded, flags)
        if flags.hidden_states:
            fields["hidden_states"] = (*features.encoder, *features.levels, *decoded.states)
        return fields

    def decode(self, features: PixelFeatures, *, all_masks: bool, need_weights: bool) -> DecoderOutput:
        """Run the transformer decoder, which predicts no masks."""
        norm_all = self.config.use_auxiliary_loss and self.config.norm_auxiliary_states
        output: DecoderOutput = self.transformer_module(
            features.encoder[-1], norm_all=norm_all, need_weights=need_weights
        )
        return output


class MaskFormerForInstanceSegmentation(MaskClassificationForSegmentation, MaskFormerPreTrainedModel):
    """MaskFormer with a class and a mask for each query: semantic, instance and panoptic segmentation."""

    output_class: ClassVar[type[QueryPredictions]] = MaskFormerForInstanceSegmentationOutput

    def __init__(self, config: MaskFormerConfig) -> None:
        super().__init__(config)
        channels = config.decoder_config.d_model
        self.model = MaskFormerModel(config)
        self.class_predictor = nn.Linear(channels, config.num_labels + 1)
        self.mask_embedder = mask_head(channels, config.mask_feature_size)
        self.criterion = MaskSetLoss(
            num_labels=config.num_labels,
            no_object_weight=config.no_object_weight,
            weights=MaskLossWeights(config.cross_entropy_weight, config.mask_weight, config.dice_weight),
            class_cost_weight=1.0,
            comparison=PixelComparison(),
        )
        self.post_init()

    def predict(self, features: PixelFeatures, decoded: DecoderOutput) -> list[dict[str, Tensor]]:
        """Score classes and pixels for the queries of each prediction."""
        predictions = []
        raw = self.config.use_auxiliary_loss and not self.config.norm_auxiliary_states
        for queries in decoded.states if raw else decoded.normed:
            masks = mask_logits(self.mask_embedder(queries), features.pixels)  # [B, Q, H/4, W/4]
            if features.padding is not None:
                masks = masks.masked_fill(features.padding, PADDING_LOGIT)
            predictions.append({"class_queries_logits": self.class_predictor(queries), "masks_queries_logits": masks})
        return predictions
