"""Each kernel equals plain torch: the twin here, the Triton kernel on a CUDA device where there is one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.kernels.attention import attend_bounded, score_bound
from vitruvian.kernels.fused import add_norm_, gated_linear, instance_norm_silu, norm_rotate

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]
pytestmark = pytest.mark.parametrize("device", DEVICES)


def randn(*shape: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(device, torch.bfloat16 if device == "cuda" else torch.float32)


def close(got: Tensor, want: Tensor) -> None:
    tolerance = 2e-2 if got.is_cuda else 1e-5
    assert got.shape == want.shape
    error = (got.float() - want.float()).abs().max() / (1 + want.float().abs().max())
    assert error < tolerance, f"{error:.2g}"


@pytest.mark.parametrize("head_dim", [16, 64, 80])
@pytest.mark.parametrize("with_norm", [True, False])
def test_norm_and_rotation(device: str, head_dim: int, with_norm: bool) -> None:
    qkv = randn(2, 37, 4 + 2 * 2, head_dim, device=device)
    weights = [randn(head_dim, device=device) for _ in range(2)] if with_norm else [None, None]
    angles = randn(37, head_dim // 2, device=device).float()
    got = norm_rotate(
        qkv, weights[0], weights[1], angles.cos(), angles.sin(), q_heads=4, k_heads=2, eps=1e-6, q_scale=0.5
    )
    for part, heads, weight, scale in (
        (got[:, :4], slice(0, 4), weights[0], 0.5),
        (got[:, 4:], slice(4, 6), weights[1], 1),
    ):
        x = qkv[:, :, heads].float()
        if weight is not None:
            x = F.rms_norm(x, (head_dim,), weight.float(), 1e-6)
        turned = (
            torch.view_as_complex(torch.stack(x.chunk(2, -1), -1).contiguous())
            * torch.polar(torch.ones_like(angles), angles)[:, None]
        )
        want = torch.cat((turned.real, turned.imag), -1) * scale
        close(part, want.transpose(1, 2))


@pytest.mark.parametrize(("tokens", "head_dim", "groups"), [(37, 16, 1), (131, 64, 2), (200, 80, 4)])
def test_bounded_attention_is_softmax(device: str, tokens: int, head_dim: int, groups: int) -> None:
    q, k, v = (randn(2, heads, tokens, head_dim, device=device) for heads in (4, 4 // groups, 4 // groups))
    scaled = q * (math.log2(math.e) / math.sqrt(head_dim))
    want = F.scaled_dot_product_attention(
        q.float(), k.float().repeat_interleave(groups, 1), v.float().repeat_interleave(groups, 1)
    )
    close(attend_bounded(scaled, k, v), want.transpose(1, 2))


def test_score_bound_holds(device: str) -> None:
    weights = randn(2, 64, device=device)
    q, k = (F.rms_norm(randn(500, 64, device=device), (64,)) * weight for weight in weights)
    scores = (q.float() @ k.float().T) / 8 * math.log2(math.e)
    assert scores.abs().max() <= score_bound(64, weights[0], weights[1])


@pytest.mark.parametrize("channels", [64, 96, 1280])
def test_add_and_norm(device: str, channels: int) -> None:
    x, branch, scale, weight = (randn(*shape, device=device) for shape in ((3, 5, channels),) * 2 + ((channels,),) * 2)
    for given, factor in ((branch, scale), (branch, None), (None, None)):
        total = x.clone()
        out = add_norm_(total, given, factor, weight, eps=1e-6)
        want = x.float() + (0 if given is None else given.float() * (1 if factor is None else factor.float()))
        close(total, want)
        close(out, F.rms_norm(want, (channels,), weight.float(), 1e-6))


@pytest.mark.parametrize(("rows", "width", "hidden"), [(7, 64, 128), (130, 128, 256), (9, 48, 40)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_gated_linear(device: str, rows: int, width: int, hidden: int, with_bias: bool) -> None:
    x, weight = randn(2, rows, width, device=device), randn(2 * hidden, width, device=device) / 8
    bias = randn(2 * hidden, device=device) if with_bias else None
    both = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    close(gated_linear(x, weight, bias), F.silu(both[..., 0::2]) * both[..., 1::2])


@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 12, 33, 40), (3, 132, 16, 16)])
@pytest.mark.parametrize("shuffles", [True, False])
@pytest.mark.parametrize("offset", [0.0, 40.0])
def test_instance_norm(device: str, shape: tuple[int, ...], shuffles: bool, offset: float) -> None:
    x = (randn(*shape, device=device) + offset).contiguous(memory_format=torch.channels_last)
    bias = randn(shape[1], device=device)
    want = x.float() + bias.float()[:, None, None]
    if shuffles:
        phases = want.view(shape[0], 4, shape[1] // 4, *shape[2:]).transpose(1, 2).reshape(shape)
        want = F.pixel_shuffle(phases, 2)
    want = F.silu(F.instance_norm(want))
    got = instance_norm_silu(x, bias, shuffles=shuffles)
    error = (got.float() - want).abs().mean()
    assert got.shape == want.shape
    assert error < (2e-2 if device == "cuda" else 1e-4)
