"""Attention without a maximum equals softmax: the twin, and the kernels with every way of cutting their work."""

from __future__ import annotations

import importlib
import importlib.util
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.unit.kernels.ways import CAN_RUN, INTERPRETED, WAYS, Way
from vitruvian.kernels import attention, fp8
from vitruvian.kernels.attention import Tiling, attend_bounded, largest_score


def has_gluon() -> bool:
    """Tell whether this Triton has what the kernel for Hopper is written in."""
    try:
        importlib.import_module("vitruvian.kernels.attention_hopper")
    except (ImportError, AttributeError):
        return False
    return True


HAS_TRITON = importlib.util.find_spec("triton") is not None
ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
HAS_GLUON = HAS_TRITON and not INTERPRETED and has_gluon()
CASES = [(37, 16, 1), (131, 64, 2), (200, 80, 4), (70, 76, 1), (64, 24, 2)]


def cut(joint: Tensor, keys: Tensor, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as the encoder has them: the former with heads first, values with tokens first."""
    return keys[:, :heads], keys[:, heads:], joint[:, :, heads + heads // groups :].transpose(1, 2)


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.float().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return F.scaled_dot_product_attention(q.float(), k, v, scale=math.log(2)).transpose(1, 2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("tokens", "head_dim", "groups"), CASES)
@pytest.mark.parametrize(
    "tiling",
    [None, Tiling(), Tiling(stages=2), Tiling(rows=64, columns=32)],
    ids=["default", "small", "large", "other"],
)
def test_every_tiling_is_softmax(
    way: str, tokens: int, head_dim: int, groups: int, tiling: Tiling | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Way(way, attention, monkeypatch)
    joint = make.randn(2, tokens, 4 + 2 * (4 // groups), head_dim)
    keys = make.randn(2, 4 + 4 // groups, tokens, head_dim, scale=0.5)
    q, k, v = cut(joint, keys, 4, groups)
    make.close(attend_bounded(q, k, v, tiling), softmax(q, k, v))


@pytest.mark.skipif(not ON_HOPPER, reason="no Hopper GPU")
@pytest.mark.parametrize(
    "tiling",
    [
        Tiling(parts=3, stages=4),
        Tiling(parts=3, stages=4, polynomials=1, unrolled=True),
        Tiling(parts=4, stages=2, polynomials=2),
        Tiling(parts=2, stages=3),
        Tiling(parts=3, stages=3, columns=128, polynomials=1),
    ],
)
@pytest.mark.parametrize(("tokens", "groups"), [(64, 1), (131, 2), (897, 2), (3081, 1)])
def test_groups_of_warps_on_hopper(tiling: Tiling, tokens: int, groups: int) -> None:
    from vitruvian.kernels import attention_hopper

    joint = torch.randn(3, tokens, 4 + 2 * (4 // groups), 64, device="cuda").bfloat16()
    keys = torch.randn(3, 4 + 4 // groups, tokens, 64, device="cuda").bfloat16() * 0.5
    q, k, v = cut(joint, keys, 4, groups)
    if not attention_hopper.fits(q, k, v):
        pytest.skip("another Triton")
    got, want = attend_bounded(q, k, v, tiling).float(), softmax(q, k, v)
    assert (got - want).norm() / want.norm() < 1e-2
    q, k = q.to(fp8.KIND), k.to(fp8.KIND)  # 8 bits, as is what comes out, which is off by a sixteenth at most
    got, want = attention_hopper.attend_bounded(q, k, v, tiling, dtype=fp8.KIND).float(), softmax(q, k, v)
    assert (got - want).norm() / want.norm() < 4e-2


@pytest.mark.skipif(not HAS_GLUON, reason="no Triton with Gluon for Hopper")
@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize(
    ("shape", "parts", "columns", "stages"),
    [
        ((2, 2, 1, 396), 3, 128, 3),
        ((1, 2, 1, 200), 3, 64, 4),
        ((2, 2, 2, 131), 2, 64, 3),
        ((1, 4, 2, 70), 4, 64, 2),
        ((1, 1, 1, 64), 3, 64, 4),
        ((1, 1, 1, 450), 3, 64, 3),
        ((1, 2, 1, 300), 3, 128, 2),
    ],
)
def test_order_of_groups_of_warps(
    shape: tuple[int, ...], parts: int, columns: int, stages: int, unrolled: bool
) -> None:
    """The kernel for Hopper, its Python run with threads: nothing is read too early or waited for in vain."""
    from tests.unit.kernels.groups import Chip, Descriptor, Pointer
    from vitruvian.kernels import attention_hopper

    (B, A, G, N), D, rows = shape, 64, attention_hopper.GROUP_ROWS
    generator = torch.Generator().manual_seed(0)
    joint = torch.randn(B, N, A + 2 * G, D, generator=generator)
    q, k, v = cut(joint, torch.randn(B, A + G, N, D, generator=generator) * 0.5, A, A // G)
    out = torch.full((B, N, A, D), float("nan"))
    full, rest = divmod(A // G * N, parts * rows)
    joined = q.as_strided((B, G, A // G * N, D), (q.stride(0), A // G * q.stride(1), q.stride(2), 1))
    chip = Chip(attention_hopper, "_fold", "_step", "_compute", "_load", "_attend")
    chip(
        "_attend", B * G * (full + (rest > 0)),
        Descriptor(joined), Descriptor(k), Descriptor(v), Pointer(out), N, full, B * G * full,
        A, A // G, D, rows, columns, stages, parts, 0, 0, unrolled, 2, 2,
    )  # fmt: skip
    torch.testing.assert_close(out, softmax(q, k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not HAS_TRITON or not CAN_RUN, reason="no Triton, or nothing to run it on")
def test_tilings_for_hopper_fall_back_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way("kernel", attention, monkeypatch)
    if INTERPRETED:  # Gluon has no interpreter
        monkeypatch.setattr(attention, "takes_kernel", lambda *tensors, name="": name != "attention_hopper")
    q, k, v = (make.randn(1, 2, 40, 16) for _ in range(3))
    make.close(attend_bounded(q, k, v, Tiling(parts=3)), softmax(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_largest_scores_keep_their_digits(dtype: torch.dtype) -> None:
    """Weights of the largest and the smallest score, a little more and a little less, are still apart."""
    for sign in (1, -1):
        edge = torch.tensor([1.0, 1.01]) * 2.0 ** (sign * largest_score(dtype))
        rounded = edge.to(dtype).float()
        assert torch.isfinite(rounded).all()
        assert rounded[0] < rounded[1]
