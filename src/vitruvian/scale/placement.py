"""How many workers a cluster runs, and the cores and GPUs of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vitruvian.errors import InputError

_ROUNDING = 1e-6


@dataclass(frozen=True)
class Placement:
    """Worker processes, and what Ray reserves for each."""

    workers: int
    cpus: float
    gpus: float


def choose_placement(
    nodes: Iterable[Mapping[str, Any]], workers: int | None, cpus: float | None, gpus: float | None
) -> Placement:
    """Fill in what is None: a worker for each GPU, or for each core without GPUs; cores are divided among the workers.

    Args:
        nodes: What `ray.nodes()` returns.
        workers: Number of workers.
        cpus: Cores of each.
        gpus: GPUs of each: a fraction of one, or a whole number.

    Raises:
        InputError: So many workers do not fit the machines. They would wait forever.
    """
    nodes = [node for node in nodes if node["Alive"]]
    if gpus is None:
        gpus = 1.0 if any(node["Resources"].get("GPU", 0) for node in nodes) else 0.0
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise InputError(f"gpus_per_worker: expected a fraction of 1 or a whole number, got {gpus:g}.")
    if cpus is not None and (cpus < 0 or cpus + gpus == 0):
        raise InputError(f"cpus_per_worker: expected more than 0, or a share of a GPU, got {cpus:g}.")
    if workers is not None and workers < 1:
        raise InputError(f"workers: expected at least 1, got {workers}.")
    if workers is None:
        workers = max(1, capacity(nodes, cpus or (0.0 if gpus else 1.0), gpus))
    most = 1 if gpus else int(max((node["Resources"].get("CPU", 0) for node in nodes), default=1))
    candidates = [cpus] if cpus is not None else [*map(float, range(most, 0, -1)), *(1 / part for part in range(2, 17))]
    for candidate in candidates:
        if capacity(nodes, candidate, gpus) >= workers:
            return Placement(workers, candidate, gpus)
    raise InputError(
        f"workers: expected at most {capacity(nodes, candidates[-1], gpus)} with {gpus:g} GPUs and "
        f"{candidates[-1]:g} cores each, got {workers}. Lower it, or the share of each."
    )


def capacity(nodes: Iterable[Mapping[str, Any]], cpus: float, gpus: float) -> int:
    """Return how many workers fit live machines. A worker uses one machine, and one GPU where it has a fraction."""
    total = 0
    for machine in (node["Resources"] for node in nodes if node["Alive"]):
        have = int(machine.get("GPU", 0))
        by_gpu = math.inf if not gpus else have * int(1 / gpus + _ROUNDING) if gpus < 1 else have // gpus
        by_cpu = math.inf if not cpus else machine.get("CPU", 0) / cpus + _ROUNDING
        total += int(min(by_cpu, by_gpu))
    return total
