"""After `optimize()`, models of the mask families return what they returned before; so do the Triton kernels."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families import CASES
from tests.families.case import FamilyCase
from tests.unit.ops.versions import NO_INTERPRETER
from vitruvian.model import Model
from vitruvian.ops import deformable_attention, layer_norm, masked_attention, window_attention
from vitruvian.ops.dispatch import interpret_triton

MASK_FAMILIES = [case for case in CASES if case.name.startswith(("swin", "maskformer", "mask2former", "sam2"))]
every_case = pytest.mark.parametrize("case", MASK_FAMILIES, ids=lambda case: case.name)


def build(case: FamilyCase) -> Model:
    torch.manual_seed(0)
    model = case.cls(case.config())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.05))
    return model.eval()


def leaves(output: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(dict(output)) if isinstance(leaf, Tensor)]


def assert_same(got: Any, want: Any) -> None:
    assert got.keys() == want.keys()
    for one, other in zip(leaves(got), leaves(want), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def inputs(case: FamilyCase, seed: int = 1) -> dict[str, Any]:
    return case.inputs(2, torch.Generator().manual_seed(seed)) | case.options


@every_case
def test_optimized_is_the_same(case: FamilyCase) -> None:
    model = build(case)
    fast = copy.deepcopy(model).optimize()
    for size in ((), *case.sizes):
        given = inputs(case)
        if size:
            given["pixel_values"] = torch.randn(2, 3, *size)
        with torch.inference_mode():
            want, got = model(**given), fast(**given)
            assert_same(got, want)
            assert_same(fast(**given), got)  # nothing that was kept has changed
            if "output_hidden_states" not in given:
                assert_same(fast(**given, output_hidden_states=True), model(**given, output_hidden_states=True))


KERNELS = {
    "swin-backbone": {"_window_attention_triton", "_layer_norm_triton"},
    "maskformer-instance": {"_window_attention_triton", "_layer_norm_triton"},
    "mask2former-universal": {
        "_window_attention_triton",
        "_layer_norm_triton",
        "_deformable_attention_triton",
        "_masked_attention_triton",
    },
}


@NO_INTERPRETER
@pytest.mark.parametrize(("name", "optimized"), [(name, False) for name in KERNELS] + [("mask2former-universal", True)])
def test_the_plain_model_runs_the_kernels(name: str, optimized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if case.name == name)
    launched: set[str] = set()
    for module in (window_attention, layer_norm, deformable_attention, masked_attention):
        for kernel, launch in list(vars(module).items()):
            if kernel.startswith("_") and kernel.endswith("_triton"):

                def noted(*args: Any, kernel: str = kernel, launch: Any = launch, **kwargs: Any) -> Any:
                    launched.add(kernel)
                    return launch(*args, **kwargs)

                monkeypatch.setattr(module, kernel, noted)
    model = build(case)
    inputs = {"pixel_values": torch.randn(1, 3, 32, 48)}
    with torch.no_grad():
        want = model(**inputs)
        assert not launched
        model = model.optimize() if optimized else model
        with interpret_triton():
            assert_same(model(**inputs), want)
    assert launched == KERNELS[name]
    launched.clear()
    with interpret_triton():
        model(**inputs)  # with gradients
    assert not launched


@every_case
def test_gradients_flow_after_optimize(case: FamilyCase) -> None:
    plain, fast = build(case), build(case).optimize()
    gradients = []
    for model in (plain, fast):
        output = leaves(model(**inputs(case)))
        sum(value.float().square().mean() for value in output if value.is_floating_point()).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, want in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], want, rtol=1e-3, atol=1e-5, msg=name)


@every_case
def test_saves_the_same_file(case: FamilyCase, tmp_path: Path) -> None:
    model = build(case)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.optimize().save_pretrained(tmp_path)
    again = case.cls.from_pretrained(tmp_path).state_dict()
    assert again.keys() == kept.keys()
    assert all(torch.equal(again[name], kept[name]) for name in kept)


@every_case
@pytest.mark.parametrize("how", ["loaded", "trained"])
def test_new_weights_after_optimize(case: FamilyCase, how: str) -> None:
    fast, other = build(case).optimize(), build(case)
    recordings = fast.graphs
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
        if how == "loaded":
            fast.load_state_dict(other.state_dict())
        else:
            fast.train()
            for parameter in fast.parameters():
                parameter.mul_(1.1)
            fast.eval()
        assert fast.graphs is not recordings  # they hold what was made of the old weights
        assert_same(fast(**inputs(case)), other(**inputs(case)))


@every_case
def test_casting_after_optimize(case: FamilyCase) -> None:
    fast, plain = build(case).optimize().double(), build(case).double()
    given = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs(case).items()
    }
    with torch.no_grad():
        assert_same(fast(**given), plain(**given))
