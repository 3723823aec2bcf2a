"""Initialization of weights, and modules built without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.families import CASES
from vitruvian.layers import init
from vitruvian.layers.init import init_layer, no_init_weights, set_init_std, with_init

ROOT = Path(__file__).resolve().parents[3]
FAMILIES = ("mask2former", "maskformer", "sam2-clicks", "sapiens2-pose", "swin")
OPENING = """
import sys, torch
from tests.families import CASES
for case in CASES:
    if case.name in sys.argv[2:]:
        with torch.inference_mode():
            case.cls.from_pretrained(f"{sys.argv[1]}/{case.name}")(**case.inputs(1, torch.Generator()), **case.options)
        print(case.name, [name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def initialized(module: nn.Module, **options: float) -> nn.Module:
    for parameter in module.parameters():
        nn.init.constant_(parameter, 9.0)
    torch.manual_seed(0)
    init_layer(module, **options)
    return module


@pytest.mark.parametrize("module", [nn.Linear(64, 64), nn.Conv2d(64, 64, 1), nn.Embedding(64, 64)], ids=repr)
def test_normal_by_default(module: nn.Module) -> None:
    weight = initialized(module, std=0.5).weight
    assert 0.47 < weight.std() < 0.53  # type: ignore[operator]
    if getattr(module, "bias", None) is not None:
        assert not module.bias.any()  # type: ignore[union-attr, operator]


def test_other_distributions() -> None:
    assert not initialized(with_init(nn.Linear(8, 8), "zero")).weight.any()  # type: ignore[union-attr, operator]
    xavier = initialized(with_init(nn.Linear(50, 10), "xavier"), gain=2.0).weight
    bound = 2 * (6 / 60) ** 0.5
    assert 0.9 * bound < xavier.abs().max() <= bound  # type: ignore[operator, union-attr]
    kaiming = initialized(with_init(nn.Conv2d(8, 64, 3), "kaiming")).weight
    assert abs(kaiming.std() - (2 / (64 * 9)) ** 0.5) < 0.005  # type: ignore[operator, union-attr]
    linear = initialized(with_init(nn.Linear(64, 200), "kaiming")).weight
    assert abs(linear.std() - (1 / 64) ** 0.5) < 0.005  # type: ignore[operator, union-attr]


@pytest.mark.parametrize("module", [nn.Linear(64, 64), nn.ConvTranspose2d(64, 64, 2)], ids=repr)
def test_truncated_normal(module: nn.Module) -> None:
    weight = initialized(module, std=0.5, bound=0.5).weight
    assert 0.45 < weight.abs().max() <= 0.5  # type: ignore[operator, union-attr]
    assert not module.bias.any()  # type: ignore[union-attr, operator]


def test_a_part_with_its_own_standard_deviation() -> None:
    part = nn.Sequential(nn.Linear(64, 64))
    set_init_std(part, 0.1)
    assert 0.09 < initialized(part[0], std=0.5).weight.std() < 0.11  # type: ignore[operator]


def test_norms() -> None:
    for norm in (nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.BatchNorm2d(4)):
        initialized(norm)
        assert torch.equal(norm.weight, torch.ones(4))
        assert torch.equal(norm.bias, torch.zeros(4))
    batch = nn.BatchNorm2d(4)
    batch.running_mean.fill_(3)  # type: ignore[union-attr]
    initialized(batch)
    assert not batch.running_mean.any()  # type: ignore[union-attr]
    initialized(nn.LayerNorm(4, elementwise_affine=False))


def test_other_modules_are_left_alone() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.ones(3))
    assert torch.equal(initialized(module).weight, torch.full((3,), 9.0))  # type: ignore[arg-type]


def test_a_module_initializes_its_own_parameters() -> None:
    class Scale(nn.Linear):
        def init_parameters(self) -> None:
            nn.init.constant_(self.weight, 3.0)

    assert torch.equal(initialized(Scale(2, 2)).weight, torch.full((2, 2), 3.0))  # type: ignore[arg-type]


def test_modules_without_initialization_are_on_the_meta_device() -> None:
    with no_init_weights():
        layers = nn.Sequential(nn.Linear(3, 2), nn.Conv2d(2, 4, 3), nn.Embedding(5, 6), nn.LayerNorm(6))
    assert all(parameter.is_meta for parameter in layers.parameters())
    assert [tuple(layer.weight.shape) for layer in layers] == [(2, 3), (4, 2, 3, 3), (5, 6), (6,)]


def test_only_random_numbers_are_skipped() -> None:
    state = torch.get_rng_state()
    with init._SkipRandomInit():
        drawn = nn.init.normal_(torch.zeros(4))
        assert torch.equal(nn.init.kaiming_uniform_(tensor=torch.ones(2, 2)), torch.ones(2, 2))
        assert torch.equal(nn.init.constant_(torch.zeros(4), 3.0), torch.full((4,), 3.0))
        torch.zeros(4).uniform_()
    assert torch.equal(drawn, torch.zeros(4))
    assert torch.equal(state, torch.get_rng_state())


def test_opening_a_model_of_any_family_imports_no_compiler(tmp_path: Path) -> None:
    for case in CASES:
        if case.name in FAMILIES:
            case.cls(case.config()).save_pretrained(tmp_path / case.name)
    done = subprocess.run(
        [sys.executable, "-c", OPENING, str(tmp_path), *FAMILIES], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout.splitlines() == [f"{name} []" for name in FAMILIES], done.stderr
