"""A pytest plugin for `peer_tests.py`: writes one JSON line for each report, and runs only the listed tests.

PEER_RESULTS names the file to append to. PEER_SELECT names a JSON list of test ids; without it, every test runs.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from common.reference import load_reference  # benchmarks/common/reference.py

load_reference()  # before the tests import transformers: torchvision needs its operators declared


def _write(record: dict[str, Any]) -> None:
    with open(os.environ["PEER_RESULTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that PEER_SELECT does not list."""
    path = os.environ.get("PEER_SELECT")
    if path is None:
        return
    with open(path, encoding="utf-8") as file:
        selected = set(json.load(file))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in selected])
    items[:] = [item for item in items if item.nodeid in selected]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a file that fails to import."""
    if report.failed:
        _write({"id": report.nodeid, "outcome": "failed", "phase": "collect", "error": str(report.longrepr)})


def pytest_collection_finish(session: pytest.Session) -> None:
    """Record the ids of the tests that will run."""
    _write({"collected": [item.nodeid for item in session.items]})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record outcome and error of a phase of a test, or of one of its subtests."""
    record = {"id": report.nodeid, "outcome": report.outcome, "phase": report.when, "seconds": report.duration}
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        record["error"] = crash.message if crash else str(report.longrepr)
    elif report.skipped and isinstance(report.longrepr, tuple):
        record["error"] = report.longrepr[2]
    if type(report) is not pytest.TestReport:
        record["subtest"] = True
    _write(record)
