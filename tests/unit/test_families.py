"""What every model of every family can do, on tiny configurations."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families import CASES
from tests.families.case import FamilyCase
from vitruvian.devices import _preloaded_classes
from vitruvian.model import Model

pytestmark = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def build(case: FamilyCase, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    model = case.cls(case.config())
    with torch.no_grad():
        for parameter in model.parameters():  # so that every parameter matters: no zero biases, no unit scales
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.05))
    return model.eval()


def inputs(case: FamilyCase, count: int = 2, seed: int = 1) -> dict[str, Any]:
    return case.inputs(count, torch.Generator().manual_seed(seed)) | case.options


def run(model: Model, case: FamilyCase, given: dict[str, Any]) -> Tensor:
    with torch.inference_mode():
        value = model(**given)[case.output]
    return value if isinstance(value, Tensor) else torch.cat([part.flatten() for part in value])


def assert_close(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert got.shape == want.shape
    error = (got.double() - want.double()).abs().max() / (1 + want.double().abs().max())
    assert error <= tolerance, f"relative difference {error:.2g}"


def test_save_and_load_is_identity(case: FamilyCase, tmp_path: Path) -> None:
    model = build(case)
    model.save_pretrained(tmp_path)
    again = case.cls.from_pretrained(tmp_path)
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert again.config.to_dict() == model.config.to_dict()
    given = inputs(case)
    assert torch.equal(run(again, case, given), run(model, case, given))
    assert not again.training


@torch.no_grad()
def test_weights_may_wait_elsewhere_until_they_are_used(case: FamilyCase) -> None:
    """As those of a model do that no device holds: accelerate brings those of a module when it is called."""
    offload = pytest.importorskip("accelerate").cpu_offload
    model, given = build(case), inputs(case)
    want = flat(model(**given)[case.output])
    for name, part in model.named_children():
        if name not in model.resident_modules:
            offload(part, torch.device("cpu"), preload_module_classes=_preloaded_classes(model, model.no_split_modules))
    assert any(parameter.is_meta for parameter in model.parameters())
    for got, wanted in zip(flat(model(**given)[case.output]), want, strict=True):
        assert torch.equal(got, wanted)
    assert any(parameter.is_meta for parameter in model.parameters())


def test_batch_equals_singles(case: FamilyCase) -> None:
    model = build(case)
    given = inputs(case, count=3)
    whole = run(model, case, given)
    if isinstance(model(**given)[case.output], tuple):
        pytest.skip("maps of several stages are flattened")
    for index in range(3):
        one = {k: v[index : index + 1] if isinstance(v, Tensor | list) else v for k, v in given.items()}
        assert_close(run(model, case, one)[0], whole[index], case.tolerance)


def test_return_dict_false_gives_the_same_tuple(case: FamilyCase) -> None:
    model = build(case)
    given = inputs(case)
    with torch.inference_mode():
        output, parts = model(**given), model(**given, return_dict=False)
    assert isinstance(parts, tuple)
    assert len(parts) == len(output)


def test_bf16_is_close_to_float32(case: FamilyCase) -> None:
    model = build(case)
    given = inputs(case)
    want = run(model, case, given)
    model.to(torch.bfloat16)
    half = {k: v.bfloat16() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in given.items()}
    got = run(model, case, half)
    assert got.isfinite().all()
    difference = (got.float() - want).norm() / want.norm()
    assert difference < case.bf16_tolerance, f"relative distance {difference:.2g}"


def test_bf16_training_step(case: FamilyCase) -> None:
    if case.labels is None:
        pytest.skip("has no loss")
    model = build(case).to(torch.bfloat16).train()
    loss = model(**inputs(case), **case.labels(2, torch.Generator().manual_seed(2))).loss
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_every_parameter_gets_a_finite_gradient(case: FamilyCase) -> None:
    model = build(case).train()
    labels = case.labels(2, torch.Generator().manual_seed(2)) if case.labels else {}
    output = model(**inputs(case), **labels)
    loss = (
        output.loss
        if case.labels
        else sum(
            (value.float() * torch.randn(value.shape, generator=torch.Generator().manual_seed(3))).sum()
            for value in flat(output[case.output])
        )
    )
    loss.backward()
    for name, parameter in model.named_parameters():
        if any(part in name for part in case.unused):
            continue
        assert parameter.grad is not None, f"{name}: no gradient"
        assert parameter.grad.isfinite().all(), f"{name}: gradient is not finite"
        assert parameter.grad.abs().sum() > 0, f"{name}: gradient is zero"


def flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [tensor for part in value for tensor in flat(part)]


def test_gradient_checkpointing_changes_nothing(case: FamilyCase) -> None:
    if not any(hasattr(module, "gradient_checkpointing") for module in build(case).modules()):
        pytest.skip("has no layers to checkpoint")
    gradients = []
    for enabled in (False, True):
        model = build(case).train()
        if enabled:
            model.gradient_checkpointing_enable()
            assert model.is_gradient_checkpointing
        torch.manual_seed(5)
        value = model(**inputs(case))[case.output]
        sum(tensor.float().square().sum() for tensor in flat(value)).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=1e-4, atol=1e-5)


def test_builds_on_the_meta_device(case: FamilyCase) -> None:
    with torch.device("meta"):
        model = case.cls(case.config())
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.num_parameters() == build(case).num_parameters()


def test_from_config_fills_every_weight(case: FamilyCase) -> None:
    torch.manual_seed(0)
    model = case.cls.from_config(case.config(), dtype=torch.float32).eval()
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert run(model, case, inputs(case)).isfinite().all()


@pytest.mark.filterwarnings("ignore::vitruvian.errors.NewWeightsWarning")
def test_weights_that_files_lack_are_initialized_as_in_a_new_model(
    case: FamilyCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = case.cls.init_module

    def seeded(model: Model, module: torch.nn.Module) -> None:
        torch.manual_seed(0)
        original(model, module)

    monkeypatch.setattr(case.cls, "init_module", seeded)
    new = case.cls(case.config())
    loaded = case.cls.from_pretrained(None, config=case.config(), state_dict={})
    assert loaded.state_dict().keys() == new.state_dict().keys()
    for name, value in new.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_takes_other_sizes(case: FamilyCase) -> None:
    if not case.sizes:
        pytest.skip("takes one size")
    model = build(case)
    for height, width in case.sizes:
        given = inputs(case)
        given["pixel_values"] = torch.randn(2, 3, height, width)
        assert run(model, case, given).isfinite().all()


# Models that are a part of another one, or run the same operations: tracing a model takes seconds.
COMPILED_WITHIN = {
    "mask2former": "mask2former-universal",
    "maskformer": "maskformer-instance",
    "sam2-hiera": "sam2-clicks",
    "sam2-vision": "sam2-clicks",
    "sapiens2": "sapiens2-pose",
    "sapiens2-pose-recipe": "sapiens2-pose",  # another loss
    "sapiens2-seg": "sapiens2-pose",
    "swin-backbone": "maskformer-instance",
}
# Traced as a backend compiler would see them, without minutes of C++ compilation; of the others, whose operations are
# the same, only the graph is captured.
TRACED_FOR_BACKENDS = {"mask2former-universal", "maskformer-instance", "sam2-clicks", "sapiens2-pose", "sapiens2-4k"}


def test_compiled_equals_eager_without_a_graph_break(case: FamilyCase) -> None:
    whole = COMPILED_WITHIN.get(case.name)
    if whole is not None:
        assert whole in {other.name for other in CASES} - COMPILED_WITHIN.keys()
        pytest.skip(f"compiled as {whole}")
    assert {other.name for other in CASES} >= TRACED_FOR_BACKENDS
    model = build(case)
    given = inputs(case)
    want = run(model, case, given)
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = "aot_eager" if case.name in TRACED_FOR_BACKENDS else "eager"
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        with torch.inference_mode():
            value = compiled(**given)[case.output]
    got = value if isinstance(value, Tensor) else torch.cat([part.flatten() for part in value])
    assert_close(got, want, case.tolerance)


def test_eager_and_sdpa_attention_agree(case: FamilyCase) -> None:
    model = build(case)
    if not any(hasattr(module, "attn_implementation") for module in model.modules()):
        pytest.skip("has no choice of attention")
    given = inputs(case)
    want = run(model, case, given)
    model.set_attn_implementation("eager")
    assert_close(run(model, case, given), want, case.tolerance)
