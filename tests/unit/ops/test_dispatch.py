"""Functions that stay outside of compiled graphs."""

from __future__ import annotations

import torch
from torch import Tensor

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
