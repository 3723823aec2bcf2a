"""The encoder of a GPU, with joint matrices, equals the plain one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families.sapiens2 import tiny
from vitruvian.models.sapiens2 import trunk
from vitruvian.models.sapiens2.encoder import Rope, positions
from vitruvian.models.sapiens2.fast import FusedLayer, fuse_encoder, run_layers
from vitruvian.models.sapiens2.modeling import Sapiens2Model

BIASES: list[dict[str, Any]] = [
    {},
    {"proj_bias": False},
    {"mlp_bias": False},
    {"proj_bias": False, "mlp_bias": False, "query_bias": False},
    {"use_qk_norm": False},
]

ADDED = ("attention.o_proj.bias", "layer_scale1.lambda1", "mlp.down_proj.weight", "mlp.down_proj.bias")


def build(**fields: Any) -> Sapiens2Model:
    """A model whose layer scales and biases are large enough to be missed."""
    torch.manual_seed(0)
    model = Sapiens2Model(tiny(**fields)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            far = 0.5 if name.endswith(("lambda1", "bias")) else 0.1
            parameter.add_(torch.randn_like(parameter) * far)
    return model


def embedded(model: Sapiens2Model, height: int = 64, width: int = 48) -> tuple[Tensor, Rope]:
    pixels = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))
    tokens = model.embeddings(pixels.to(model.norm.weight.dtype))
    return tokens, positions(model.config, (height // 16, width // 16), device=tokens.device, training=False)


@torch.no_grad()
def run(model: Sapiens2Model, fused: list[FusedLayer], **size: int) -> Tensor:
    tokens, rope = embedded(model, **size)
    return run_layers(model.model, fused, tokens, rope, model.norm)


@torch.no_grad()
def plain(model: Sapiens2Model, **size: int) -> Tensor:
    tokens, rope = embedded(model, **size)
    found: Tensor = model.norm(model.model(tokens, rope).tokens)
    return found


def distance(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


def close(got: Tensor, want: Tensor) -> None:
    assert distance(got, want) < 1e-5


@pytest.mark.parametrize("fields", BIASES)
def test_layers_add_what_the_plain_ones_add(fields: dict[str, Any]) -> None:
    model = build(**fields)
    want = plain(model), plain(model, height=32, width=80)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fused = fuse_encoder(model.model)
    close(run(model, fused), want[0])
    close(run(model, fused, height=32, width=80), want[1])
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("fields", [{}, {"num_register_tokens": 0}])
@torch.no_grad()
def test_pictures_are_embedded_where_they_belong(fields: dict[str, Any]) -> None:
    model = build(**fields)
    pixels = torch.randn(3, 3, 128, 64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model.embeddings.in_place(pixels), model.embeddings(pixels))


def test_half_precision_is_as_close_as_that_of_the_plain_layers() -> None:
    want = plain(build())
    model = build().to(torch.bfloat16)
    usual = distance(plain(model), want)
    found = distance(run(model, fuse_encoder(model.model)), want)
    assert 1e-4 < found < 1.2 * usual, (found, usual)


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_changed_weight_counts(name: str, replaced: bool) -> None:
    """Nothing is a copy: weights may change, or others take their place."""
    model = build()
    fused = fuse_encoder(model.model)
    before = run(model, fused)
    layer, (path, _, last) = model.model.layer[1], name.rpartition(".")
    with torch.no_grad():
        if replaced:
            setattr(layer.get_submodule(path), last, torch.nn.Parameter(layer.get_parameter(name) * -2.0))
        else:
            layer.get_parameter(name).mul_(-2.0)
    want = plain(model)
    close(run(model, fused), want)
    assert distance(before, want) > 1e-3


def test_loaded_weights_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trunk, "packs", lambda weight: False)
    model, pixels = build().optimize(), torch.randn(2, 3, 64, 48)
    other = build()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
        for given in (build(), other):
            model.load_state_dict(given.state_dict())
            close(model(pixels).last_hidden_state, given(pixels).last_hidden_state)


def test_copies_of_a_model_change_on_their_own() -> None:
    model = build()
    model.fused = fuse_encoder(model.model)
    want = run(model, model.fused)
    again = copy.deepcopy(model)
    assert isinstance(again.fused, list)
    close(run(again, again.fused), want)
    with torch.no_grad():
        for name, parameter in again.model.named_parameters():
            if name.endswith(ADDED):
                parameter.mul_(1.5)
    close(run(again, again.fused), plain(again))
    close(run(model, model.fused), want)
