"""The benchmark of whole runs, from files to files: it runs without a GPU, and counts time as it says."""

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


def test_it_runs_on_a_cpu() -> None:
    words = ["--device", "cpu", "--model", "tiny", "--pictures", "5", "--size", "270x480", "--grain", "3", "--before"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^[\d.]+ s: [\d.]+ pictures/s, [\d.]+ people/s", done.stdout, re.MULTILINE)
    assert "warm-up, not counted" in done.stdout
    difference = re.search(r"at most (\S+) from the CPU's", done.stdout)
    assert difference is not None
    assert float(difference[1]) < 1e-3
    decoded = re.search(r"decoded there, (\S+) pixels", done.stdout)
    assert decoded is not None
    assert float(decoded[1]) < 1e-3
    calls = r"calls of torch to prepare a picture: \d+, ask for a batch of 2: \d+, decode .*: 0, finish it: \d+$"
    assert re.search(calls, done.stdout, re.MULTILINE)
    assert "batches: 10 of 1; replayed from a recording: none\n" in done.stdout
    for what in ("caller: asks for batches", "threads: decode", "threads: finish and write", "caller: the rest"):
        assert what in done.stdout


def test_times_that_overlap_count_once(script: ModuleType) -> None:
    assert script.union([(10, 20), (0, 5), (12, 15), (18, 30), (30, 31), (50, 60)]) == (36, [5, 19])
    assert script.union([]) == (0, [])


def test_copies_are_no_kernels(script: ModuleType) -> None:
    class Seen:
        """What torch's profiler has noted of a GPU."""

        def __init__(self, name: str, start: int, length: int, device: str = "DeviceType.CUDA") -> None:
            self.name, self.start_ns, self.duration_ns = (lambda: name), (lambda: start), (lambda: length)
            self.device_type = lambda: device

    seen = [
        Seen("gemm", 0, 10),
        Seen("Memcpy HtoD (Pinned -> Device)", 5, 10),
        Seen("Memset (Device)", 30, 1),
        Seen("cudaLaunchKernel", 0, 99, "DeviceType.CPU"),
        Seen("Stream Wait Event", 40, 9),
        Seen("memory_efficient_attention", 20, 5),
    ]
    results = SimpleNamespace(events=lambda: seen)
    kernels, copies = script.device_times(SimpleNamespace(profiler=SimpleNamespace(kineto_results=results)))
    assert kernels == [(0, 10), (20, 25)]
    assert copies == [(5, 15), (30, 31)]
