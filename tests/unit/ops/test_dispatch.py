"""Which version of an operation runs, and functions that stay outside of compiled graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vitruvian.ops import dispatch
from vitruvian.ops.dispatch import no_compile


@no_compile
def count_positive(x: Tensor) -> tuple[int, bool]:
    """How many values are positive, and whether this was traced."""
    return int((x > 0).sum()), torch.compiler.is_compiling()


def test_it_runs_as_it_is_inside_of_a_compiled_function() -> None:
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def scale(x: Tensor) -> tuple[Tensor, bool]:
        count, traced = count_positive(x * 2)
        return x * count, traced

    compiled = torch.compile(scale, backend=keep)
    for x in (torch.tensor([1.0, -1.0, 2.0]), torch.tensor([1.0, 3.0, 2.0])):
        out, traced = compiled(x)
        assert torch.equal(out, scale(x)[0])
        assert not traced
    assert graphs
    assert not any(node.target is torch.sum or node.target == "sum" for graph in graphs for node in graph.graph.nodes)


def test_it_keeps_its_name_and_runs_without_the_compiler() -> None:
    assert count_positive.__name__ == "count_positive"
    assert count_positive(torch.tensor([1.0, -1.0])) == (1, False)


@pytest.mark.parametrize(
    ("dtype", "device", "on_triton", "on_cpu"),
    [
        (torch.bfloat16, "cuda", True, False),
        (torch.float16, "cuda", True, False),
        (torch.float32, "cuda", False, False),
        (torch.float32, "cpu", False, True),
        (torch.bfloat16, "cpu", False, False),
    ],
)
def test_device_and_data_type_decide(
    dtype: torch.dtype, device: str, on_triton: bool, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    x: Any = SimpleNamespace(
        is_cuda=device == "cuda", dtype=dtype, device=torch.device(device), requires_grad=False
    )  # stands for a tensor on a device that this machine may lack
    with torch.no_grad():
        assert dispatch.use_triton("some_operation", x) is on_triton
        assert dispatch.use_cpu_version("some_operation", x) is on_cpu
        monkeypatch.setattr(dispatch, "HAS_TRITON", False)
        assert not dispatch.use_triton("some_operation", x)


def test_what_switches_the_fast_versions_off() -> None:
    x = torch.ones(2)
    with torch.no_grad():
        assert dispatch.use_cpu_version("some_operation", x)
        with dispatch.disable_triton("some_operation"):
            assert not dispatch.use_cpu_version("some_operation", x)
            assert dispatch.use_cpu_version("other_operation", x)
        with dispatch.disable_triton():
            assert not dispatch.use_cpu_version("other_operation", x)
        with torch.autocast("cpu"):
            assert not dispatch.use_cpu_version("some_operation", x)
    assert not dispatch.use_cpu_version("some_operation", x)  # gradients are enabled
    assert dispatch.wants_grad(x.requires_grad_())
