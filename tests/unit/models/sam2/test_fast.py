"""Backbones that the published ones do not cover take their fused way too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from vitruvian.models.sam2 import fast
from vitruvian.models.sam2.configuration import Sam2HieraDetConfig
from vitruvian.models.sam2.hiera import Sam2HieraDetModel


@pytest.mark.parametrize("fields", [{}, {"num_query_pool_stages": 1}])
def test_stages_of_one_width_keep_their_maps(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "takes_fused", lambda x: not torch.is_grad_enabled())
    settings: dict[str, Any] = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "image_size": [64, 96],
        "blocks_per_stage": [1, 2, 2, 1],
        "embed_dim_per_stage": [16, 16, 16, 16],
        "num_attention_heads_per_stage": [2, 2, 2, 2],
        "window_size_per_stage": [4, 4, 4, 2],
        "global_attention_blocks": [3],
        "num_query_pool_stages": 0,
        "window_positional_embedding_background_size": [4, 4],
    }
    torch.manual_seed(0)
    model = Sam2HieraDetModel(Sam2HieraDetConfig(**settings | fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        pixels = torch.randn(2, 3, 64, 96)
        want = model(pixels)
        got = copy.deepcopy(model).optimize()(pixels)
    for one, other in zip(got.intermediate_hidden_states, want.intermediate_hidden_states, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
