"""Checkpoints in the naming of the original Sapiens2 release convert and give its outputs."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.shared_folder import SHARED, needs_shared
from vitruvian.errors import WeightsError
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.models.sapiens2.convert import convert_state_dict
from vitruvian.models.sapiens2.modeling import Sapiens2ForPoseEstimation, Sapiens2Model

FOLDER = SHARED / "golden" / "original"


@needs_shared
def test_original_file_opens_with_from_pretrained() -> None:
    folder = FOLDER / "original-pose"
    case = json.loads((folder / "case.json").read_text())
    config = Sapiens2Config(**case["arch"], head_config=case["head"], num_labels=case["num_labels"])
    model = Sapiens2ForPoseEstimation.from_pretrained(folder / "original.safetensors", config=config)
    io = load_file(folder / "io.safetensors")
    with torch.inference_mode():
        got = model(io["in.pixel_values"]).heatmaps
    torch.testing.assert_close(got, io["out.heatmaps"], rtol=1e-4, atol=1e-4)


def original_names(model: Sapiens2Model) -> dict[str, torch.Tensor]:
    """Our state dict in the original naming, written down by hand."""
    state = model.state_dict()
    out = {
        "cls_token": state["embeddings.cls_token"],
        "storage_tokens": state["embeddings.register_tokens"],
        "patch_embed.projection.weight": state["embeddings.patch_embeddings.weight"],
        "patch_embed.projection.bias": state["embeddings.patch_embeddings.bias"],
        "ln1.weight": state["norm.weight"],
        "rope_embed.periods": torch.ones(2),
    }
    for layer in range(model.config.num_hidden_layers):
        ours, theirs = f"model.layer.{layer}.", f"blocks.{layer}."
        for a, b in (("q", "wq"), ("k", "wk"), ("v", "wv"), ("o", "proj")):
            for kind in ("weight", "bias"):
                out[f"{theirs}attn.{b}.{kind}"] = state[f"{ours}attention.{a}_proj.{kind}"]
        for a in "qk":
            out[f"{theirs}attn.{a}_norm.weight"] = state[f"{ours}attention.{a}_norm.weight"]
        out[f"{theirs}attn.gamma.weight"] = state[f"{ours}layer_scale1.lambda1"]
        for number in "12":
            out[f"{theirs}ln{number}.weight"] = state[f"{ours}norm{number}.weight"]
        for kind in ("weight", "bias"):
            pair = [state[f"{ours}mlp.{half}_proj.{kind}"] for half in ("gate", "up")]
            out[f"{theirs}ffn.w12.{kind}"] = torch.cat(pair)
            out[f"{theirs}ffn.w3.{kind}"] = state[f"{ours}mlp.down_proj.{kind}"]
    return out


@pytest.fixture
def tiny() -> Sapiens2Model:
    torch.manual_seed(0)
    config = Sapiens2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=32
    )
    return Sapiens2Model(config)


def test_conversion_is_the_inverse_of_the_original_names(tiny: Sapiens2Model) -> None:
    converted = convert_state_dict(original_names(tiny))
    want = tiny.state_dict()
    assert converted.keys() == want.keys()
    for name, value in want.items():
        assert torch.equal(converted[name], value), name


def test_partial_file_is_refused_with_its_keys_named(tiny: Sapiens2Model) -> None:
    state = original_names(tiny)
    del state["blocks.1.ffn.w3.weight"]
    with pytest.raises(WeightsError, match=r"blocks\.1\.ffn\.w3\.weight"):
        convert_state_dict(state)
    state = original_names(tiny)
    del state["storage_tokens"]
    with pytest.raises(WeightsError, match="storage_tokens"):
        convert_state_dict(state)


def test_layer_numbers_are_limited(tiny: Sapiens2Model) -> None:
    state = original_names(tiny) | {"blocks.9999999.ln1.weight": torch.zeros(16)}
    with pytest.raises(WeightsError, match=r"blocks\.: expected at most 1,000 layers, got 10,000,000\."):
        convert_state_dict(state)


def test_whole_missing_layer_is_noticed(tiny: Sapiens2Model) -> None:
    state = {name: value for name, value in original_names(tiny).items() if not name.startswith("blocks.0.")}
    with pytest.raises(WeightsError, match=r"blocks\.0\."):
        convert_state_dict(state)


def test_foreign_file_is_refused_with_its_keys_named(tiny: Sapiens2Model) -> None:
    with pytest.raises(WeightsError, match=r"transformer\.h\.0"):
        convert_state_dict({"transformer.h.0.weight": torch.zeros(2)})
    with pytest.raises(WeightsError, match="from_pretrained"):
        convert_state_dict(tiny.state_dict())


def test_task_without_its_head_is_refused(tiny: Sapiens2Model) -> None:
    state = {f"backbone.{name}": value for name, value in original_names(tiny).items()}
    with pytest.raises(WeightsError, match="decode_head"):
        convert_state_dict(state)
