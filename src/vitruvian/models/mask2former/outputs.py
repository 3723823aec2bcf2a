"""Outputs of the Mask2Former models. Fields that a call does not request are None."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitruvian.outputs import ModelOutput


@dataclass
class Mask2FormerModelOutput(ModelOutput):
    """Everything the logits are computed from.

    Attributes:
        encoder_last_hidden_state: Last map of the backbone [B, C, h, w].
        pixel_decoder_last_hidden_state: Pixel embeddings [B, M, H/4, W/4].
        transformer_decoder_last_hidden_state: Queries after the last layer [B, Q, C].
        encoder_hidden_states: Maps of the backbone's stages [B, C, h, w].
        pixel_decoder_hidden_states: Maps that the queries attend to, coarse to fine [B, C, h, w].
        transformer_decoder_hidden_states: Queries before the first layer and after each [Q, B, C].
        transformer_decoder_intermediate_states: The same, normed as for a prediction [Q, B, C].
        masks_queries_logits: Scores of the pixels before the first layer and after each [B, Q, H/4, W/4].
        attentions: Attention of the queries to each other in each layer [B, A, Q, Q].
    """

    encoder_last_hidden_state: Tensor | None = None
    pixel_decoder_last_hidden_state: Tensor | None = None
    transformer_decoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    pixel_decoder_hidden_states: tuple[Tensor, ...] | None = None
    transformer_decoder_hidden_states: tuple[Tensor, ...] | None = None
    transformer_decoder_intermediate_states: tuple[Tensor, ...] | None = None
    masks_queries_logits: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class Mask2FormerForUniversalSegmentationOutput(ModelOutput):
    """Class and mask of each query; post-process it with `Mask2FormerImageProcessor`.

    Attributes:
        loss: Weighted sum of the losses, with labels.
        class_queries_logits: Scores of the classes and, last, of "no object" [B, Q, K + 1].
        masks_queries_logits: Scores of the pixels [B, Q, H/4, W/4].
        auxiliary_logits: The same two, in a dict, before the first decoder layer and after each but the last.
        encoder_last_hidden_state: Last map of the backbone [B, C, h, w].
        pixel_decoder_last_hidden_state: Pixel embeddings [B, M, H/4, W/4].
        transformer_decoder_last_hidden_state: Queries after the last layer [B, Q, C].
        encoder_hidden_states: Maps of the backbone's stages [B, C, h, w].
        pixel_decoder_hidden_states: Maps that the queries attend to, coarse to fine [B, C, h, w].
        transformer_decoder_hidden_states: Queries before the first layer and after each [Q, B, C].
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
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, Tensor] | None = None
