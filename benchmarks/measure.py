"""Timing two functions side by side, memory of one, cells in processes of their own, and naming the machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def alternate(
    first: Callable[[], Any],
    second: Callable[[], Any],
    *,
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], list[float]]:
    """Time both functions in turns, after one run of each to warm up: seconds of each round.

    With `time.process_time` as the clock it is time of the processor, which other work on the machine blurs less.
    """
    first()
    second()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, taken in zip((first, second), times, strict=True):
            start = clock()
            function()
            taken.append(clock() - start)
    return times


def watch(call: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of a call, and the highest resident size meanwhile over that before, in GB."""
    import psutil

    process, done = psutil.Process(), threading.Event()
    before = peak = process.memory_info().rss

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, process.memory_info().rss)

    thread = threading.Thread(target=sample)
    thread.start()
    start = time.perf_counter()
    try:
        call()
    finally:
        seconds = time.perf_counter() - start
        done.set()
        thread.join()
    return seconds, (peak - before) / 1e9


def print_cell(measure: Callable[[], dict[str, float]], *, limit_gb: float) -> None:
    """Print what a cell measures as JSON, or that it wanted more memory than the limit (over 4 GB for libraries)."""
    resource.setrlimit(resource.RLIMIT_AS, (int(limit_gb * 1e9) + 4 * 10**9,) * 2)
    try:
        print(json.dumps(measure()))
    except (MemoryError, RuntimeError) as error:
        print(json.dumps({"error": "out of memory" if "alloc" in str(error) or not str(error) else str(error)[:80]}))


def run_cell(script: str, cell: Sequence[str], options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Run one cell of a script, ``--one`` and its words, in a fresh process with the options of these names."""
    flags = [part for name in names for part in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    done = subprocess.run([sys.executable, script, "--one", *cell, *flags], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": "killed" if done.returncode < 0 else done.stderr.strip().splitlines()[-1][:80]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def row(name: str, ours: list[float], theirs: list[float], note: str = "") -> None:
    """Print the medians with their spread, and the ratio."""

    def text(values: list[float]) -> str:
        return f"{statistics.median(values) * 1e3:8.1f} ms ({min(values) * 1e3:.1f}–{max(values) * 1e3:.1f})"

    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"{name:44s} ours {text(ours):30s} reference {text(theirs):30s} {ratio:6.2f} × faster  {note}")


def machine() -> str:
    """Name the processor, its cores and the libraries."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.processor())
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    return f"{model}, {os.cpu_count()} cores, torch {torch.__version__}, {threads} threads, load {load:.1f}"
