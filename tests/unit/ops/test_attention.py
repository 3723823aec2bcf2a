import math
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from vitruvian import InputError
from vitruvian.ops.attention import attention, check_implementation

KERNELS = ["sdpa", "eager", "flash_attention_2"]  # the last falls back on the CPU


def tensors(heads: int = 4, groups: int = 2, queries: int = 5, keys: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, heads, queries, 8, generator=generator)
    k, v = torch.randn(2, 2, groups, keys, 8, generator=generator)
    return q, k, v


def by_hand(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    """One query, one head at a time."""
    out = torch.zeros_like(q)
    per_group = q.shape[1] // k.shape[1]
    for b, h, n in torch.cartesian_prod(*(torch.arange(s) for s in q.shape[:3])).tolist():
        group = h // per_group
        scores = (k[b, group] @ q[b, h, n]) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
        if mask is not None:
            row = mask.expand(*q.shape[:3], k.shape[2])[b, h, n]
            scores = scores.masked_fill(~row, -math.inf) if row.dtype == torch.bool else scores + row
        out[b, h, n] = scores.softmax(0) @ v[b, group]
    return out


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (4, 1)])
def test_numbers(kernel: str, heads: int, groups: int) -> None:
    q, k, v = tensors(heads, groups)
    out, weights = attention(q, k, v, implementation=kernel)
    torch.testing.assert_close(out, by_hand(q, k, v))
    assert (weights is None) == (kernel != "eager")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", ["boolean", "added", "per head"])
def test_masks(kernel: str, kind: str) -> None:
    q, k, v = tensors()
    seen = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(1)) > 0.4
    seen[..., 0] = True
    mask = {"boolean": seen, "added": seen.float() * 3, "per head": seen.expand(2, 4, 5, 7).clone()}[kind]
    out, _ = attention(q, k, v, implementation=kernel, mask=mask)
    torch.testing.assert_close(out, by_hand(q, k, v, mask=mask))


@pytest.mark.parametrize("kernel", KERNELS)
def test_scale(kernel: str) -> None:
    q, k, v = tensors()
    torch.testing.assert_close(attention(q, k, v, implementation=kernel, scale=0.7)[0], by_hand(q, k, v, scale=0.7))


@pytest.mark.parametrize("kernel", KERNELS)
def test_weights_on_demand(kernel: str) -> None:
    q, k, v = tensors()
    out, weights = attention(q, k, v, implementation=kernel, need_weights=True)
    assert weights is not None
    assert weights.shape == (2, 4, 5, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))
    torch.testing.assert_close(out, weights @ v.repeat_interleave(2, dim=1))
    torch.testing.assert_close(out, attention(q, k, v)[0])


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_gradients_agree(kernel: str) -> None:
    found = []
    for run in (lambda q, k, v: attention(q, k, v, implementation=kernel)[0], by_hand):
        inputs = [tensor.requires_grad_() for tensor in tensors()]
        run(*inputs).square().sum().backward()  # type: ignore[no-untyped-call]
        found.append([tensor.grad for tensor in inputs])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_softmax_in_float32_whatever_the_type() -> None:
    q, k, v = (tensor.bfloat16() for tensor in tensors(groups=4))
    out, weights = attention(q, k, v, implementation="eager")
    assert weights is not None
    assert out.dtype == weights.dtype == torch.bfloat16
    want = ((q @ k.transpose(-2, -1)) * 8**-0.5).float().softmax(-1).bfloat16()
    assert torch.equal(weights, want)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_dropout(kernel: str) -> None:
    q, k, _ = tensors(groups=4, keys=200)
    v = torch.ones(2, 4, 200, 8)
    torch.manual_seed(0)
    dropped, _ = attention(q, k, v, implementation=kernel, dropout=0.5)
    assert dropped.std() > 0.01
    assert abs(dropped.mean() - 1) < 0.1  # what remains is scaled up
    whole, _ = attention(q, k, v, implementation=kernel)
    torch.testing.assert_close(whole, torch.ones_like(whole))


class TestFlash:
    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
        """Stand-ins for the packages, which need a GPU: they note how they were called, and compute by hand."""
        found: list[dict[str, Any]] = []

        def kernel(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
            found.append(options)
            q, k, v = (tensor.transpose(1, 2).float() for tensor in (q, k, v))
            out = by_hand(q, k, v, scale=options["softmax_scale"]).transpose(1, 2)
            return (out, None) if "dropout_p" not in options else out

        for name in ("flash_attn", "flash_attn_interface"):
            module = ModuleType(name)
            module.flash_attn_func = kernel  # type: ignore[attr-defined]
            module.__spec__ = __import__("importlib.machinery").machinery.ModuleSpec(name, None)
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(Tensor, "is_cuda", True)
        return found

    @pytest.mark.parametrize("kernel", ["flash_attention_2", "flash_attention_3"])
    def test_called_with_tokens_before_heads(self, kernel: str, calls: list[dict[str, Any]]) -> None:
        check_implementation(kernel)
        q, k, v = (tensor.half() for tensor in tensors())
        out, _ = attention(q, k, v, implementation=kernel, scale=0.3)
        torch.testing.assert_close(out, by_hand(q.float(), k.float(), v.float(), scale=0.3))
        assert [call["softmax_scale"] for call in calls] == [0.3]

    def test_left_out_where_it_cannot_serve(self, calls: list[dict[str, Any]]) -> None:
        q, k, v = tensors(groups=4)
        attention(q, k, v, implementation="flash_attention_2")  # float32
        mask = torch.ones(5, 7, dtype=torch.bool)
        attention(q.half(), k.half(), v.half(), implementation="flash_attention_2", mask=mask)
        attention(q.half(), k.half(), v.half(), implementation="flash_attention_2", need_weights=True)
        attention(q.half(), k.half(), v.half(), implementation="flash_attention_3", dropout=0.5)  # has none
        assert not calls


def test_names() -> None:
    check_implementation("sdpa")
    check_implementation("eager")
    with pytest.raises(InputError, match=r"attn_implementation: expected one of sdpa, eager, .*, got 'quick'"):
        check_implementation("quick")
    with pytest.raises(
        InputError, match=r"'flash_attention_2' needs the package flash_attn, which is missing\. Use 'sdpa'"
    ):
        check_implementation("flash_attention_2")
