"""Outputs of the Mask2Former models. Fields that a call does not request are None."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitruvian.models.mask_classification.outputs import EncoderDecoderStates, QueryPredictions


@dataclass
class Mask2FormerModelOutput(EncoderDecoderStates):
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
class Mask2FormerForUniversalSegmentationOutput(EncoderDecoderStates, QueryPredictions):
    """Class and mask of each query; post-process it with `Mask2FormerImageProcessor`.

    The first of the `auxiliary_logits` precede the first decoder layer. `transformer_decoder_hidden_states` are
    [Q, B, C].

    Attributes:
        attentions: Attention of the queries to each other in each layer [B, A, Q, Q].
        loss_terms: Each loss by name, before its weight, with labels.
    """

    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, Tensor] | None = None
