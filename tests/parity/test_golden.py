"""Replay of the stored cases: tiny checkpoints saved by the reference, with its inputs and outputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.helpers.shared_folder import SHARED, needs_shared

CASES = SHARED / "golden" / "cases"
VIDEOS = SHARED / "golden" / "video"


@needs_shared
def test_golden_cases() -> None:
    assert replay("check.py", str(CASES), "vitruvian") == len(list(CASES.glob("*/case.json")))


@needs_shared
def test_golden_video_sessions() -> None:
    assert replay("check_video.py", "vitruvian", str(VIDEOS)) > 0


def replay(script: str, *arguments: str) -> int:
    """Run a script that replays cases, all of which must pass, and return their number."""
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
    assert int(counts[2]) == 0, found.stdout
    return int(counts[1])
