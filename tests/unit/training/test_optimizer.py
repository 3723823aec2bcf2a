"""Parameter groups, the schedule of the learning rate, skipped steps, and Muon."""

import math

import pytest
import torch
from torch import nn

from tests.tiny import tiny_config, tiny_task
from tests.unit.training.tiny_runs import model_table
from vitruvian import Sapiens2Backbone, Sapiens2Model
from vitruvian.training.config import ModelConfig, OptimizerConfig, ScheduleConfig
from vitruvian.training.loop import _update_weights
from vitruvian.training.objectives import Objective
from vitruvian.training.optimizer import (
    MuonAdamW,
    _orthogonalize,
    build_optimizer,
    learning_rate_factor,
    named_weights,
    set_learning_rate,
)
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


@pytest.mark.parametrize(
    ("decay", "step", "expected"),
    [
        ("linear", 0, 0.1),
        ("linear", 2, 0.55),
        ("linear", 4, 1.0),
        ("linear", 9, 0.2 + 0.8 * 0.5),
        ("linear", 13, 0.2 + 0.8 * 0.1),
        ("linear", 14, 0.2),
        ("linear", 99, 0.2),
        ("cosine", 4, 1.0),
        ("cosine", 9, 0.2 + 0.8 * 0.5),
        ("cosine", 11, 0.2 + 0.8 * (1 + math.cos(0.7 * math.pi)) / 2),
        ("constant", 2, 0.55),
        ("constant", 13, 1.0),
    ],
)
def test_the_schedule_of_the_learning_rate(decay: str, step: int, expected: float):
    part = ScheduleConfig(warmup=4, warmup_start=0.1, decay=decay, final=0.2)  # type: ignore[arg-type]
    assert learning_rate_factor(step, part, steps=14) == pytest.approx(expected)


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


def test_learning_rate_without_warmup_and_with_hold():
    assert learning_rate_factor(0, ScheduleConfig(warmup=0), steps=10) == 1
    part = ScheduleConfig(warmup=10, hold=0.5, decay="linear")
    found = [learning_rate_factor(step, part, steps=110) for step in (10, 59, 60, 85, 110)]
    assert found == pytest.approx([1, 1, 1, 0.5, 0])


def test_orthogonalized_singular_values_are_close_to_one():
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 16, 40), (2, 40, 16)):
        matrices = torch.randn(shape, generator=generator)
        found = _orthogonalize(1e-3 * matrices)
        values = torch.linalg.svdvals(found)
        assert found.shape == matrices.shape
        assert values.min() > 0.3
        assert values.max() < 1.3
        left, _, right = torch.linalg.svd(matrices, full_matrices=False)
        nearest = left @ right
        assert torch.cosine_similarity(found.flatten(), nearest.flatten(), dim=0) > 0.95


def test_muon_step_of_known_values():
    weight = nn.Parameter(torch.eye(2) * 3)
    other = nn.Parameter(torch.zeros(2))
    optimizer = MuonAdamW(
        [{"params": [weight], "orthogonal": True, "weight_decay": 0.5}, {"params": [other], "weight_decay": 0.0}],
        lr=0.1,
    )
    weight.grad, other.grad = torch.tensor([[0.0, 4.0], [-4.0, 0.0]]), torch.tensor([1.0, -1.0])
    optimizer.step()
    # The gradient is a rotation times 4: its orthogonal part is the rotation, within what the iteration reaches.
    turned = (3 * (1 - 0.1 * 0.5) * torch.eye(2) - weight.detach()) / (0.1 * 0.2 * 2**0.5)
    assert torch.equal(turned[0, 0].abs() < 1e-3, torch.tensor(True))
    assert 0.6 < turned[0, 1] < 1.3
    assert -1.3 < turned[1, 0] < -0.6
    torch.testing.assert_close(other.detach(), torch.tensor([-0.1, 0.1]))  # AdamW's first step


def test_muon_updates_only_matrices_of_layers():
    model = build_model(ModelConfig(**model_table("pose", "parts")))
    optimizer = build_optimizer(model, OptimizerConfig(kind="muon"))
    assert sorted(name for name, _ in named_weights(optimizer)) == sorted(name for name, _ in model.named_parameters())
    turned = [name for group in optimizer.param_groups if group.get("orthogonal") for name in group["names"]]
    assert "encoder.model.layer.0.mlp.up_proj.weight" in turned
    assert all(name.startswith("encoder.model.layer.") and name.endswith(".weight") for name in turned)
    assert not [name for name in turned if "norm" in name]


def test_matrices_of_one_shape_are_updated_as_if_alone():
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(6, 4, generator=generator) for _ in range(3)]
    slopes = [torch.randn(6, 4, generator=generator) for _ in range(3)]
    together = [nn.Parameter(value.clone()) for value in start]
    alone = [nn.Parameter(value.clone()) for value in start]
    one = MuonAdamW([{"params": together, "orthogonal": True}], lr=0.01)
    several = [MuonAdamW([{"params": [weight], "orthogonal": True}], lr=0.01) for weight in alone]
    for _ in range(2):
        for weights in (together, alone):
            for weight, slope in zip(weights, slopes, strict=True):
                weight.grad = slope.clone()
        for optimizer in (one, *several):
            optimizer.step()
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=2e-4)


def test_found_inf_leaves_weights_and_momentum_alone():
    weight = nn.Parameter(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))
    optimizer = MuonAdamW([{"params": [weight], "orthogonal": True, "weight_decay": 0.1}], lr=0.1)
    weight.grad = torch.ones(4, 6)
    optimizer.step()
    before, momentum = weight.detach().clone(), optimizer.state[weight]["exp_avg"].clone()
    weight.grad = torch.full((4, 6), torch.nan)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert torch.equal(weight.detach(), before)
    assert torch.equal(optimizer.state[weight]["exp_avg"], momentum)
    optimizer.found_inf = torch.zeros(())
    weight.grad = torch.ones(4, 6)
    optimizer.step()
    assert not torch.equal(weight.detach(), before)
