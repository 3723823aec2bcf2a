"""Measure calls: interleaved timing, memory, arithmetic, and differences of results."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Call = Callable[[], Any]
_CACHE_BYTES = 256 << 20  # more than any cache holds


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the median of the samples, the least and the most, and how many there were."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        """Summarize samples."""
        return cls(statistics.median(samples), min(samples), max(samples), len(samples))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def time_interleaved(
    calls: Mapping[str, Call], *, device: torch.device, seconds: float = 1.0, rounds: int = 20, cold: bool = False
) -> dict[str, Timing]:
    """Time calls alternately, so that all run in the same state of the machine; each is warmed up first.

    Args:
        calls: What to time, by name.
        device: Where they run; on a CUDA device its own events tell the time.
        seconds: About how long each call is measured in all.
        rounds: Most samples of each; slow calls get fewer, but at least three.
        cold: Flush the device's cache before each sample.
    """
    repeats = {}
    for name, call in calls.items():
        call()
        taken = max(_mean_milliseconds(call, device, 1, cold=False), 1e-3)  # ms
        repeats[name] = 1 if cold else max(1, min(10, int(20 / taken)))
    slowest = max(_mean_milliseconds(call, device, 1, cold=False) * repeats[name] for name, call in calls.items())
    turns = max(3, min(rounds, int(seconds * 1e3 / max(slowest, 1e-3))))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            samples[name].append(_mean_milliseconds(call, device, repeats[name], cold=cold))
    return {name: Timing.of(taken) for name, taken in samples.items()}


def _mean_milliseconds(call: Call, device: torch.device, repeats: int, *, cold: bool) -> float:
    """Return the milliseconds of one call, the mean of `repeats` in a row; `cold` flushes the GPU's cache first."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) * 1e3 / repeats
    if cold:
        torch.empty(_CACHE_BYTES, dtype=torch.uint8, device=device).zero_()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    first.record()
    for _ in range(repeats):
        call()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / repeats


def peak_bytes(call: Call, device: torch.device) -> int | None:
    """Return the most memory that a call takes on a CUDA device beside what is held before; None elsewhere.

    The workspace of cuBLAS is released first, so that a call which needs some counts it.
    """
    if device.type != "cuda":
        return None
    gc.collect()
    torch.cuda.synchronize(device)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def count_flops(call: Call) -> int:
    """Return the floating-point operations of a call in torch's operators: products, convolutions and attention."""
    from torch.utils.flop_counter import FlopCounterMode

    kernels = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
    operators = (getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}") for kernel in kernels)
    with FlopCounterMode(display=False, custom_mapping=dict.fromkeys(operators, _attention_flops)) as counter:
        call()
    return int(counter.get_total_flops())


def _attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the operations of attention by shapes: [B, A, N, D], [B, G, M, D], [B, G, M, E].

    The counter in some releases of torch requires A = G.
    """
    B, A, N, D = query
    return 2 * B * A * N * key[2] * (D + value[3])


def product_ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """Return the TFLOP/s of a large matrix product of random numbers, the most that a model can reach."""
    side = 8192 if device.type == "cuda" else 2048
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    taken = time_interleaved({"": lambda: left @ right}, device=device, seconds=0.3)[""]
    return 2 * side**3 / taken.median / 1e9


def relative_difference(got: Any, want: Any) -> tuple[float, float]:
    """Return two differences of results: the largest over the largest value, and the distance over the length.

    Of several tensors the worst counts.
    """
    worst = (0.0, 0.0)
    for ours, theirs in zip(_tensors_of(got), _tensors_of(want), strict=True):
        a, b = ours.double(), theirs.double()
        gap = a - b
        largest = float(gap.abs().max() / b.abs().max().clamp(min=1e-30))
        length = float(gap.norm() / b.norm().clamp(min=1e-30))
        if not gap.isfinite().all():
            largest = length = float("inf")
        worst = (max(worst[0], largest), max(worst[1], length))
    return worst


def _tensors_of(value: Any) -> list[Tensor]:
    """Return all floating-point tensors in a result."""
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def describe_machine(device: torch.device) -> str:
    """Return the names of the device, the cores and the release of torch, for reports."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
        model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.processor())
        name = f"{model}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"
