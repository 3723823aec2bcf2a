"""Work on the CPU in lanes: each thread takes whole parts of the work, rather than a share of every operation.

Operations that share threads wait for one another at their ends, a hundred times in a layer, and keep the processor
busy while they wait: next to other programs that takes longer than the work itself. Lanes wait once for all parts.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Part = TypeVar("Part")
Done = TypeVar("Done")

MOST_LANES = 16  # with more threads each lane has several: parts would become too small to be quick
ROUNDS = 2  # parts for each lane at least, so that none waits long for the last
MANY = 4  # steps of a piece: with fewer, pieces of whole steps would differ too much
LITTLE = 0.6  # of what all lanes take in one round: less is not cut any smaller


def lane_count() -> int:
    """Number of lanes, by the threads that torch has for the caller."""
    return min(torch.get_num_threads(), MOST_LANES)


def pieces(size: int, count: int, step: int = 1) -> list[slice]:
    """Cut a range into pieces that differ by one at most; where each has many steps, at multiples of the step."""
    step = step if size >= MANY * step * count else 1
    edges = [(size * index // count + step // 2) // step * step for index in range(count)]
    return [slice(a, b) for a, b in itertools.pairwise((*edges, size))]


def cut(size: int, most: int, step: int = 1) -> list[slice]:
    """Cut a range into pieces for `run_parts`: none larger than `most` and a step, and as many for every lane.

    Little work is cut once for each lane: to start a piece takes time, too.
    """
    lanes = lane_count()
    rounds = -(-size // (most * lanes))
    least = 1 if lanes == 1 or size <= LITTLE * most * lanes else ROUNDS
    return pieces(size, min(size, lanes * max(least, rounds)), step)


def run_parts(function: Callable[[Part], Done], parts: Iterable[Part]) -> list[Done]:
    """Call a function for each part, and return what it returns in the order of the parts.

    Parts run beside one another, so that they must not write to the same place. Gradients are not followed. The first
    error is raised, and parts that have not begun are left out.
    """
    todo = list(parts)
    threads = torch.get_num_threads()
    if threads == 1 or len(todo) <= 1:
        return [function(part) for part in todo]
    inferring = torch.is_inference_mode_enabled()

    def run(part: Part) -> Done:
        with torch.inference_mode() if inferring else torch.no_grad():
            return function(part)

    return list(open_pool(threads).map(run, todo))


# ----------------------------------------------------------------------------------------------------------- threads

POOLS: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by process, since threads stay behind in a fork, and threads
OPENING = threading.Lock()


def open_pool(threads: int) -> ThreadPoolExecutor:
    """Return the lanes for a number of threads, which start at the first call."""
    key = os.getpid(), threads
    with OPENING:
        if key not in POOLS:
            POOLS[key] = start_pool(min(threads, MOST_LANES), threads // min(threads, MOST_LANES))
        return POOLS[key]


def start_pool(lanes: int, threads: int) -> ThreadPoolExecutor:
    """Start lanes in which torch's operations share so many threads.

    torch has a number for each thread, and the last one set is that of threads to come, so it is put back at the end.
    """
    before: list[int] = []
    in_thread(lambda: before.append(torch.get_num_threads()))
    pool = ThreadPoolExecutor(lanes, "vitruvian-lane", initializer=enter_lane, initargs=(threads,))
    all_there = threading.Barrier(lanes + 1)
    for _ in range(lanes):
        pool.submit(all_there.wait)
    all_there.wait()
    in_thread(lambda: torch.set_num_threads(before[0]))
    return pool


def enter_lane(threads: int) -> None:
    """Have operations of the calling thread use so many threads."""
    torch.get_num_threads()  # a thread takes the common number over when it first needs one: later would undo the next
    torch.set_num_threads(threads)


def in_thread(function: Callable[[], object]) -> None:
    """Call a function in a thread of its own."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
