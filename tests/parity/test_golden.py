"""Replay of the stored cases: tiny checkpoints saved by the reference, with its inputs and outputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.shared import SHARED, needs_shared

FAMILIES = ("sapiens2", "sam2", "maskformer", "mask2former")


@needs_shared
@pytest.mark.parametrize("family", FAMILIES)
def test_golden_cases(family: str) -> None:
    replay("check.py", str(SHARED / "golden" / "cases"), "vitruvian", family)


@needs_shared
def test_golden_video_sessions() -> None:
    replay("check_video.py", "vitruvian", str(SHARED / "golden" / "video"))


def replay(script: str, *arguments: str) -> None:
    """Run a script that replays cases, all of which must pass."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    found = subprocess.run(
        [sys.executable, str(SHARED / "golden" / script), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=280,
    )
    counts = re.search(r"(\d+) passed, (\d+) failed", found.stdout)
    assert counts, found.stderr[-2000:]
    assert int(counts[1]) > 0
    assert int(counts[2]) == 0, found.stdout
