"""Connection to a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from vitruvian.errors import InputError, import_extra


def import_ray() -> Any:
    """Import Ray, or raise `MissingExtraError`."""
    return import_extra("ray", "scale", "jobs on a cluster")


@contextlib.contextmanager
def connect_to_ray(ray: Any, address: str | None, runtime_env: dict[str, Any] | None = None) -> Iterator[str]:
    """Connect to a cluster, or start a local one, within a ``with`` block; an existing connection is used.

    Yields the address of Ray's dashboard. It is empty if there is none, and for an existing connection.
    """
    if ray.is_initialized():
        yield ""
        return
    # Ray starts workers with a niceness of 15, so that they hardly run beside other programs. In a cluster that is
    # started here they have the priority of the plain command.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        context = ray.init(address=address, runtime_env=runtime_env, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1].rstrip(". ")
        cluster = "a cluster" if address is None else f"a cluster at {address}"
        raise InputError(f"ray: expected {cluster}, got {reason}. Start one with: ray start --head") from error
    try:
        yield context.dashboard_url or ""
    finally:
        ray.shutdown()
