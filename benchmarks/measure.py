"""Timing two functions side by side, and naming the machine."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def alternate(
    first: Callable[[], Any], second: Callable[[], Any], *, rounds: int = 5
) -> tuple[list[float], list[float]]:
    """Time both functions in turns, after one run of each to warm up: seconds of each round."""
    first()
    second()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, taken in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return times


def row(name: str, ours: list[float], theirs: list[float], note: str = "") -> None:
    """Print the medians with their spread, and the ratio."""

    def text(values: list[float]) -> str:
        return f"{statistics.median(values) * 1e3:8.1f} ms ({min(values) * 1e3:.1f}–{max(values) * 1e3:.1f})"

    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"{name:44s} ours {text(ours):30s} reference {text(theirs):30s} {ratio:6.1f} × faster  {note}")


def machine() -> str:
    """Name the processor, its cores and the libraries."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.processor())
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    return f"{model}, {os.cpu_count()} cores, torch {torch.__version__}, {threads} threads, load {load:.1f}"
