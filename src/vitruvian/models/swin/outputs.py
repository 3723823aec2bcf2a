"""What `SwinModel` returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitruvian.outputs import ModelOutput


@dataclass
class SwinModelOutput(ModelOutput):
    """Hidden states of Swin.

    Attributes:
        last_hidden_state: Tokens of the last stage after the final norm [B, h·w, C].
        pooler_output: Their mean [B, C].
        hidden_states: The embeddings, then the tokens that each stage hands on [B, h·w, C].
        attentions: Weights of each stage's last layer [B · windows, A, N, N].
        reshaped_hidden_states: `hidden_states` as maps [B, C, h, w].
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    reshaped_hidden_states: tuple[Tensor, ...] | None = None
