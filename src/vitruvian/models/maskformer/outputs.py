"""Outputs of the MaskFormer models. Fields that a call does not request are None."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitruvian.outputs import ModelOutput


@dataclass
class MaskFormerModelOutput(ModelOutput):
    """Everything the logits are computed from.

    Attributes:
        encoder_last_hidden_state: Last map of the backbone [B, C, h, w].
        pixel_decoder_last_hidden_state: Pixel embeddings [B, M, H/4, W/4].
        transformer_decoder_last_hidden_state: Queries after the last layer and the final norm [B, Q, C].
        encoder_hidden_states: Maps of the backbone's stages [B, C, h, w].
        pixel_decoder_hidden_states: Maps of the feature pyramid, coarse to fine [B, C, h, w].
        transformer_decoder_hidden_states: Queries before the first layer and after each; the last are normed.
        hidden_states: The three above, one after the other.
        attentions: Attention of the queries to each other in each layer [B, A, Q, Q].
        auxiliary_hidden_states: Queries after each layer but the last, normed as for a prediction [B, Q, C]; with
            `use_auxiliary_loss`.
    """

    encoder_last_hidden_state: Tensor | None = None
    pixel_decoder_last_hidden_state: Tensor | None = None
    transformer_decoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    pixel_decoder_hidden_states: tuple[Tensor, ...] | None = None
    transformer_decoder_hidden_states: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    auxiliary_hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class MaskFormerForInstanceSegmentationOutput(ModelOutput):
    """Class and mask of each query; post-process it with `MaskFormerImageProcessor`.

    Attributes:
        loss: Weighted sum of the losses, with labels.
        class_queries_logits: Scores of the classes and, last, of "no object" [B, Q, K + 1].
        masks_queries_logits: Scores of the pixels [B, Q, H/4, W/4].
        auxiliary_logits: The same two, in a dict, after each decoder layer but the last.
        encoder_last_hidden_state: Last map of the backbone [B, C, h, w].
        pixel_decoder_last_hidden_state: Pixel embeddings [B, M, H/4, W/4].
        transformer_decoder_last_hidden_state: Queries after the last layer and the final norm [B, Q, C].
        encoder_hidden_states: Maps of the backbone's stages [B, C, h, w].
        pixel_decoder_hidden_states: Maps of the feature pyramid, coarse to fine [B, C, h, w].
        transformer_decoder_hidden_states: Queries before the first layer and after each; the last are normed.
        hidden_states: The three above, one after the other.
        attentions: Attention of the queries to each other in each layer [B, A, Q, Q].
        loss_terms: Each loss by name, before its weight, with labels.
    """

    loss: Tensor | None = None
    class_queries_logits: Tensor | None = None
    masks_queries_logits: Tensor | None = None
    auxiliary_logits: list[dict[str, Tensor]] | None = None
    encoder_last_hidden_state: Tensor | None = None
    pixel_decoder_last_hidden_state: Tensor | None = None
    transformer_decoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    pixel_decoder_hidden_states: tuple[Tensor, ...] | None = None
    transformer_decoder_hidden_states: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, Tensor] | None = None
