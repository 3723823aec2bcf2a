"""Fields that the outputs of MaskFormer and Mask2Former share. Fields that a call does not request are None."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitruvian.outputs import ModelOutput


@dataclass
class QueryPredictions(ModelOutput):
    """Class and mask of each query.

    Attributes:
        loss: Weighted sum of the losses, with labels.
        class_queries_logits: Scores of the classes and, last, of "no object" [B, Q, K + 1].
        masks_queries_logits: Scores of the pixels [B, Q, H/4, W/4].
        auxiliary_logits: The same two, in a dict, of each prediction but the last.
    """

    loss: Tensor | None = None
    class_queries_logits: Tensor | None = None
    masks_queries_logits: Tensor | None = None
    auxiliary_logits: list[dict[str, Tensor]] | None = None


@dataclass
class EncoderDecoderStates(ModelOutput):
    """Hidden states of the backbone, the pixel decoder and the transformer decoder.

    Attributes:
        encoder_last_hidden_state: Last map of the backbone [B, C, h, w].
        pixel_decoder_last_hidden_state: Pixel embeddings [B, M, H/4, W/4].
        transformer_decoder_last_hidden_state: Queries after the last layer [B, Q, C].
        encoder_hidden_states: Maps of the backbone's stages [B, C, h, w].
        pixel_decoder_hidden_states: Maps of the pixel decoder, coarse to fine [B, C, h, w].
        transformer_decoder_hidden_states: Queries before the first layer and after each, in the layout of the family.
    """

    encoder_last_hidden_state: Tensor | None = None
    pixel_decoder_last_hidden_state: Tensor | None = None
    transformer_decoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    pixel_decoder_hidden_states: tuple[Tensor, ...] | None = None
    transformer_decoder_hidden_states: tuple[Tensor, ...] | None = None
