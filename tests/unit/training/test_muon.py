"""Muon: orthogonal steps, beside AdamW, that stop where gradients are not finite."""

import torch
from torch import nn

from tests.unit.training.tiny_runs import model_table
from vitruvian.training.config import ModelPart, OptimizerPart
from vitruvian.training.models import build_model
from vitruvian.training.optimizer import MuonAdamW, _orthogonalize, build_optimizer, named_weights


def test_orthogonal_brings_singular_values_close_to_one():
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 16, 40), (2, 40, 16)):
        given = torch.randn(shape, generator=generator)
        found = _orthogonalize(1e-3 * given)
        values = torch.linalg.svdvals(found)
        assert found.shape == given.shape
        assert values.min() > 0.3
        assert values.max() < 1.3
        left, _, right = torch.linalg.svd(given, full_matrices=False)
        nearest = left @ right
        assert torch.cosine_similarity(found.flatten(), nearest.flatten(), dim=0) > 0.95


def test_a_step_by_hand():
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


def test_only_matrices_of_layers_are_turned():
    model = build_model(ModelPart(**model_table("pose", "seg")))
    optimizer = build_optimizer(model, OptimizerPart(kind="muon"))
    assert sorted(name for name, _ in named_weights(optimizer)) == sorted(name for name, _ in model.named_parameters())
    turned = [name for group in optimizer.param_groups if group.get("orthogonal") for name in group["names"]]
    assert "encoder.model.layer.0.mlp.up_proj.weight" in turned
    assert all(name.startswith("encoder.model.layer.") and name.endswith(".weight") for name in turned)
    assert not [name for name in turned if "norm" in name]


def test_layers_of_one_shape_are_handled_as_alone():
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
