"""Parameter groups of optimizers, and skipped steps."""

import math

import pytest
import torch
from torch import nn

from tests.helpers.tiny_models import tiny_config, tiny_task
from tests.unit.training.tiny_runs import model_table
from vitruvian import Sapiens2Backbone, Sapiens2Model
from vitruvian.training.config import ModelConfig, OptimizerConfig
from vitruvian.training.learning_rate import set_learning_rate
from vitruvian.training.loop import _update_weights
from vitruvian.training.objectives import Objective
from vitruvian.training.optimizer import build_optimizer, named_weights
from vitruvian.training.task_models import build_model


def scales(model: nn.Module, layer_decay: float = 0.5) -> dict[str, float]:
    groups = build_optimizer(model, OptimizerConfig(layer_decay=layer_decay)).param_groups
    return {name: group["lr_scale"] for group in groups for name in group["names"]}


def decays(model: nn.Module) -> dict[str, float]:
    groups = build_optimizer(model, OptimizerConfig()).param_groups
    return {name: group["weight_decay"] for group in groups for name in group["names"]}


def test_learning_rates_by_depth():
    found = scales(tiny_task("pose"))  # four layers
    assert found["model.embeddings.cls_token"] == 0.5**5
    assert found["model.embeddings.patch_embeddings.weight"] == 0.5**5
    for layer in range(4):
        assert found[f"model.model.layer.{layer}.mlp.up_proj.weight"] == 0.5 ** (4 - layer)
        assert found[f"model.model.layer.{layer}.norm1.weight"] == 0.5 ** (4 - layer)
    assert found["model.norm.weight"] == 1
    assert found["decode_head.predictor.weight"] == 1


def test_any_encoder_is_found():
    bare = scales(Sapiens2Model(tiny_config()))
    assert (bare["embeddings.cls_token"], bare["model.layer.3.norm1.weight"], bare["norm.weight"]) == (0.5**5, 0.5, 1)
    assert scales(Sapiens2Backbone(tiny_config()))["model.layer.0.norm1.weight"] == 0.5**4
    several = Objective(build_model(ModelConfig(**model_table("pose", "parts"))))  # three layers
    found = scales(several)
    assert found["model.encoder.embeddings.cls_token"] == 0.5**4
    assert found["model.encoder.model.layer.2.norm1.weight"] == 0.5
    assert found["model.tasks.seg.decode_head.predictor.weight"] == 1


def test_every_weight_is_in_one_group():
    model = build_model(ModelConfig(**model_table("pose", "normals")))
    optimizer = build_optimizer(model, OptimizerConfig())
    names = [name for name, _ in named_weights(optimizer)]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    model.encoder.requires_grad_(False)
    left = [name for name, _ in named_weights(build_optimizer(model, OptimizerConfig()))]
    assert left
    assert not [name for name in left if name.startswith("encoder")]


def test_only_matrices_and_filters_decay():
    model = tiny_task("albedo", use_mask_token=True)
    found = decays(model)
    none = {name for name, value in found.items() if value == 0}
    for name in (
        "model.embeddings.cls_token", "model.embeddings.register_tokens", "model.embeddings.mask_token",
        "model.embeddings.patch_embeddings.bias", "model.model.layer.0.norm1.weight",
        "model.model.layer.0.layer_scale1.lambda1", "model.model.layer.0.attention.q_norm.weight",
        "model.model.layer.0.attention.q_proj.bias", "model.norm.weight", "decode_head.predictor.bias",
    ):  # fmt: skip
        assert name in none
    for name in (
        "model.embeddings.patch_embeddings.weight", "model.model.layer.0.mlp.gate_proj.weight",
        "decode_head.predictor.weight", "decode_head.conv_layers.0.convolution.weight",
    ):  # fmt: skip
        assert found[name] == 0.1
    norms = [name for name in found if "norm" in name]
    assert norms
    assert set(norms) <= none


def test_optimizer_follows_the_configuration():
    part = OptimizerConfig(lr=2.0, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.3, layer_decay=0.5)
    optimizer = build_optimizer(tiny_task("pose"), part)
    assert optimizer.defaults["betas"] == (0.8, 0.9)
    assert optimizer.defaults["eps"] == 1e-5
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.3}
    assert {group["lr"] for group in optimizer.param_groups} == {2 * 0.5**k for k in range(6)}
    set_learning_rate(optimizer, 0.1)
    assert max(group["lr"] for group in optimizer.param_groups) == 0.1
    assert min(group["lr"] for group in optimizer.param_groups) == pytest.approx(0.1 * 0.5**5)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_with_nonfinite_gradients_are_skipped(fused: bool):
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)

    def step(*gradient: float) -> bool:
        weight.grad = torch.tensor(gradient)
        return bool(_update_weights(optimizer, weight.grad.norm()))

    assert step(1.0, -1.0)
    moved = weight.detach().clone()
    state = {name: value.clone() for name, value in optimizer.state[weight].items()}
    assert not torch.equal(moved, torch.tensor([1.0, 2.0]))
    assert not step(math.nan, 1.0)
    assert not step(math.inf, 1.0)
    assert torch.equal(weight.detach(), moved)
    assert all(torch.equal(value, state[name]) for name, value in optimizer.state[weight].items())
    assert step(1.0, 1.0)
    assert not torch.equal(weight.detach(), moved)
    assert float(optimizer.state[weight]["step"]) == 2


def test_muon_updates_only_matrices_of_layers():
    model = build_model(ModelConfig(**model_table("pose", "parts")))
    optimizer = build_optimizer(model, OptimizerConfig(kind="muon"))
    assert sorted(name for name, _ in named_weights(optimizer)) == sorted(name for name, _ in model.named_parameters())
    turned = [name for group in optimizer.param_groups if group.get("orthogonal") for name in group["names"]]
    assert "encoder.model.layer.0.mlp.up_proj.weight" in turned
    assert all(name.startswith("encoder.model.layer.") and name.endswith(".weight") for name in turned)
    assert not [name for name in turned if "norm" in name]
