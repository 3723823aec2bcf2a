"""Lanes: all parts run, in order, beside one another, and torch's numbers of threads stay as they are."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from vitruvian.kernels import lanes_cpu
from vitruvian.kernels.lanes_cpu import cut, in_thread, lane_count, pieces, run_parts


@pytest.fixture
def three() -> Iterator[None]:
    """Three threads for torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def threads_in_a_fresh_thread() -> int:
    found: list[int] = []
    in_thread(lambda: found.append(torch.get_num_threads()))
    return found[0]


def test_parts_run_beside_one_another_in_order(three: None) -> None:
    meeting = threading.Barrier(3, timeout=20)  # passes only where three parts run at a time

    def run(part: int) -> tuple[int, str, int]:
        if part < 3:
            meeting.wait()
        return part, threading.current_thread().name, torch.get_num_threads()

    for _ in range(2):
        found = run_parts(run, iter(range(12)))
        assert [part for part, _, _ in found] == list(range(12))
        assert len({name for _, name, _ in found}) == 3
        assert {threads for _, _, threads in found} == {1}
    assert torch.get_num_threads() == 3
    assert threads_in_a_fresh_thread() == 3


def test_many_threads_are_shared_out(three: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_cpu, "MOST_LANES", 2)
    monkeypatch.setattr(lanes_cpu, "POOLS", {})
    torch.set_num_threads(4)
    assert lane_count() == 2
    assert run_parts(lambda _: torch.get_num_threads(), range(4)) == [2] * 4


def test_what_needs_no_lanes_stays_in_its_thread(three: None) -> None:
    assert run_parts(lambda _: threading.current_thread(), [0]) == [threading.current_thread()]
    inside = run_parts(lambda _: run_parts(lambda _: threading.current_thread().name, [0, 1]), [0, 1])
    assert all(len(set(names)) == 1 for names in inside)
    assert run_parts(str, []) == []
    torch.set_num_threads(1)
    assert set(run_parts(lambda _: threading.current_thread(), [0, 1])) == {threading.current_thread()}


def test_modes_of_the_caller_hold(three: None) -> None:
    weight = torch.ones(2, requires_grad=True)

    def run(_: int) -> torch.Tensor:
        return weight * 2

    with torch.no_grad():
        assert not any(found.requires_grad or found.is_inference() for found in run_parts(run, range(3)))
    with torch.inference_mode():
        assert all(found.is_inference() for found in run_parts(run, range(3)))


def test_errors_come_out(three: None) -> None:
    def run(part: int) -> int:
        if part == 2:
            raise ValueError("part 2")
        return part

    with pytest.raises(ValueError, match="part 2"):
        run_parts(run, range(5))
    assert run_parts(run, range(2)) == [0, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forks_start_their_own(three: None) -> None:
    run_parts(str, range(4))
    child = os.fork()
    if child == 0:
        os._exit(0 if run_parts(str, range(4)) == ["0", "1", "2", "3"] else 1)
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child waits for threads that it has not")
    assert status == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_cover_the_range(three: None, threads: int) -> None:
    torch.set_num_threads(threads)
    for size in (1, 2, 7, 512, 513, 3081):
        found = cut(size, 512)
        assert [index for piece in found for index in range(piece.start, piece.stop)] == list(range(size))
        sizes = [piece.stop - piece.start for piece in found]
        assert max(sizes) <= 512
        assert max(sizes) - min(sizes) <= 1
        assert len(found) % threads == 0 or len(found) == size


@pytest.mark.parametrize("size", [1, 50, 383, 384, 3081])
def test_pieces_of_whole_steps(size: int) -> None:
    found = pieces(size, min(size, 6), step=16)
    assert [one for piece in found for one in range(piece.start, piece.stop)] == list(range(size))
    lengths = [piece.stop - piece.start for piece in found]
    many = size >= 4 * 16 * 6
    assert max(lengths) - min(lengths) <= (31 if many else 1)
    assert all(length % 16 == 0 for length in lengths[:-1]) or not many
