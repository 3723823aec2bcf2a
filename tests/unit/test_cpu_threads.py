"""Cores that the process may use, and the environment of OpenMP."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitruvian.cpu_threads import configure_openmp, usable_cores

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, CORES),
        ({"cpu.max": "max 100000\n"}, CORES),
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "100000000 100000\n"}, CORES),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, CORES),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu.max": "garbage"}, CORES),
    ],
)
def test_quota_of_a_container(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores


class TestEnvironment:
    @pytest.fixture(autouse=True)
    def _unset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS"):
            monkeypatch.setenv(name, "")  # restored at the end, also where the code sets it
            monkeypatch.delenv(name)

    def test_spinning_is_bounded(self, tmp_path: Path) -> None:
        configure_openmp(tmp_path)
        assert 0 < int(os.environ["GOMP_SPINCOUNT"]) < 300_000
        assert "OMP_NUM_THREADS" not in os.environ

    @pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "7")])
    def test_settings_of_the_user_stay(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        monkeypatch.setenv(name, value)
        configure_openmp(tmp_path)
        assert os.environ.get(name) == value
        assert os.environ.get("GOMP_SPINCOUNT") == (value if name == "GOMP_SPINCOUNT" else None)

    @pytest.mark.skipif(CORES < 2, reason="needs two cores")
    def test_threads_follow_a_quota(self, tmp_path: Path) -> None:
        (tmp_path / "cpu.max").write_text("100000 100000")
        configure_openmp(tmp_path)
        assert os.environ["OMP_NUM_THREADS"] == "1"


def test_torch_is_not_imported() -> None:
    code = "import sys, vitruvian.cpu_threads; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
