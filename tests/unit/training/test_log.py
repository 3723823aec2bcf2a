"""What a run tells."""

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from vitruvian.training import log
from vitruvian.training.log import METRICS_FILE, RunLog, read_metrics


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def test_metrics_are_written_as_json_lines(tmp_path: Path):
    with RunLog(tmp_path, steps=10, console=False, tensorboard=False) as run:
        run.train(2, {"loss": 1.5, "lr": 0.1})
        run.evaluation(2, {"pose/pck": 0.25, "feet": math.nan})
    assert lines(tmp_path) == [
        {"kind": "train", "step": 2, "loss": 1.5, "lr": 0.1},
        {"kind": "evaluation", "step": 2, "pose/pck": 0.25, "feet": None},
    ]


def test_resuming_removes_lines_of_repeated_steps(tmp_path: Path):
    with RunLog(tmp_path, steps=10, console=False, tensorboard=False) as run:
        for step in range(1, 5):
            run.train(step, {"loss": float(step)})
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"kind": "train", "st')  # the run was killed here
    with RunLog(tmp_path, steps=10, start=2, console=False, tensorboard=False) as run:
        run.train(3, {"loss": 30.0})
    assert [line["loss"] for line in lines(tmp_path)] == [1.0, 2.0, 30.0]
    with RunLog(tmp_path, steps=10, console=False, tensorboard=False):
        pass
    assert lines(tmp_path) == []


def test_other_processes_log_nothing(tmp_path: Path):
    target = Console(file=io.StringIO(), force_terminal=False)
    with RunLog(tmp_path, steps=10, active=False, target=target) as run:
        run.train(1, {"loss": 1.0})
        run.note("hello")
        run.evaluation(1, {"a": 1.0})
    assert list(tmp_path.iterdir()) == []
    assert target.file.getvalue() == ""  # type: ignore[attr-defined]


def test_console_shows_lines_or_a_progress_bar(tmp_path: Path):
    plain = io.StringIO()
    with RunLog(tmp_path, steps=10, tensorboard=False, target=Console(file=plain, force_terminal=False)) as run:
        run.advance(1)
        run.train(1, {"loss": 0.123456, "lr": 1e-3, "pose/mse": 3.0})
        run.evaluation(1, {"pose/pck": 0.5})
    assert "step 1/10  loss 0.1235  lr 0.001" in plain.getvalue()
    assert "pose/pck" in plain.getvalue()
    shown = io.StringIO()
    target = Console(file=shown, force_terminal=True, width=120)
    with RunLog(tmp_path, steps=10, start=4, tensorboard=False, target=target) as run:
        run.train(5, {"loss": 0.5})
    assert "5/10" in shown.getvalue()


def test_tensorboard_only_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log.importlib.util, "find_spec", lambda name: None)
    with RunLog(tmp_path, steps=3, console=False, tensorboard=True) as run:
        run.train(1, {"loss": 1.0})
    assert not (tmp_path / "tensorboard").exists()


def test_tensorboard_gets_the_numbers(tmp_path: Path):
    pytest.importorskip("tensorboard")
    with RunLog(tmp_path, steps=3, console=False, tensorboard=True) as run:
        run.train(1, {"loss": 1.0})
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_read_metrics_of_a_missing_file(tmp_path: Path):
    assert read_metrics(tmp_path / METRICS_FILE) == []
