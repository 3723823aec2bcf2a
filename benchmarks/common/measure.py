"""Time and memory of calls on the CPU: alternating timers, resident memory, measurements in new processes."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

Times = dict[str, list[tuple[float, float]]]  # wall and CPU seconds of each round, by name
_SECTIONS, _MAX_GROWTH = 8, 1.1  # sections of a run, and how much more memory the last ones may use than the first


def time_alternately(calls: dict[str, Callable[[], Any]], rounds: int) -> Times:
    """Time functions alternately."""
    times: Times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, function in calls.items():
            start = time.perf_counter(), time.process_time()
            function()
            times[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return times


class MemorySampler:
    """Samples the resident memory of this process in a thread, and measures wall and CPU time meanwhile.

    Attributes:
        samples: Resident memory in MB, oldest first; the first is from before.
        seconds: Wall time.
        cpu_seconds: CPU time of all threads.
    """

    def __init__(self, interval: float = 0.002) -> None:
        self._interval = interval

    def __enter__(self) -> MemorySampler:
        import psutil

        process, self._done = psutil.Process(), threading.Event()
        self.samples = [process.memory_info().rss / 1e6]

        def sample() -> None:
            while not self._done.wait(self._interval):
                self.samples.append(process.memory_info().rss / 1e6)

        self._thread = threading.Thread(target=sample)
        self._thread.start()
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu_seconds = time.perf_counter() - self._start[0], time.process_time() - self._start[1]
        self._done.set()
        self._thread.join()

    def to_dict(self) -> dict[str, Any]:
        """Return the times, and the peak memory in MB of each section of the run."""
        ends = [round(index * len(self.samples) / _SECTIONS) for index in range(_SECTIONS + 1)]
        peaks = [max(self.samples[start:end], default=0.0) for start, end in pairwise(ends)]
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "peaks_mb": peaks}


def describe_memory(measured: dict[str, Any]) -> tuple[str, bool]:
    """Describe memory over time, from `MemorySampler.to_dict`; return whether it was constant after warmup too."""
    peaks = measured["peaks_mb"]
    early, late = max(peaks[1:4]), max(peaks[-2:])
    constant = late <= early * _MAX_GROWTH
    over_time = " ".join(f"{peak:.0f}" for peak in peaks)
    verdict = "constant" if constant else "GROWS"
    return f"memory: peak {max(peaks):.0f} MB; over time {over_time}: {late / early - 1:+.1%}, {verdict}", constant


def time_and_peak(call: Callable[[], Any]) -> dict[str, float]:
    """Return the seconds of a call, and its peak resident memory above that before, in GB."""
    with MemorySampler() as memory:
        call()
    return {"seconds": memory.seconds, "gb": (max(memory.samples) - memory.samples[0]) / 1e3}


def print_limited(measure: Callable[[], dict[str, float]], *, limit_gb: float) -> None:
    """Print a measurement as JSON, or that it ran out of memory: the limit, and 4 GB for libraries."""
    resource.setrlimit(resource.RLIMIT_AS, (int(limit_gb * 1e9) + 4 * 10**9,) * 2)
    try:
        print(json.dumps(measure()))
    except (MemoryError, RuntimeError) as error:
        print(json.dumps({"error": "out of memory" if "alloc" in str(error) or not str(error) else str(error)[:80]}))


def run_in_new_process(*arguments: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a script in a new process and return the JSON in its last line, or {"error": …}."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (environment or {}),
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"error": "killed" if done.returncode < 0 or not lines else lines[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def as_arguments(options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return options as command-line arguments."""
    return [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in names]
