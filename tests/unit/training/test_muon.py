"""Muon: orthogonalized momentum, groups of AdamW, skipped steps."""

import torch
from torch import nn

from vitruvian.training.muon import MuonAdamW, _orthogonalize


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
