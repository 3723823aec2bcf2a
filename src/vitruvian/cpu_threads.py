"""CPU cores that this process may use, and the OpenMP settings of commands.

OpenMP reads its environment once, when torch is imported, so this module imports the standard library only.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
# Iterations that a thread spins at a barrier before it sleeps. libgomp's default is 300,000 (milliseconds), during
# which threads burn the core that their descheduled partner waits for. `benchmarks/busy_machine.py` measures it.
_SPIN_COUNT = 1000


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Return the number of cores that CPU affinity and the cgroup quota leave to this process, at least 1."""
    quota = _cgroup_quota(cgroup)
    return _affinity_cores() if quota is None else max(1, min(_affinity_cores(), math.floor(quota)))


def configure_openmp(cgroup: Path = _CGROUP) -> None:
    """Limit the spinning and the threads of OpenMP, except where the environment sets them.

    Call it before torch is imported. OpenMP itself respects the affinity, but no cgroup quota.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPIN_COUNT))
    if (cores := usable_cores(cgroup)) < _affinity_cores():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))


def _affinity_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cgroup_quota(cgroup: Path) -> float | None:
    """Return the CPU quota of a container in cores, from cgroup version 2 or 1; None without one."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return None  # "max" in version 2, -1 in version 1
    return int(quota) / int(period)
