"""CUDA graphs of calls. Without a CUDA device nothing is captured."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from vitruvian.cuda import graphs
from vitruvian.cuda.graphs import GraphCache, _causes, _describe, capture_only, no_capture
from vitruvian.errors import VitruvianWarning
from vitruvian.tensor_cache import cached_tensors

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")


def start_threads(*functions: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    return threads


@torch.no_grad()
def test_accepts_inference_on_cuda_devices_only() -> None:
    cache = GraphCache()
    assert not cache.accepts((torch.ones(1),), {})
    assert not cache.accepts((), {"flag": True})


@torch.no_grad()
def test_accepts_nothing_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph has one precision, and the casts that autocast caches are freed where it ends."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # absent without CUDA
    with FakeTensorMode():
        x = torch.empty(1, device="cuda")
    cache, before = GraphCache(), torch.is_autocast_enabled("cuda")
    try:
        for enabled in (False, True, False):
            torch.set_autocast_enabled("cuda", enabled)  # torch.autocast leaves it off without CUDA
            assert cache.accepts((x,), {}) is not enabled
    finally:
        torch.set_autocast_enabled("cuda", before)


def test_graphs_depend_on_layout_and_not_on_values() -> None:
    assert _describe(torch.ones(2, 3)) == _describe(torch.zeros(2, 3))
    assert _describe(torch.ones(2, 3)) != _describe(torch.ones(3, 2).T)
    assert _describe(torch.ones(2)) != _describe(torch.ones(2).double())
    assert _describe(True) != _describe(False)


def test_which_batches_are_captured() -> None:
    cache = GraphCache(max_batch=4)

    def accepted(*shape: int) -> list[int]:
        return [size for size in range(1, 20) if cache.accepts_batch(torch.empty(size, *shape, device="meta"))]

    assert accepted() == accepted(3, 2048, 1536) == [1, 2, 3, 4]
    assert accepted(3, 1024, 768) == [*range(1, 9)]  # more if images are not large
    with capture_only(16):
        assert accepted() == [16]
        with no_capture():
            assert accepted() == []
        assert accepted() == [16]
    assert accepted() == [1, 2, 3, 4]


def test_failures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def capture(self, *_: object) -> None:
            raise RuntimeError("synchronizes")

    monkeypatch.setattr(graphs, "_CapturePool", Fails)
    cache = GraphCache()
    for size in range(1, 301):
        with pytest.warns(VitruvianWarning, match="cannot be captured"):
            assert cache(torch.numel, (torch.empty(size),), {}) == size
    assert len(cache.failed) == graphs._MAX_COUNTED


def test_causes_of_an_error() -> None:
    def fail() -> None:
        try:
            raise torch.OutOfMemoryError("out of memory")
        finally:
            raise RuntimeError("capture failed")

    with pytest.raises(RuntimeError) as caught:
        fail()
    assert [str(one) for one in _causes(caught.value)] == ["capture failed", "out of memory"]


def test_clear() -> None:
    cache = GraphCache()
    cache.captured["key"], cache._pool = None, object()  # type: ignore[assignment]
    cache.clear()
    assert (len(cache.captured), cache._pool) == (0, None)


@cached_tensors
def table(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device, dtype=torch.float32)


@needs_cuda
@torch.no_grad()
def test_two_functions_and_constants_that_left_their_cache() -> None:
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
        for size in range(100, 300):  # removes what the graphs read from the cache
            table(size, x.device).fill_(7)
    assert len(cache.captured) == 2


def test_copies_are_empty() -> None:
    cache = GraphCache(max_graphs=2, max_batch=3)
    cache.captured["key"] = None  # type: ignore[assignment]
    for copied in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (copied.max_graphs, copied.max_batch, len(copied.captured)) == (2, 3, 0)


@needs_cuda
@torch.no_grad()
def test_no_capture() -> None:
    cache, x = GraphCache(), torch.ones(2, device="cuda")
    assert cache.accepts((x,), {})
    with no_capture():
        assert not cache.accepts((x,), {})
    assert cache.accepts((x,), {})


@needs_cuda
@torch.no_grad()
def test_capture_while_other_threads_use_the_device() -> None:
    """As pipelines do: pinned memory, copies and events on another stream."""
    stop, errors = threading.Event(), []

    def work() -> None:
        stream = torch.cuda.Stream()
        held = []
        try:
            while not stop.is_set():
                with torch.cuda.stream(stream):
                    pinned = torch.ones(1 << (10 + len(held) % 12), pin_memory=True)
                    held.append(pinned.to("cuda", non_blocking=True) * 2)
                    event = torch.cuda.Event(blocking=True)
                    event.record()
                event.synchronize()
                held = held[-24:]
        except Exception as error:
            errors.append(error)

    threads = start_threads(work, work, work, work)
    cache = GraphCache(max_graphs=8)
    try:
        for size in range(1, 20):
            x = torch.randn(3, size, device="cuda")
            torch.testing.assert_close(cache(torch.cumsum, (x, 0), {}), x.cumsum(0))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors


@needs_cuda
def test_a_graph_of_inference_mode_is_replayed_outside_of_it() -> None:
    """Pipelines capture in inference mode, and their models are called by hand afterwards."""
    cache, x = GraphCache(), torch.arange(4.0, device="cuda")
    for context in (torch.inference_mode(), torch.no_grad(), torch.inference_mode()):
        with context:
            x = x + 1
            torch.testing.assert_close(cache(torch.square, (x,), {}), x**2)
    assert cache.replays[4] == 3


@needs_cuda
@torch.no_grad()
def test_threads_share_a_cache() -> None:
    cache, wrong = GraphCache(), []

    def work(value: float) -> None:
        for _ in range(50):
            found = cache(torch.square, (torch.full((4,), value, device="cuda"),), {})
            if not bool((found == value**2).all()):
                wrong.append(value)

    for thread in start_threads(*(functools.partial(work, float(number)) for number in range(1, 5))):
        thread.join()
    assert not wrong


@needs_cuda
@torch.no_grad()
def test_captured_calls_may_be_nested() -> None:
    cache, x = GraphCache(), torch.arange(3.0, device="cuda")

    def outer(value: Tensor) -> Tensor:
        return 1 + (cache(torch.square, (value,), {}) if cache.accepts((value,), {}) else torch.square(value))

    for _ in range(2):
        torch.testing.assert_close(cache(outer, (x,), {}), 1 + x.square())
    assert (len(cache.captured), cache.failed) == (2, {})


@needs_cuda
@torch.no_grad()
def test_capture_only() -> None:
    cache, x = GraphCache(), torch.randn(12, 3, device="cuda")
    assert not cache.accepts((x,), {})
    with capture_only(12):
        assert cache.accepts((x,), {})
        for factor in (1.0, 2.0, 3.0):
            torch.testing.assert_close(cache(torch.square, (factor * x,), {}), (factor * x).square())
        assert not cache.accepts((x[:4],), {})
    assert (len(cache.captured), cache.replays) == (1, {12: 3})


@needs_cuda
@torch.no_grad()
def test_calls_that_cannot_be_captured_run_without_a_graph() -> None:
    cache, x, runs = GraphCache(), torch.arange(3.0, device="cuda"), []

    def synchronizes(value: Tensor) -> Tensor:
        runs.append(1)
        return value * float(value.sum())

    before = torch.cuda.current_stream()
    with pytest.warns(VitruvianWarning, match="cannot be captured"):
        torch.testing.assert_close(cache(synchronizes, (x,), {}), 3 * x)
    assert torch.cuda.current_stream() == before
    count = len(runs)
    torch.testing.assert_close(cache(synchronizes, (x + 1,), {}), 6 * (x + 1))
    assert len(runs) == count + 1  # not captured again
    assert (len(cache.captured), len(cache.failed), cache.replays) == (0, 1, {})
    torch.testing.assert_close(cache(torch.square, (x,), {}), x.square())  # others still work
    assert cache.replays == {3: 1}


@needs_cuda
@torch.no_grad()
def test_graphs_share_a_workspace_and_keep_it() -> None:
    """cuBLAS has one for each stream, tens of megabytes, which torch may free."""
    cache, weight = GraphCache(), torch.randn(2**16, 64, device="cuda", dtype=torch.bfloat16)
    inputs = [torch.randn(rows, 2**16, device="cuda", dtype=torch.bfloat16) for rows in (64, 96, 128)]

    def product(x: Tensor) -> Tensor:
        return x @ weight  # split-K, which uses the workspace

    wanted = [product(x) for x in inputs]
    held = []
    for x, want in zip(inputs, wanted, strict=True):
        torch.testing.assert_close(cache(product, (x,), {}), want, rtol=2e-2, atol=2.0)
        static = sum(one.inputs[0].nbytes for one in cache.captured.values())
        held.append(torch.cuda.memory_allocated() - static)
    assert max(held) - min(held) < 2**24, held
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    others = [torch.full((2**22,), 7.0, device="cuda") for _ in range(32)]
    for x, want in zip(inputs, wanted, strict=True):
        torch.testing.assert_close(cache(product, (x,), {}), want, rtol=2e-2, atol=2.0)
    assert all(bool((one == 7).all()) for one in others)
