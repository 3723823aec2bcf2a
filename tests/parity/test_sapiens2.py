"""Same weights, same numbers as the reference, live: more shapes, types and options than the stored cases."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitruvian
from tests.families.sapiens2 import DECONVOLUTION, SCALE, SHUFFLE, TINY

reference = pytest.importorskip("transformers")
pytestmark = pytest.mark.reference

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "Sapiens2ForPoseEstimation": ("heatmaps", {"num_labels": 5, "head_config": DECONVOLUTION}),
    "Sapiens2ForSemanticSegmentation": ("logits", {"num_labels": 5, "head_config": DECONVOLUTION}),
    "Sapiens2ForNormalEstimation": ("normals", {"num_labels": 3, "head_config": SHUFFLE}),
    "Sapiens2ForPointmapEstimation": ("pointmaps", {"num_labels": 3, "head_config": SHUFFLE | SCALE}),
    "Sapiens2ForImageMatting": ("alphas", {"num_labels": 4, "head_config": SHUFFLE}),
}


def pair(tmp_path: Path, cls: str, **fields: Any) -> tuple[Any, Any]:
    """A reference model with random weights, and ours opened from what it saved."""
    torch.manual_seed(0)
    theirs = getattr(reference, cls)(reference.Sapiens2Config(**copy.deepcopy(TINY | fields))).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.05))
    theirs.save_pretrained(tmp_path)
    return theirs, getattr(vitruvian, cls).from_pretrained(tmp_path)


def close(got: Tensor, want: Tensor, tolerance: float = 2e-5) -> None:
    assert got.shape == want.shape
    error = (got.double() - want.double()).abs().max() / (1 + want.double().abs().max())
    assert error <= tolerance, f"relative difference {error:.2g}"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"use_gated_mlp": False, "hidden_act": "gelu"},
        {"use_qk_norm": False},
        {"key_bias": False, "query_bias": False, "value_bias": False, "proj_bias": False, "mlp_bias": False},
        {"num_register_tokens": 0},
        {"num_key_value_heads_per_layer": [4, 1, 2, 4]},
        {"patch_size": [16, 8]},
        {"rope_theta": 1000.0, "rms_norm_eps": 1e-3, "num_channels": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(64, 48), (32, 16), (128, 80)], ids=str)
def test_bare_model(tmp_path: Path, fields: dict[str, Any], size: tuple[int, int]) -> None:
    theirs, ours = pair(tmp_path, "Sapiens2Model", **fields)
    x = torch.randn(2, fields.get("num_channels", 3), *size)
    with torch.inference_mode():
        want, got = theirs(x, output_hidden_states=True), ours(x, output_hidden_states=True)
    close(got.last_hidden_state, want.last_hidden_state)
    close(got.pooler_output, want.pooler_output)
    assert len(got.hidden_states) == len(want.hidden_states)
    for a, b in zip(got.hidden_states, want.hidden_states, strict=True):
        close(a, b)


def test_attentions(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path, "Sapiens2Model")
    theirs.set_attn_implementation("eager")
    x = torch.randn(2, 3, 64, 48)
    with torch.inference_mode():
        want, got = theirs(x, output_attentions=True).attentions, ours(x, output_attentions=True).attentions
    assert len(got) == len(want) == 4
    for a, b in zip(got, want, strict=True):
        close(a, b)
        torch.testing.assert_close(a.sum(-1), torch.ones_like(a.sum(-1)))


def test_masked_patches(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path, "Sapiens2Model", use_mask_token=True)
    x, mask = torch.randn(2, 3, 64, 48), torch.rand(2, 12) > 0.5
    with torch.inference_mode():
        close(ours(x, mask).last_hidden_state, theirs(x, bool_masked_pos=mask).last_hidden_state)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("reshape", [True, False])
@pytest.mark.parametrize("stages", [{"out_indices": [0, 2, 4]}, {"out_features": ["stage1", "stage4"]}, {}], ids=str)
def test_backbone(tmp_path: Path, normalize: bool, reshape: bool, stages: dict[str, Any]) -> None:
    theirs, ours = pair(
        tmp_path,
        "Sapiens2Backbone",
        normalize_backbone_outputs=normalize,
        reshape_hidden_states=reshape,
        return_class_token=True,
        **stages,
    )
    x = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        want, got = theirs(x), ours(x)
    assert len(got.feature_maps) == len(want.feature_maps) == len(got.cls_tokens)
    for a, b in zip(got.feature_maps + got.cls_tokens, want.feature_maps + want.cls_tokens, strict=True):
        close(a, b)
    assert ours.channels == theirs.channels
    assert got.hidden_states is None


@pytest.mark.parametrize("cls", TASKS)
@pytest.mark.parametrize("size", [(64, 48), (96, 64)], ids=str)
def test_tasks(tmp_path: Path, cls: str, size: tuple[int, int]) -> None:
    field, fields = TASKS[cls]
    if "Pointmap" in cls:
        size = (64, 48)  # the reference's scale branch takes one size only
    theirs, ours = pair(tmp_path, cls, **fields)
    x = torch.randn(2, 3, *size)
    with torch.inference_mode():
        want, got = theirs(x, output_hidden_states=True), ours(x, output_hidden_states=True)
    assert list(got.keys()) == list(want.keys())
    close(got[field], want[field], 1e-4)
    for name in ("foregrounds", "scales"):
        if name in want:
            close(got[name], want[name], 1e-4)


@pytest.mark.parametrize("cls", TASKS)
def test_gradients(tmp_path: Path, cls: str) -> None:
    field, fields = TASKS[cls]
    theirs, ours = (model.double() for model in pair(tmp_path, cls, **fields))
    x = torch.randn(2, 3, 64, 48, dtype=torch.float64)
    gradients = []
    for model in (theirs, ours):
        model(x)[field].square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, want in gradients[0].items():
        close(gradients[1][name], want, 1e-5)


@pytest.mark.parametrize("cls", ["Sapiens2ForPoseEstimation", "Sapiens2ForSemanticSegmentation"])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_to_the_digit(tmp_path: Path, cls: str, weighted: bool) -> None:
    theirs, ours = pair(tmp_path, cls, **TASKS[cls][1])
    x = torch.randn(2, 3, 64, 48)
    if "Pose" in cls:
        labels = {"labels": torch.rand(2, 5, 16, 12)}
        if weighted:
            labels["label_weights"] = torch.rand(2, 5, 1, 1).expand(2, 5, 16, 12)
    else:
        height, width = (96, 72) if weighted else (64, 48)  # labels of another size than the logits
        labels = {"labels": torch.randint(0, 5, (2, height, width))}
        labels["labels"][:, :9] = 255
    with torch.inference_mode():
        want, got = theirs(x, **labels).loss, ours(x, **labels).loss
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)


def test_flipped_heatmaps(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path, "Sapiens2ForPoseEstimation", **TASKS["Sapiens2ForPoseEstimation"][1])
    x, pairs = torch.randn(2, 3, 64, 48), torch.tensor([[0, 3], [1, 2]])
    with torch.inference_mode():
        close(ours(x, flip_pairs=pairs).heatmaps, theirs(x, flip_pairs=pairs).heatmaps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types(tmp_path: Path, dtype: torch.dtype) -> None:
    theirs, _ = pair(tmp_path, "Sapiens2ForNormalEstimation", **TASKS["Sapiens2ForNormalEstimation"][1])
    ours = vitruvian.Sapiens2ForNormalEstimation.from_pretrained(tmp_path, dtype=dtype)
    theirs = theirs.to(dtype)
    x = torch.randn(2, 3, 64, 48, dtype=dtype)
    with torch.inference_mode():
        want, got = theirs(x).normals, ours(x).normals
    assert got.dtype == dtype
    close(got, want, {torch.bfloat16: 0.1, torch.float16: 0.02, torch.float64: 1e-6}[dtype])


def test_rope_augmentation_in_training(tmp_path: Path) -> None:
    fields = {"pos_embed_shift": 0.3, "pos_embed_jitter": 1.5, "pos_embed_rescale": 2.0}
    theirs, ours = pair(tmp_path, "Sapiens2Model", **fields)
    x = torch.randn(1, 3, 64, 48)
    results = []
    for model in (theirs.train(), ours.train()):
        torch.manual_seed(3)
        with torch.inference_mode():
            results.append(model(x).last_hidden_state)
    close(results[1], results[0])
    with torch.inference_mode():
        assert not torch.allclose(ours.eval()(x).last_hidden_state, results[1], atol=1e-3)


def test_parameter_counts_of_all_variants() -> None:
    """Each published model, built on the meta device from our table, has as many parameters as the reference's."""
    from vitruvian.models.sapiens2.configuration import VARIANTS, Sapiens2Config

    classes = {
        "pretrain": "Sapiens2Model",
        "pose": "Sapiens2ForPoseEstimation",
        "seg": "Sapiens2ForSemanticSegmentation",
        "normal": "Sapiens2ForNormalEstimation",
        "pointmap": "Sapiens2ForPointmapEstimation",
        "matting": "Sapiens2ForImageMatting",
    }
    for name in VARIANTS:
        for task, cls in classes.items():
            if name == "1b-4k" and task != "pretrain":
                continue
            config = Sapiens2Config.variant(name, task=task)
            with torch.device("meta"):
                ours = getattr(vitruvian, cls)(config)
            if name == "1b-4k":
                extra = sum(p.numel() for p in ours.embeddings.tokenizer.parameters())
            else:
                extra = 0
            values = {k: v for k, v in config.to_dict().items() if k not in ("architectures", "stage_names")}
            with torch.device("meta"):
                theirs = getattr(reference, cls)(reference.Sapiens2Config.from_dict(values))
            assert ours.num_parameters() - extra == theirs.num_parameters(), (name, task)


CARD = {"0.1b": 0.114e9, "0.4b": 0.398e9, "0.8b": 0.818e9, "1b": 1.462e9, "1b-4k": 1.607e9, "5b": 5.071e9}


@pytest.mark.parametrize("name", CARD)
def test_parameter_counts_of_the_card(name: str) -> None:
    with torch.device("meta"):
        model = vitruvian.Sapiens2Model(vitruvian.Sapiens2Config.variant(name))
    assert abs(model.num_parameters() / CARD[name] - 1) < 0.01
