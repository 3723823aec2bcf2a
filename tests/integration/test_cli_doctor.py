"""`vitruvian doctor`."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from pathlib import Path

import pytest
import torch

import vitruvian.cli as cli
from vitruvian.cli.commands import doctor
from vitruvian.limits import Limits
from vitruvian.serving.settings import ServerLimits

ROOT = Path(__file__).resolve().parents[2]


def test_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--json"]) == 0
    details = json.loads(capsys.readouterr().out)
    assert details["problems"] == []
    assert details["versions"]["torch"] == torch.__version__
    assert details["devices"][-1]["device"] == "cpu"
    assert details["speed"]["milliseconds"] > 0
    assert details["temporary"]["writable"]
    assert details["extras"]["video"]["for"] == "videos and cameras"
    monkeypatch.setenv("VITRUVIAN_MAX_QUEUE", "7")
    assert cli.run(["doctor", "--no-speed"]) == 0
    printed = capsys.readouterr().out
    assert "No problems found." in printed
    assert re.search(r"queue +7   \(by default 64\)", printed)
    for limits in (Limits(), ServerLimits()):
        assert all(re.search(rf"\b{name} +[\d,]+", printed) for name in dataclasses.asdict(limits))


def test_doctor_reports_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: str(tmp_path / "none"))
    monkeypatch.setattr(doctor.tempfile, "NamedTemporaryFile", lambda **_: (tmp_path / "none" / "x").open("wb"))
    assert cli.run(["doctor", "--no-speed"]) == 1
    assert "temporary files cannot be written" in capsys.readouterr().out


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(doctor.EXTRAS) == set(project["optional-dependencies"]) - {"dev", "docs"}
