"""The encoder and heads after optimize() on the CPU: chunks, copies, pickles, compilation, changed weights."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families.sapiens2 import DECONVOLUTION, SHUFFLE, tiny
from vitruvian.kernels import linear_cpu
from vitruvian.models.sapiens2 import fast_cpu
from vitruvian.models.sapiens2.encoder import positions
from vitruvian.models.sapiens2.fast_cpu import FastEncoder, FeedForward, FeedForwardBySevens, attend_in_lanes
from vitruvian.models.sapiens2.heads import CpuHead
from vitruvian.models.sapiens2.modeling import Sapiens2ForPoseEstimation, Sapiens2Model
from vitruvian.ops.attention import attention

pytestmark = pytest.mark.skipif(not linear_cpu.has_packed(), reason="torch has no packed linear layers here")


def build(head: dict[str, Any] = DECONVOLUTION, **fields: Any) -> Sapiens2ForPoseEstimation:
    torch.manual_seed(0)
    model = Sapiens2ForPoseEstimation(tiny(num_labels=5, head_config=head, **fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def pixels(batch: int = 2, height: int = 64, width: int = 48) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


def heatmaps(model: Any, batch: int = 2, **size: int) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(pixels(batch, **size)).heatmaps
    return found


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=["packed", "plain"])
def packing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With products of oneDNN and with plain ones, wherever the tests run."""
    monkeypatch.setattr(linear_cpu, "packing_pays", lambda: request.param == "packed")
    return str(request.param)


@pytest.mark.parametrize("rows", [1, 5, 512])
@pytest.mark.parametrize("fields", [{}, {"use_qk_norm": False}, {"query_bias": False, "mlp_bias": False}])
def test_chunks_give_what_whole_layers_give(
    rows: int, threads: int, packing: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_cpu, "ROWS", rows)
    model = build(**fields)
    want = heatmaps(model, 3), heatmaps(model, 1, height=96, width=32)
    model.optimize()
    assert isinstance(model.model.fused, FastEncoder)
    assert isinstance(model.decode_head.fast, CpuHead)
    for got, wanted in zip((heatmaps(model, 3), heatmaps(model, 1, height=96, width=32)), want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [5, 512])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mlp_bias": False, "query_bias": False, "key_bias": False},
        {"intermediate_size": 47},
        {"num_key_value_attention_heads": 1},
    ],
)
def test_wide_layers_by_seven_products(
    rows: int, threads: int, packing: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_cpu, "ROWS", rows)
    monkeypatch.setattr(fast_cpu, "WIDE", 32)
    monkeypatch.setattr(fast_cpu, "MANY_ROWS", 2)
    model = build(**fields)
    want = heatmaps(model, 3)
    torch.testing.assert_close(heatmaps(model.optimize(), 3), want, rtol=1e-4, atol=1e-5)
    kind = FeedForward if "intermediate_size" in fields else FeedForwardBySevens
    encoder = model.model.fused
    assert isinstance(encoder, FastEncoder)
    assert all(isinstance(layer.feed_forward, kind) for layer in encoder.layers[True])
    halves = "intermediate_size" not in fields and packing == "plain"
    odd = "num_key_value_attention_heads" in fields
    assert [layer.sevens for layer in encoder.layers[True]] == [halves, halves and not odd, halves and not odd, halves]


def test_few_rows_or_channels_take_whole_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_cpu, "WIDE", 32)
    monkeypatch.setattr(fast_cpu, "MANY_ROWS", 10)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = build().optimize()
        encoder = model.model.fused
        assert isinstance(encoder, FastEncoder)
        heatmaps(model, 1, height=16, width=16)  # 5 tokens
        assert list(encoder.layers) == [False]
        heatmaps(model, 1)  # 16 tokens
        assert list(encoder.layers) == [False, True]
        assert isinstance(encoder.layers[False][0].feed_forward, FeedForward)
        monkeypatch.setattr(fast_cpu, "WIDE", 33)
        encoder.layers.clear()
        heatmaps(model, 1)
        assert list(encoder.layers) == [False]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_in_lanes(groups: int, threads: int) -> None:
    q, k, v = torch.randn(2, 4, 7, 8), torch.randn(2, groups, 7, 8), torch.randn(2, groups, 7, 8)
    want, _ = attention(q, k, v, implementation="eager")
    torch.testing.assert_close(attend_in_lanes(q, k, v), want.transpose(1, 2).flatten(2))


def test_autocast_leaves_it_in_float32(threads: int) -> None:
    model = build().optimize()
    encoder, head = model.model.fused, model.decode_head.fast
    assert isinstance(encoder, FastEncoder)
    assert isinstance(head, CpuHead)
    rope = positions(model.config, (4, 3), device=torch.device("cpu"), training=False)
    tokens, features = torch.randn(2, 17, 32), torch.randn(2, 32, 4, 3)
    with torch.inference_mode():
        want = encoder(tokens, rope), head(features)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = encoder(tokens, rope), head(features)
            assert model(pixels()).heatmaps.dtype == torch.float32
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_tokens_and_the_pooled_one() -> None:
    torch.manual_seed(0)
    model = Sapiens2Model(tiny()).eval()
    with torch.inference_mode():
        want = model(pixels())
        got = model.optimize()(pixels())
    torch.testing.assert_close(got.last_hidden_state, want.last_hidden_state, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.pooler_output, want.pooler_output, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", [DECONVOLUTION, SHUFFLE])
def test_copies_and_pickles_of_a_model_in_use(head: dict[str, Any], packing: str) -> None:
    model = build(head).optimize()
    want = heatmaps(model)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(heatmaps(again), want)
        with torch.no_grad():
            again.decode_head.predictor.bias.add_(1)
            again.model.model.layer[0].norm1.weight.mul_(2)
        assert not torch.allclose(heatmaps(again), want + 1)
    assert torch.equal(heatmaps(model), want)


@pytest.mark.parametrize("wide", [32, 33], ids=["sevens", "whole"])
def test_changed_weights_count(wide: int, packing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_cpu, "WIDE", wide)
    monkeypatch.setattr(fast_cpu, "MANY_ROWS", 2)
    model, plain = build().optimize(), build()
    heatmaps(model)
    with torch.no_grad():
        for one in (model, plain):
            for parameter in one.parameters():
                parameter.mul_(1.1)
    torch.testing.assert_close(heatmaps(model), heatmaps(plain), rtol=1e-4, atol=1e-5)


def test_compiled_after_optimize() -> None:
    model = build().optimize()
    want = heatmaps(model)
    torch.compiler.reset()
    torch.testing.assert_close(
        heatmaps(torch.compile(model, fullgraph=True, backend="aot_eager")), want, rtol=1e-4, atol=1e-5
    )
