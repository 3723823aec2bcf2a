"""Recorded calls. Without a CUDA device nothing is recorded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitruvian.graphs import GraphCache, describe
from vitruvian.layers.keep import kept

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")


@torch.no_grad()
def test_takes_inference_on_cuda_devices_alone() -> None:
    cache = GraphCache()
    assert not cache.takes((torch.ones(1),), {})
    assert not cache.takes((), {"flag": True})


def test_recordings_depend_on_form_and_not_on_values() -> None:
    assert describe(torch.ones(2, 3)) == describe(torch.zeros(2, 3))
    assert describe(torch.ones(2, 3)) != describe(torch.ones(3, 2).T)
    assert describe(torch.ones(2)) != describe(torch.ones(2).double())
    assert describe(True) != describe(False)


@kept
def table(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device, dtype=torch.float32)


@needs_cuda
@torch.no_grad()
def test_two_functions_of_one_cache_and_constants_that_were_forgotten() -> None:
    cache = GraphCache()

    def plus(x: Tensor) -> Tensor:
        return x + table(len(x), x.device)

    def minus(x: Tensor) -> Tensor:
        return x - table(len(x), x.device)

    x = torch.randn(4, device="cuda")
    want = torch.arange(4.0, device="cuda")
    for _ in range(2):
        torch.testing.assert_close(cache(plus, (x,), {}), x + want)
        torch.testing.assert_close(cache(minus, (x,), {}), x - want)
        for size in range(100, 300):  # pushes what the graphs read out of memory
            table(size, x.device).fill_(7)
    assert len(cache.recordings) == 2
