"""The encoder: kernels, joined weights and fp8 give the numbers of the plain model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families.sapiens2 import tiny
from tests.unit.ops.versions import NO_INTERPRETER
from vitruvian.errors import InputError
from vitruvian.models.sapiens2.encoder import Sapiens2Layer
from vitruvian.models.sapiens2.modeling import Sapiens2Model
from vitruvian.ops import dispatch

VARIANTS: list[dict[str, Any]] = [
    {},
    {"proj_bias": False},
    {"mlp_bias": False},
    {"proj_bias": False, "mlp_bias": False, "query_bias": False},
    {"use_qk_norm": False},
    {"num_register_tokens": 0},
    {"use_tokenizer": True, "tokenizer_window_size": 2},
]


def build(**fields: Any) -> Sapiens2Model:
    """A model with large layer scales and biases."""
    torch.manual_seed(0)
    model = Sapiens2Model(tiny(**fields)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.5 if name.endswith(("lambda1", "bias")) else 0.1))
    return model


def prepare(model: Sapiens2Model, *, fp8: bool = False) -> Sapiens2Model:
    """Do what `optimize` does on a GPU."""
    for layer in model.model.layer:
        assert isinstance(layer, Sapiens2Layer)
        layer.join_weights()
        if fp8:
            layer.quantize()
    return model


@torch.no_grad()
def run(model: Sapiens2Model, size: tuple[int, int] = (64, 96)) -> Tensor:
    pixels = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    tokens = model(pixels).last_hidden_state
    assert tokens is not None
    return tokens


def distance(out: Tensor, want: Tensor) -> float:
    return float((out.float() - want).norm() / want.norm())


@pytest.mark.parametrize("fields", VARIANTS)
def test_joined_weights(fields: dict[str, Any]) -> None:
    model = build(**fields)
    want = run(model), run(model, (32, 160))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prepare(model)
    assert distance(run(model), want[0]) < 1e-5
    assert distance(run(model, (32, 160)), want[1]) < 1e-5
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@NO_INTERPRETER
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("fields", VARIANTS)
def test_kernels(fields: dict[str, Any], joined: bool) -> None:
    model = build(**fields, num_hidden_layers=2, num_key_value_heads_per_layer=None)
    want = run(model, (32, 32))
    if joined:
        prepare(model)
    with dispatch.interpret_triton():
        assert distance(run(model, (32, 32)), want) < 1e-5


@pytest.mark.parametrize("name", ["attention.q_proj.weight", "attention.o_proj.bias", "mlp.up_proj.weight"])
@pytest.mark.parametrize("replaced", [False, True])
def test_changed_weights_take_effect(name: str, replaced: bool) -> None:
    model = prepare(build())
    before = run(model)
    layer, (path, _, leaf) = model.model.layer[1], name.rpartition(".")
    with torch.no_grad():
        if replaced:
            setattr(layer.get_submodule(path), leaf, torch.nn.Parameter(layer.get_parameter(name) * -2.0))
        else:
            layer.get_parameter(name).mul_(-2.0)
    plain = build()
    plain.load_state_dict(model.state_dict())
    assert distance(run(model), run(plain)) < 1e-5
    assert distance(before, run(plain)) > 1e-3


def test_copies_have_their_own_joined_weights() -> None:
    model = prepare(build())
    want = run(model)
    again = copy.deepcopy(model)
    attention = again.model.layer[0].attention
    with torch.no_grad():
        assert attention.joined.is_usable(attention.q_proj, attention.k_proj, attention.v_proj)  # type: ignore[union-attr]
    assert attention.joined.weight.data_ptr() == attention.q_proj.weight.data_ptr()  # type: ignore[union-attr]
    assert distance(run(again), want) < 1e-6
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.mul_(1.5)
    assert distance(run(again), want) > 1e-3
    assert torch.equal(run(model), want)


def test_gradients_flow_to_joined_weights() -> None:
    plain, joined = build(), prepare(build())
    for model in (plain, joined):
        model(torch.ones(1, 3, 64, 96)).last_hidden_state.square().mean().backward()
    for (name, a), (_, b) in zip(plain.named_parameters(), joined.named_parameters(), strict=True):
        if a.grad is not None:
            assert b.grad is not None, name
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", ["loaded", "cast", "trained"])
def test_optimized_models_follow_new_weights(how: str) -> None:
    model, other = build().optimize(), build()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
        if how == "loaded":
            model.load_state_dict(other.state_dict())
        elif how == "cast":
            model.double()
            model.load_state_dict(other.state_dict())
            other.double()
        else:
            model.train()
            for parameter in model.parameters():
                parameter.mul_(1.1)
            model.eval()
    assert model.optimized
    assert distance(run(model), run(other)) < 1e-5


def test_hidden_states_and_attentions() -> None:
    model = build()
    with torch.no_grad():
        output = model(torch.ones(1, 3, 64, 96), output_hidden_states=True, output_attentions=True)
    assert output.hidden_states is not None
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1
    torch.testing.assert_close(model.norm(output.hidden_states[-1]), output.last_hidden_state)
    assert all(weights.sum(-1).allclose(torch.ones(())) for weights in output.attentions or ())


class TestFp8:
    def test_is_close(self) -> None:
        model = build()
        want = run(model)
        out = run(prepare(model, fp8=True))
        assert 1e-3 < distance(out, want) < 0.1

    def test_gradients_ignore_it(self) -> None:
        plain, model = build(), prepare(build(), fp8=True)
        pixels = torch.ones(1, 3, 64, 96)
        torch.testing.assert_close(model(pixels).last_hidden_state, plain(pixels).last_hidden_state)

    @pytest.mark.parametrize(("fields", "missing"), [({}, "Hopper"), ({"hidden_act": "gelu"}, "SiLU")])
    def test_requirements_are_named(self, fields: dict[str, Any], missing: str) -> None:
        with pytest.raises(InputError, match=missing):
            build(**fields).optimize(fp8=True)
