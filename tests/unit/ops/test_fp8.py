"""Products in fp8: quantization, every version of the kernels, and bounds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops.fp8 import (
    Fp8Rows,
    add_rms_norm_fp8,
    fp8_obstacle,
    gated_linear_bound,
    gated_linear_fp8,
    linear_fp8,
    quantize_rows,
)

HALF_STEP = 2.0**-4  # three digits: a value is off by at most a sixteenth


def assert_quantized(rows: Fp8Rows, want: Tensor, version: str) -> None:
    """Check that rows are `want` in fp8, with a scale for each."""
    assert rows.values.dtype == torch.float8_e4m3fn
    assert rows.scales.shape == (*want.shape[:-1], 1)
    want = want.float()
    largest = want.abs().amax(-1, keepdim=True)
    good = (rows.dequantize() - want).abs() <= HALF_STEP * want.abs() * 1.01 + largest * 2.0**-15
    # Triton's interpreter halves values that should be rounded up to the next power of two: at most a sixteenth.
    assert good.float().mean() > 0.85 if version == "interpreter" else good.all()
    torch.testing.assert_close(rows.dequantize().abs().amax(-1, keepdim=True), largest, rtol=1e-2, atol=0)


@every_version
@pytest.mark.parametrize("channels", [16, 40, 1280])
def test_each_row_has_a_scale(version: str, channels: int) -> None:
    x = randn(2, 3, channels, version=version)
    x = x * torch.tensor([1e-3, 1.0, 500.0], device=x.device, dtype=x.dtype)[:, None]
    assert_quantized(quantize_rows(x), x, version)
    assert not quantize_rows(torch.zeros_like(x)).dequantize().any()


@every_version
@pytest.mark.parametrize("channels", [64, 96])
def test_sum_and_norm(version: str, channels: int) -> None:
    x, branch = (randn(3, 5, channels, version=version, seed=seed) for seed in (1, 2))
    weight, scale = (randn(channels, version=version, seed=seed) for seed in (3, 4))
    for added, factor in ((branch, scale), (branch, None), (None, None)):
        total, rows = add_rms_norm_fp8(x, added, weight, eps=1e-6, scale=factor)
        want = x.float() + (0 if added is None else added.float() * (1 if factor is None else factor.float()))
        assert_close(total, want)
        assert_quantized(rows, F.rms_norm(total.float(), (channels,), weight.float(), 1e-6), version)


@pytest.mark.parametrize("has_bias", [True, False])
def test_products(has_bias: bool) -> None:
    x, weight = quantize_rows(randn(2, 5, 48, seed=1)), quantize_rows(randn(64, 48, seed=2))
    bias, scale = randn(64, seed=3) if has_bias else None, randn(32, seed=4).abs() + 0.5
    want = F.linear(x.dequantize(), weight.dequantize(), bias)
    torch.testing.assert_close(linear_fp8(x, weight, bias, dtype=torch.float32), want)
    hidden = gated_linear_fp8(x, weight, bias, scale, dtype=torch.float32)
    assert (hidden.scales == 1).all()
    want = F.silu(want[..., 0::2]) * want[..., 1::2] * scale
    assert ((hidden.dequantize() - want).abs() <= HALF_STEP * want.abs() * 1.01 + 2.0**-10).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("has_bias", [True, False])
def test_products_on_a_gpu(has_bias: bool) -> None:
    if fp8_obstacle(torch.device("cuda"), torch.bfloat16):
        pytest.skip("needs fp8")
    x, weight = (quantize_rows(randn(*shape, seed=1).cuda().bfloat16()) for shape in ((2, 100, 128), (512, 128)))
    bias = randn(512, seed=3).cuda().bfloat16() if has_bias else None
    scale = torch.full((256,), 0.1, device="cuda")
    plain = (Fp8Rows(*(part.cpu() for part in rows)) for rows in (x, weight))
    both = F.linear(*(rows.dequantize() for rows in plain), None if bias is None else bias.cpu().float())
    assert_close(linear_fp8(x, weight, bias, dtype=torch.bfloat16).cpu(), both)
    want = (F.silu(both[..., 0::2]) * both[..., 1::2] * 0.1).clamp(-448, 448)
    assert_close(
        gated_linear_fp8(x, weight, bias, scale, dtype=torch.bfloat16).dequantize().cpu(), want, tolerance=0.05
    )


@pytest.mark.parametrize("has_bias", [True, False])
def test_no_gate_exceeds_its_bound(has_bias: bool) -> None:
    norm, weight = randn(48, seed=1), randn(64, 48, seed=2)
    bias = randn(64, seed=3) if has_bias else None
    bound = gated_linear_bound(norm, weight, bias)  # [32]
    scaled = weight * norm
    tokens = torch.cat((randn(500, 48, seed=4), scaled[0::2], scaled[0::2] + scaled[1::2]))
    both = F.linear(F.rms_norm(tokens, (48,), norm, 1e-6), weight, bias)
    largest = (F.silu(both[:, 0::2]) * both[:, 1::2]).abs().amax(0)
    assert (largest <= bound * 1.0001).all()
    assert (largest / bound).max() > 0.1
    equal = weight.clone()
    equal[1::2] = equal[0::2]  # gate and up are the same: the bound is met
    value = F.linear(F.rms_norm(scaled[:1], (48,), norm, 1e-6), equal)[0, 0]
    torch.testing.assert_close(F.silu(value) * value, gated_linear_bound(norm, equal, None)[0], rtol=1e-3, atol=0)


def test_requirements_are_named() -> None:
    assert "Hopper" in str(fp8_obstacle(torch.device("cpu"), torch.bfloat16))
