"""Recorded calls. Without a CUDA device nothing is recorded."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor

from vitruvian.errors import VitruvianWarning
from vitruvian.graphs import GraphCache, causes, describe, recording, unrecorded
from vitruvian.ops.cache import cached_tensors

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


def test_which_batches_are_recorded() -> None:
    cache = GraphCache(largest_batch=4)

    def recorded(*shape: int) -> list[int]:
        return [size for size in range(1, 20) if cache.suits(torch.empty(size, *shape, device="meta"))]

    assert recorded() == recorded(3, 2048, 1536) == [1, 2, 3, 4]
    assert recorded(3, 1024, 768) == [*range(1, 9)]  # pictures may be more where they are not large
    with recording(16):
        assert recorded() == [16]
        with unrecorded():
            assert recorded() == []
        assert recorded() == [16]
    assert recorded() == [1, 2, 3, 4]


def test_what_an_error_began_with() -> None:
    def fail() -> None:
        try:
            raise torch.OutOfMemoryError("no room")
        finally:
            raise RuntimeError("recording was broken off")

    with pytest.raises(RuntimeError) as caught:
        fail()
    assert [str(one) for one in causes(caught.value)] == ["recording was broken off", "no room"]


def test_letting_go_of_recordings() -> None:
    cache = GraphCache()
    cache.recordings["key"], cache.room = None, object()  # type: ignore[assignment]
    cache.forget()
    assert (len(cache.recordings), cache.room) == (0, None)


@cached_tensors
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


def test_copies_of_a_cache_record_for_themselves() -> None:
    cache = GraphCache(most=2, largest_batch=3)
    cache.recordings["key"] = None  # type: ignore[assignment]
    for copied in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (copied.most, copied.largest_batch, len(copied.recordings)) == (2, 3, 0)


@needs_cuda
@torch.no_grad()
def test_nothing_is_recorded_where_that_is_asked() -> None:
    cache, x = GraphCache(), torch.ones(2, device="cuda")
    assert cache.takes((x,), {})
    with unrecorded():
        assert not cache.takes((x,), {})
    assert cache.takes((x,), {})


@needs_cuda
@torch.no_grad()
def test_recording_while_other_threads_use_the_device() -> None:
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

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    cache = GraphCache(most=8)
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
@torch.no_grad()
def test_threads_that_share_a_cache_get_their_own_answers() -> None:
    cache, wrong = GraphCache(), []

    def work(value: float) -> None:
        for _ in range(50):
            found = cache(torch.square, (torch.full((4,), value, device="cuda"),), {})
            if not bool((found == value**2).all()):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(number),)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_cuda
@torch.no_grad()
def test_a_recorded_call_may_hold_another() -> None:
    cache, x = GraphCache(), torch.arange(3.0, device="cuda")

    def outer(value: Tensor) -> Tensor:
        return 1 + (cache(torch.square, (value,), {}) if cache.takes((value,), {}) else torch.square(value))

    for _ in range(2):
        torch.testing.assert_close(cache(outer, (x,), {}), 1 + x.square())
    assert (len(cache.recordings), cache.refused) == (2, {})


@needs_cuda
@torch.no_grad()
def test_a_large_batch_where_it_is_asked_for() -> None:
    cache, x = GraphCache(), torch.randn(12, 3, device="cuda")
    assert not cache.takes((x,), {})
    with recording(12):
        assert cache.takes((x,), {})
        for factor in (1.0, 2.0, 3.0):
            torch.testing.assert_close(cache(torch.square, (factor * x,), {}), (factor * x).square())
        assert not cache.takes((x[:4],), {})
    assert (len(cache.recordings), cache.replays) == (1, {12: 3})


@needs_cuda
@torch.no_grad()
def test_what_cannot_be_recorded_runs_as_it_is() -> None:
    cache, x, runs = GraphCache(), torch.arange(3.0, device="cuda"), []

    def asks(value: Tensor) -> Tensor:
        runs.append(1)
        return value * float(value.sum())  # the host wants to know

    before = torch.cuda.current_stream()
    with pytest.warns(VitruvianWarning, match="cannot be recorded"):
        torch.testing.assert_close(cache(asks, (x,), {}), 3 * x)
    assert torch.cuda.current_stream() == before
    count = len(runs)
    torch.testing.assert_close(cache(asks, (x + 1,), {}), 6 * (x + 1))
    assert len(runs) == count + 1  # not tried again
    assert (len(cache.recordings), len(cache.refused), cache.replays) == (0, 1, {})
    torch.testing.assert_close(cache(torch.square, (x,), {}), x.square())  # others still are
    assert cache.replays == {3: 1}


@needs_cuda
@torch.no_grad()
def test_recordings_share_a_work_space_and_keep_it() -> None:
    """cuBLAS has one for each stream, tens of megabytes, and torch lets go of it when others record."""
    cache, weight = GraphCache(), torch.randn(2**16, 64, device="cuda", dtype=torch.bfloat16)
    given = [torch.randn(rows, 2**16, device="cuda", dtype=torch.bfloat16) for rows in (64, 96, 128)]

    def product(x: Tensor) -> Tensor:
        return x @ weight  # long sums, which cuBLAS shares out and brings together in its work space

    wanted = [product(x) for x in given]
    held = []
    for x, want in zip(given, wanted, strict=True):
        torch.testing.assert_close(cache(product, (x,), {}), want, rtol=2e-2, atol=2.0)
        inputs = sum(one.inputs[0].nbytes for one in cache.recordings.values())
        held.append(torch.cuda.memory_allocated() - inputs)
    assert max(held) - min(held) < 2**24, held
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    others = [torch.full((2**22,), 7.0, device="cuda") for _ in range(32)]
    for x, want in zip(given, wanted, strict=True):
        torch.testing.assert_close(cache(product, (x,), {}), want, rtol=2e-2, atol=2.0)
    assert all(bool((one == 7).all()) for one in others)
