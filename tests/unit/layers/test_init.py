import pytest
import torch
from torch import nn

from vitruvian.layers.init import init_layer, set_init_std, with_init


def started(module: nn.Module, **options: float) -> nn.Module:
    for parameter in module.parameters():
        nn.init.constant_(parameter, 9.0)
    torch.manual_seed(0)
    init_layer(module, **options)
    return module


@pytest.mark.parametrize("module", [nn.Linear(64, 64), nn.Conv2d(64, 64, 1), nn.Embedding(64, 64)], ids=repr)
def test_normal_by_default(module: nn.Module) -> None:
    weight = started(module, std=0.5).weight
    assert 0.47 < weight.std() < 0.53  # type: ignore[operator]
    if getattr(module, "bias", None) is not None:
        assert not module.bias.any()  # type: ignore[union-attr, operator]


def test_marks() -> None:
    assert not started(with_init(nn.Linear(8, 8), "zero")).weight.any()  # type: ignore[union-attr, operator]
    xavier = started(with_init(nn.Linear(50, 10), "xavier"), gain=2.0).weight
    bound = 2 * (6 / 60) ** 0.5
    assert 0.9 * bound < xavier.abs().max() <= bound  # type: ignore[operator, union-attr]
    kaiming = started(with_init(nn.Conv2d(8, 64, 3), "kaiming")).weight
    assert abs(kaiming.std() - (2 / (64 * 9)) ** 0.5) < 0.005  # type: ignore[operator, union-attr]


def test_a_part_with_a_spread_of_its_own() -> None:
    part = nn.Sequential(nn.Linear(64, 64))
    set_init_std(part, std=0.1)
    assert 0.09 < started(part[0], std=0.5).weight.std() < 0.11  # type: ignore[operator]


def test_norms() -> None:
    for norm in (nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.BatchNorm2d(4)):
        started(norm)
        assert torch.equal(norm.weight, torch.ones(4))
        assert torch.equal(norm.bias, torch.zeros(4))
    batch = nn.BatchNorm2d(4)
    batch.running_mean.fill_(3)  # type: ignore[union-attr]
    started(batch)
    assert not batch.running_mean.any()  # type: ignore[union-attr]
    started(nn.LayerNorm(4, elementwise_affine=False))


def test_other_modules_are_left_alone() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.ones(3))
    assert torch.equal(started(module).weight, torch.full((3,), 9.0))  # type: ignore[arg-type]
