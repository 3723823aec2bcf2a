"""Outputs of the MaskFormer models. Fields that a call does not request are None."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitruvian.models.mask_classification.outputs import EncoderDecoderStates, QueryPredictions


@dataclass
class MaskFormerModelOutput(EncoderDecoderStates):
    """Everything the logits are computed from; queries are [B, Q, C], and the last have passed the final norm.

    Attributes:
        hidden_states: The hidden states of the three parts, one after the other.
        attentions: Attention of the queries to each other in each layer [B, A, Q, Q].
        auxiliary_hidden_states: Queries after each layer but the last, normed as for a prediction [B, Q, C]; with
            `use_auxiliary_loss`.
    """

    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    auxiliary_hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class MaskFormerForInstanceSegmentationOutput(EncoderDecoderStates, QueryPredictions):
    """Class and mask of each query; post-process it with `MaskFormerImageProcessor`.

    Queries are [B, Q, C], and the last have passed the final norm.

    Attributes:
        hidden_states: The hidden states of the three parts, one after the other.
        attentions: Attention of the queries to each other in each layer [B, A, Q, Q].
        loss_terms: Each loss by name, before its weight, with labels.
    """

    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, Tensor] | None = None
