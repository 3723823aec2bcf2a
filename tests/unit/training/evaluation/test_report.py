from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from vitruvian.errors import InputError
from vitruvian.training.evaluation import (
    PCK,
    AngularError,
    ForegroundIoU,
    Goal,
    MeanAveragePrecision,
    MeanIoU,
    ScoreReport,
)


def printed(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(renderable)
    return console.file.getvalue()


def normals() -> AngularError:
    quality = AngularError(angles=[11.25, 30])
    quality.update(np.eye(3)[:, :, None], np.eye(3)[:, [1, 1, 2], None])  # 90, 0 and 0 degrees off
    return quality


def test_names_of_numbers() -> None:
    report = ScoreReport()
    report.add("normals", normals().compute())
    assert report.numbers("normals") == pytest.approx(
        {"mean": 30, "median": 0, "rmse": np.sqrt(2700), "within@11.25": 2 / 3, "within@30": 2 / 3, "pixels": 3}
    )
    semantic = MeanIoU(2)
    semantic.update(np.array([0, 1]), np.array([0, 1]))
    report.add("parts", {"all": semantic.compute(), "silhouette": ForegroundIoU().compute()})
    assert report.numbers("parts")["all.iou[1]"] == 1
    assert "silhouette.pooled_iou" in report.numbers("parts")
    report.add("pose", PCK("coco17", thresholds=[0.1]).compute())
    assert {"pck@0.1", "per_group.body@0.1", "per_keypoint.nose@0.1"} < report.numbers("pose").keys()
    report.add("boxes", MeanAveragePrecision("box").compute())
    assert "ap_small" in report.numbers("boxes")


def test_table_shows_short_lists_and_goals() -> None:
    report = ScoreReport(
        "held out", goals=[Goal("pose", "per_keypoint.nose@0.1", at_least=0.5), Goal("n", "mean", at_most=15)]
    )
    quality = PCK("coco17", thresholds=[0.1])
    quality.update(np.zeros((1, 17, 2)), np.zeros((1, 17, 2)), reference=1)
    report.add("pose", quality.compute())
    report.add("n", {"mean": 15.00001, "nothing": float("nan")})
    text = printed(report)
    lines = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")
    ]
    assert "held out" in text
    assert lines == [
        ["pose", "pck@0.1", "1.0000", ""],
        ["", "per_group.body@0.1", "1.0000", ""],
        ["", "per_keypoint.nose@0.1", "1.0000", "≥ 0.5 ✓"],
        ["", "points", "17", ""],
        ["n", "mean", "15.0000", "≤ 15 missed"],
        ["", "nothing", "–", ""],
    ]
    assert "per_keypoint.left_eye@0.1" in printed(report.table(details=True))


def test_table_without_goals_has_no_column_for_them() -> None:
    report = ScoreReport()
    report.add("[task]", {"iou[red]": 0.5})
    assert "goal" not in printed(report)
    assert "[task]" in printed(report)
    assert "iou[red]" in printed(report)


def test_scores_inside_a_mapping_are_never_left_out() -> None:
    report = ScoreReport()
    report.add("find", {"boxes": MeanAveragePrecision("box").compute()})  # a dozen numbers and one list
    assert "boxes.ar_large" in printed(report)


def test_goals() -> None:
    both = Goal("a", "x", at_least=0, at_most=1)
    assert [both.met(value) for value in (-0.1, 0, 1, 1.1, float("nan"))] == [False, True, True, False, False]
    assert str(both) == "≥ 0 and ≤ 1"
    unseen = Goal("b", "y", at_least=1)
    report = ScoreReport(goals=[both, unseen])
    report.add("a", {"x": 0.5})
    assert report.missed() == [unseen]


def test_json(tmp_path: Path) -> None:
    report = ScoreReport("Prüfung", goals=[Goal("normals", "mean", at_most=15), Goal("later", "x", at_least=1)])
    report.add("normals", {"all": np.array([1.0, np.nan]), **vars(normals().compute())})
    report.save(tmp_path / "scores.json")
    text = (tmp_path / "scores.json").read_text(encoding="utf-8")
    read = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert read["title"] == "Prüfung"
    assert read["scores"]["normals"]["all"] == [1, None]
    assert read["scores"]["normals"]["within"] == pytest.approx({"11.25": 2 / 3, "30": 2 / 3})
    assert read["scores"]["normals"]["pixels"] == 3
    assert read["goals"] == [
        {
            "task": "normals",
            "metric": "mean",
            "at_least": None,
            "at_most": 15,
            "value": pytest.approx(30),
            "met": False,
        },
        {"task": "later", "metric": "x", "at_least": 1, "at_most": None, "value": None, "met": False},
    ]


def test_bad_inputs() -> None:
    report = ScoreReport(goals=[Goal("normals", "means", at_most=1)])
    with pytest.raises(InputError, match=r"goal of normals: .*Did you mean mean"):
        report.add("normals", normals().compute())
    with pytest.raises(InputError, match="at_least or at_most"):
        Goal("a", "b")
    report.add("a", {"x": 1})
    with pytest.raises(InputError, match="expected a new name"):
        report.add("a", {"x": 1})
    with pytest.raises(InputError, match="expected a dataclass or mapping with numbers"):
        report.add("b", {})
    with pytest.raises(InputError, match="y: expected numbers"):
        report.add("b", {"y": "good"})
    with pytest.raises(InputError, match="task: expected one of a"):
        report.numbers("b")
