"""The environment of all tests: threads, Triton's interpreter, Ctrl-C, random seeds."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import sys

import pytest

# Before torch is imported: the workers of pytest-xdist share the cores.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

# Without a GPU, Triton's interpreter runs the kernels on the CPU.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Background jobs of a shell ignore SIGINT, and so would the commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Seed the global generators, so that random weights do not depend on the tests that ran before."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` also asks for devices, for a millisecond


# `make test` starts these files first, the longest at the beginning, so that no worker is left with one at the end.
# Those with a Ray cluster, of which there is one at a time, are apart.
_LONG_FILES = (
    "test_ray.py",
    "test_page.py",
    "test_docs.py",
    "test_families.py",
    "test_serve_soak.py",
    "test_mask_training.py",
    "test_ray_serve.py",
    "test_serve.py",
    "test_export.py",
    "test_kill_loop.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files."""
    order = {name: number for number, name in enumerate(_LONG_FILES)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_collection_finish() -> None:
    """Exclude all imported modules and collected tests from later garbage collections, which take half a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Undo `gc.freeze`, so that objects are destroyed before their types when the interpreter exits."""
    gc.unfreeze()
