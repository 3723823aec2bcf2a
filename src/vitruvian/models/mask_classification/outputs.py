"""What the parts of MaskFormer and Mask2Former return, the fields that the outputs of both models share, and results.

Fields that a call does not request are None.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.outputs import AttributeDict, ModelOutput, output_field


@dataclass
class PixelFeatures:
    """Output of a backbone and pixel decoder.

    Attributes:
        encoder: Maps of the backbone, fine to coarse [B, C, h, w].
        levels: Maps of the pixel decoder, coarse to fine [B, C, h, w].
        pixels: Pixel embeddings [B, M, H/4, W/4].
        padding: True for pixels in the padding [B, 1, H/4, W/4], where images were computed without it.
    """

    encoder: tuple[Tensor, ...]
    levels: tuple[Tensor, ...]
    pixels: Tensor
    padding: Tensor | None = None


@dataclass
class DecoderOutput:
    """Output of a transformer decoder.

    Attributes:
        states: Queries before the first layer and after each [B, Q, C].
        normed: Queries after the norm that precedes every prediction [B, Q, C]; the last are those of the last layer.
        attentions: Attention of the queries to each other in each layer [B, A, Q, Q], on demand.
        masks: Mask logits of the last predictions [B, Q, H/4, W/4], where the decoder itself predicts masks.
        queries_first: `states` as [Q, B, C], where the decoder adds them by `add_state`.
    """

    states: list[Tensor] = field(default_factory=list)
    normed: list[Tensor] = field(default_factory=list)
    attentions: list[Tensor] = field(default_factory=list)
    masks: list[Tensor] = field(default_factory=list)
    queries_first: list[Tensor] = field(default_factory=list)

    def add_state(self, queries: Tensor) -> Tensor:
        """Add queries [B, Q, C] and return them as a view of those in `queries_first`, so that these get gradients."""
        self.queries_first.append(queries.transpose(0, 1))  # [Q, B, C]
        self.states.append(self.queries_first[-1].transpose(0, 1))  # [B, Q, C]
        return self.states[-1]


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
class HiddenStates(ModelOutput):
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


@dataclass(frozen=True)
class QueryLogits:
    """Class logits [B, Q, K+1] and mask logits [B, Q, h, w] of a batch."""

    classes: Tensor
    masks: Tensor

    def __len__(self) -> int:
        return len(self.classes)

    @classmethod
    def from_outputs(cls, outputs: object) -> QueryLogits:
        """Read and check the logits of a model's output."""
        both = []
        for name, ndim in (("class_queries_logits", 3), ("masks_queries_logits", 4)):
            logits = output_field(outputs, name)
            if not isinstance(logits, Tensor) or logits.ndim != ndim:
                got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
                raise InputError(f"outputs.{name}: expected a tensor of {ndim} dimensions, got {got}.")
            both.append(logits)
        classes, masks = both
        if classes.shape[:2] != masks.shape[:2]:
            raise InputError(
                f"outputs: expected class and mask logits of the same images and queries, "
                f"got {list(classes.shape)} and {list(masks.shape)}."
            )
        return cls(classes, masks)


class SegmentationResult(AttributeDict):
    """Result of one image, above all `segmentation` and `segments_info`, as a dict and as attributes."""

    @property
    def shape(self) -> torch.Size:
        """Shape of `segmentation`, where that is a tensor."""
        return torch.Size(self["segmentation"].shape)
