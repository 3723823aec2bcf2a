"""`benchmarks/end_to_end.py` runs without a GPU, and computes utilization correctly."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "end_to_end.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("end_to_end", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_runs_on_the_cpu() -> None:
    arguments = ["--device", "cpu", "--model", "tiny", "--images", "5", "--size", "270x480", "--grain", "3", "--before"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^[\d.]+ s: [\d.]+ images/s, [\d.]+ people/s", done.stdout, re.MULTILINE)
    assert "warmup, not counted" in done.stdout
    difference = re.search(r"at most (\S+) from the CPU's", done.stdout)
    assert difference is not None
    assert float(difference[1]) < 1e-3
    decoded = re.search(r"median difference (\S+) heatmap pixels", done.stdout)
    assert decoded is not None
    assert float(decoded[1]) < 1e-3
    calls = r"torch calls to prepare an image: \d+, submit a batch of 2: \d+, decode an image: 0, finish it: \d+$"
    assert re.search(calls, done.stdout, re.MULTILINE)
    assert "batches: 10 of 1; replayed as CUDA graphs: none\n" in done.stdout
    for step in ("consumer: submits batches", "workers: decode", "workers: finish and write", "consumer: other"):
        assert step in done.stdout


def test_overlapping_intervals_count_once(script: ModuleType) -> None:
    assert script.union([(10, 20), (0, 5), (12, 15), (18, 30), (30, 31), (50, 60)]) == (36, [5, 19])
    assert script.union([]) == (0, [])


def test_copies_are_not_kernels(script: ModuleType) -> None:
    class Event:
        """An event of torch's profiler."""

        def __init__(self, name: str, start: int, length: int, device: str = "DeviceType.CUDA") -> None:
            self.name, self.start_ns, self.duration_ns = (lambda: name), (lambda: start), (lambda: length)
            self.device_type = lambda: device

    events = [
        Event("gemm", 0, 10),
        Event("Memcpy HtoD (Pinned -> Device)", 5, 10),
        Event("Memset (Device)", 30, 1),
        Event("cudaLaunchKernel", 0, 99, "DeviceType.CPU"),
        Event("Stream Wait Event", 40, 9),
        Event("memory_efficient_attention", 20, 5),
    ]
    results = SimpleNamespace(events=lambda: events)
    kernels, copies = script.device_times(SimpleNamespace(profiler=SimpleNamespace(kineto_results=results)))
    assert kernels == [(0, 10), (20, 25)]
    assert copies == [(5, 15), (30, 31)]
