"""Killed jobs and full disks: after a run to the end all results are those of an undisturbed run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("av")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and sends signals")


@pytest.fixture(scope="module")
def printed() -> str:
    """Run the loop in a process without threads, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.kill_loop", "--kills", "4", "--seed", "3"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_jobs(printed: str) -> None:
    assert "wrong or lost results: 0" in printed


def test_full_disk(printed: str) -> None:
    if "full disk skipped" in printed:
        pytest.skip(printed.splitlines()[0])
    assert "full disks 3" in printed
