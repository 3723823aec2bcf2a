"""Clusters of Ray for tests: one at a time, and with processes that get their share of a busy machine."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STORE = 80_000_000  # bytes of the object store of a node


@contextmanager
def only_cluster() -> Iterator[None]:
    """Wait until the clusters of other test processes have ended, and set the environment of a new one."""
    with (
        (Path(tempfile.gettempdir()) / "vitruvian-tests-ray.lock").open("w") as lock,
        pytest.MonkeyPatch.context() as patch,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        )  # for worker processes
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # with 15 they hardly run beside other tests
        patch.setenv("RAY_idle_worker_killing_time_threshold_ms", "60000")  # a new one takes a second to start
        yield


@contextmanager
def start_cluster(**head: Any) -> Iterator[Any]:
    """Start a cluster of one node, connect to it, and stop it afterwards."""
    import ray
    from ray.cluster_utils import Cluster

    with only_cluster():
        nodes = Cluster(
            initialize_head=True, head_node_args={"object_store_memory": STORE, "include_dashboard": False} | head
        )
        ray.init(address=nodes.address, log_to_driver=False)
        try:
            yield nodes
        finally:
            ray.shutdown()
            nodes.shutdown()


def free_port() -> int:
    """Return a port that no one listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
