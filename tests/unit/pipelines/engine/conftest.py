"""Every test of the engine checks that its threads end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def all_threads_end() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    if set(threading.enumerate()) - before:
        gc.collect()  # a generator in a reference cycle; half a second in a process with all of torch
    assert not set(threading.enumerate()) - before
