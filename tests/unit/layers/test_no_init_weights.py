"""`no_init_weights`: no random numbers, and opening a checkpoint does not import the compiler of torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from tests.families import CASES
from vitruvian.layers.init import _NoRandomInit, no_init_weights

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


def test_layers_have_shapes_only() -> None:
    with no_init_weights():
        layers = nn.Sequential(nn.Linear(3, 2), nn.Conv2d(2, 4, 3), nn.Embedding(5, 6), nn.LayerNorm(6))
    assert all(parameter.is_meta for parameter in layers.parameters())
    assert [tuple(layer.weight.shape) for layer in layers] == [(2, 3), (4, 2, 3, 3), (5, 6), (6,)]


def test_only_random_functions_are_skipped() -> None:
    state = torch.get_rng_state()
    with _NoRandomInit():
        unchanged = nn.init.normal_(torch.zeros(4))
        assert torch.equal(nn.init.kaiming_uniform_(tensor=torch.ones(2, 2)), torch.ones(2, 2))
        assert torch.equal(nn.init.constant_(torch.zeros(4), 3.0), torch.full((4,), 3.0))
        torch.zeros(4).uniform_()
    assert torch.equal(unchanged, torch.zeros(4))
    assert torch.equal(state, torch.get_rng_state())


def test_opening_a_model_of_any_family_imports_no_compiler(tmp_path: Path) -> None:
    for case in CASES:
        if case.name in FAMILIES:
            case.cls(case.config()).save_pretrained(tmp_path / case.name)
    done = subprocess.run(
        [sys.executable, "-c", OPENING, str(tmp_path), *FAMILIES], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout.splitlines() == [f"{name} []" for name in FAMILIES], done.stderr
