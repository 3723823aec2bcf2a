"""Products of 8-bit floating-point numbers: roundings, kernels next to their twins, and how far results move."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.families.sapiens2 import tiny
from tests.unit.kernels.ways import INTERPRETED, WAYS, Way
from vitruvian.errors import InputError
from vitruvian.kernels import fp8
from vitruvian.models.sapiens2.encoder import positions
from vitruvian.models.sapiens2.fast import balanced_norms, fuse_encoder, run_layers
from vitruvian.models.sapiens2.modeling import Sapiens2Model

HALF_STEP = 2.0**-4  # three digits: a value is off by a sixteenth at most


def is_rounded(rows: fp8.Rows, want: Tensor, *, interpreted: bool = False) -> None:
    """Check that rows are a rounding of `want`, each with a scale of its own."""
    assert rows.values.dtype == fp8.KIND
    assert rows.scales.shape == (*want.shape[:-1], 1)
    want = want.float()
    most = want.abs().amax(-1, keepdim=True)
    small = most * 2.0**-15  # subnormal values are off by a share of the largest one
    good = (rows.wide() - want).abs() <= HALF_STEP * want.abs() * 1.01 + small
    # Triton's interpreter halves what it should round up to the next power of two: a sixteenth of all values at most.
    assert good.float().mean() > 0.85 if interpreted else good.all()
    torch.testing.assert_close(rows.wide().abs().amax(-1, keepdim=True), most, rtol=1e-2, atol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("channels", [16, 40, 1280])
def test_rows_have_scales_of_their_own(way: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way(way, fp8, monkeypatch)
    x = make.randn(2, 3, channels) * torch.tensor([1e-3, 1.0, 500.0])[:, None].to(make.randn(1).device)
    is_rounded(fp8.round_rows(x), x, interpreted=way == "kernel" and INTERPRETED)
    nothing = fp8.round_rows(torch.zeros_like(x))
    assert torch.equal(nothing.wide(), torch.zeros_like(x).float())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("channels", [64, 96])
def test_add_and_norm(way: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way(way, fp8, monkeypatch)
    x, branch, scale, weight = (make.randn(*shape) for shape in ((3, 5, channels),) * 2 + ((channels,),) * 2)
    for given, factor in ((branch, scale), (branch, None), (None, None)):
        total = x.clone()
        rows = fp8.add_norm_rows_(total, given, factor, weight, eps=1e-6)
        want = x.float() + (0 if given is None else given.float() * (1 if factor is None else factor.float()))
        make.close(total, want)
        want = F.rms_norm(total.float(), (channels,), weight.float(), 1e-6)
        is_rounded(rows, want, interpreted=way == "kernel" and INTERPRETED)


@pytest.mark.parametrize("with_bias", [True, False])
def test_products(with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((2, 5, 48), (64, 48), (64,)))
    rows, rounded = fp8.round_rows(x), fp8.round_rows(weight)
    given = bias if with_bias else None
    got = fp8.linear_rows(rows, rounded, given, dtype=torch.float32)
    torch.testing.assert_close(got, F.linear(rows.wide(), rounded.wide(), given))
    both = F.linear(rows.wide(), rounded.wide(), given)
    fit = torch.rand(32, generator=generator) + 0.5
    inner = fp8.gated_linear_rows(rows, rounded, given, fit, dtype=torch.float32)
    assert inner.values.dtype == fp8.KIND
    assert (inner.scales == 1).all()
    want = F.silu(both[..., 0::2]) * both[..., 1::2] * fit
    far = (inner.wide() - want).abs()
    assert (far <= HALF_STEP * want.abs() * 1.01 + 2.0**-10).all()


@pytest.mark.parametrize("with_bias", [True, False])
def test_nothing_exceeds_the_reach_of_a_gate(with_bias: bool) -> None:
    """Tokens that point along the rows of the matrix come near to it, and none gets past it."""
    generator = torch.Generator().manual_seed(0)
    norm, weight, bias = (torch.randn(shape, generator=generator) for shape in ((48,), (64, 48), (64,)))
    given = bias if with_bias else None
    reach = fp8.gated_reach(norm, weight, given)  # [32]
    scaled = weight * norm
    tokens = torch.cat((torch.randn(500, 48, generator=generator), scaled[0::2], scaled[0::2] + scaled[1::2]))
    both = F.linear(F.rms_norm(tokens, (48,), norm, 1e-6), weight, given)
    found = (F.silu(both[:, 0::2]) * both[:, 1::2]).abs().amax(0)
    assert (found <= reach * 1.0001).all()
    assert (found / reach).max() > 0.1
    twins = weight.clone()
    twins[1::2] = twins[0::2]  # gate and up are one: the largest there is
    most = F.linear(F.rms_norm(scaled[:1], (48,), norm, 1e-6), twins)[0, 0]
    reach = fp8.gated_reach(norm, twins, None)
    torch.testing.assert_close(F.silu(most) * most, reach[0], rtol=1e-3, atol=0)


def test_attention_takes_and_gives_eight_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 37, 16, generator=generator) for heads in (4, 2, 2))
    q, k, v = q.mul(0.5).to(fp8.KIND), k.to(fp8.KIND), v * 100
    got = fp8.attend_rows(q, k, v)
    assert (got.values.dtype, got.values.shape, got.scales.unique().tolist()) == (fp8.KIND, (2, 37, 64), [1.0])
    wide = (x.float().repeat_interleave(4 // x.shape[1], dim=1) for x in (q, k, v))
    want = F.scaled_dot_product_attention(*wide, scale=math.log(2)).transpose(1, 2).flatten(2)
    far = (got.wide() - want).abs()
    assert (far <= HALF_STEP * want.abs() * 1.01 + 2.0**-10).all()


def test_norms_of_queries_and_keys_share_the_factor() -> None:
    attention: Any = Sapiens2Model(tiny()).model.layer[0].attention
    with torch.no_grad():
        attention.q_norm.weight.copy_(torch.linspace(0.01, 0.1, attention.head_dim))
        attention.k_norm.weight.copy_(torch.linspace(5, 9, attention.head_dim))
    q, k = balanced_norms(attention)
    torch.testing.assert_close(q.square().mean(), k.square().mean())
    want = attention.q_norm.weight * attention.k_norm.weight * math.log2(math.e) / math.sqrt(attention.head_dim)
    torch.testing.assert_close(q * k, want.detach())


@pytest.mark.parametrize("with_bias", [True, False])
def test_nothing_exceeds_the_reach_of_a_layer(with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    norm, weight, bias = (torch.randn(shape, generator=generator) for shape in ((48,), (64, 48), (64,)))
    given = bias.abs() if with_bias else None
    reach = fp8.linear_reach(norm, weight, given)  # [64]
    along = weight / norm * norm.square()  # its norm points where a row of the matrix, scaled, does
    found = F.linear(F.rms_norm(along, (48,), norm, 0.0), weight, given)
    assert (found <= reach * 1.0001).all()
    torch.testing.assert_close(found.diagonal(), reach)


@pytest.mark.parametrize("fields", [{}, {"mlp_bias": False, "key_bias": False}, {"use_qk_norm": False}])
def test_encoder_in_eight_bits_stays_close(fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Sapiens2Model(tiny(**fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        pixels = torch.randn(2, 3, 64, 48)
        want = model(pixels).last_hidden_state
        tokens = model.embeddings(pixels)
        rope = positions(model.config, (4, 3), device=tokens.device, training=False)
        far = {}
        for eight in (False, True):
            fused = fuse_encoder(model.model, eight_bits=eight)
            assert all((layer.eight is not None) == eight for layer in fused)
            got = run_layers(model.model, fused, tokens.clone(), rope, model.norm)
            far[eight] = float((got - want).norm() / want.norm())
    assert far[False] < 1e-5
    assert 1e-4 < far[True] < 0.1, far  # 8 bits were used, and are enough


def test_who_can_have_eight_bits() -> None:
    model = Sapiens2Model(tiny()).eval()
    if fp8.can_multiply(torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        with pytest.raises(InputError, match="bfloat16"):
            model.cuda().optimize(fp8=True)
    else:
        with pytest.raises(InputError, match="Hopper"):
            model.optimize(fp8=True)
    assert not model.optimized
    assert model.optimize(fp8=False).optimized
