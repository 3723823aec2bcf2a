"""After `optimize()`, models of the mask families give what they gave before, on every device."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families import CASES
from tests.families.case import FamilyCase
from vitruvian.kernels import available
from vitruvian.model import Model
from vitruvian.models.mask2former import fast as mask2former_fast
from vitruvian.models.swin import fast as swin_fast

MINE = [case for case in CASES if case.name.startswith(("swin", "maskformer", "mask2former", "sam2"))]
pytestmark = pytest.mark.parametrize("case", MINE, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def fused_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the fused ways on the CPU too, where they run on the kernels' twins."""
    assert available.takes_fused is swin_fast.takes_fused

    def takes(x: Tensor) -> bool:
        return not torch.is_grad_enabled() and not torch.compiler.is_compiling()

    for module in (swin_fast, mask2former_fast):
        monkeypatch.setattr(module, "takes_fused", takes)


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


def test_optimised_is_the_same(case: FamilyCase) -> None:
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


def test_the_fused_way_is_taken(case: FamilyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    if ("resnet" in case.name and case.name.startswith("maskformer")) or case.name.startswith("sam2"):
        pytest.skip("ResNet, SAM 2 and the first MaskFormer's decoder have none")
    taken: list[str] = []
    ways = {
        swin_fast: "run_stages",
        mask2former_fast: "run_encoder run_decoder",
    }
    for module, names in ways.items():
        for name in names.split():
            real = getattr(module, name)

            def noted(*args: Any, name: str = name, real: Any = real) -> Any:
                def call(*args: Any, **kwargs: Any) -> Any:
                    taken.append(name)
                    return real(*args, **kwargs)

                return call

            monkeypatch.setattr(module, name, noted())
    model = build(case)
    with torch.no_grad():
        model(**inputs(case))
        assert not taken
        model.optimize()(**inputs(case))
    assert taken
    taken.clear()
    model(**inputs(case))
    assert not taken  # with gradients


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


def test_saves_the_same_file(case: FamilyCase, tmp_path: Path) -> None:
    model = build(case)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.optimize().save_pretrained(tmp_path)
    again = case.cls.from_pretrained(tmp_path).state_dict()
    assert again.keys() == kept.keys()
    assert all(torch.equal(again[name], kept[name]) for name in kept)


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


def test_casting_after_optimize(case: FamilyCase) -> None:
    fast, plain = build(case).optimize().double(), build(case).double()
    given = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs(case).items()
    }
    with torch.no_grad():
        assert_same(fast(**given), plain(**given))
