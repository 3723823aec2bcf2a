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
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread not in before]
