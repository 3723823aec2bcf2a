"""The tables, plots and numbers of docs/speed.md and benchmarks/results/README.md are those of the data beside it."""

from __future__ import annotations

import copy
import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vitruvian.bench.timing import Timing
from vitruvian.bench.workloads import Measurement

ROOT = Path(__file__).resolve().parents[2]
TABLES = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
PAGE, RUNS_PAGE = (path.read_text(encoding="utf-8") for path in TABLES["PAGES"])
PLOT = ROOT / "docs" / "images" / "speed.png"
DATA: dict[str, Any] = TABLES["load"]()
CURVES = ROOT / "benchmarks" / "results" / "curves" / "h200.json"
RUNS = [pytest.param(run, id=f"{file}-{name}") for file, data in DATA.items() for name, run in data["runs"].items()]
COUNTS = ("No", "One", "Two", "Three", "Four", "Five", "Six")


@pytest.fixture(scope="module")
def plot() -> dict[str, Any]:
    """Return the names in `benchmarks/plot.py`."""
    pytest.importorskip("matplotlib")
    return runpy.run_path(str(ROOT / "benchmarks" / "plot.py"))


def run_plot(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["plot.py", *arguments])
    runpy.run_path(str(ROOT / "benchmarks" / "plot.py"), run_name="__main__")


def leaves(value: Any) -> Iterator[float]:
    """Yield all numbers in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def measured() -> list[float]:
    """Return all numbers of the data, and our shares of other times."""
    found = [*leaves(DATA), *leaves(json.loads(CURVES.read_text(encoding="utf-8")))]
    for data in DATA.values():
        for run in data["runs"].values():
            for row in run["rows"]:
                ours = row.get("ours", {}).get("median")
                if ours is not None:
                    others = [row[name]["median"] for name in ("reference", "compiled", "elsewhere") if name in row]
                    found += [ours / other for other in others]
                if "plain" in row:
                    found.append(row["plain"]["median"] / row["reference"]["median"])
    return found


def prose(page: str) -> str:
    """Return the page without tables, images, links and code."""
    page = TABLES["TABLE"].sub("", page)
    return re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|^\|[^\n]*$", "", page, flags=re.DOTALL | re.MULTILINE)


def unmeasured_numbers(page: str) -> list[str]:
    """Return the numbers in the prose, with a unit or a decimal point, that are not in the data."""
    unit = r"(?=\s(?:ms|s|GiB|MB|TFLOP/s|%)\b)"
    texts = re.findall(rf"(?<![\w.])(\d+\.\d+|\d+{unit})(?![\w]|\.\d)", prose(page))
    values = measured()
    known = {"0.4", "5.17", "2.11"}  # of 0.4b; versions
    return [
        text
        for text in texts
        if text not in known and not any(f"{value:.{len(text.partition('.')[2])}f}" == text for value in values)
    ]


def test_tables_match_the_data() -> None:
    tables = TABLES["tables"](DATA)
    for page in (PAGE, RUNS_PAGE):
        assert TABLES["replace_tables"](page, tables) == page, "run benchmarks/tables.py"
    assert {match[2] for match in TABLES["TABLE"].finditer(PAGE + RUNS_PAGE)} == tables.keys()


def test_a_changed_number_changes_the_page() -> None:
    other = copy.deepcopy(DATA)
    other["h200"]["runs"]["sapiens2"]["rows"][0]["ours"]["median"] *= 1.1
    assert TABLES["replace_tables"](PAGE, TABLES["tables"](other)) != PAGE


def test_numbers_in_the_prose_are_measured() -> None:
    assert not unmeasured_numbers(PAGE)
    assert unmeasured_numbers(PAGE.replace("11.8 s", "11.8371 s")) == ["11.8371"]
    assert unmeasured_numbers(PAGE + "\nIt takes 6789 ms, 0.98765 of what it took.") == ["6789", "0.98765"]


def test_times_to_choose_a_model_are_those_of_the_tables() -> None:
    chosen, builtin = (
        (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("choose-a-model", "builtin")
    )
    found = re.findall(r"[\d.–]+(?= (?:ms|s|GiB)\b)", chosen)
    assert len(found) > 20
    assert not [text for text in found if text not in PAGE + builtin]


def test_number_of_missed_goals() -> None:
    rows = [row for data in DATA.values() for run in data["runs"].values() for row in run["rows"]]
    missed = sum(TABLES["share"](row, of) > goal for row in rows for of, goal in TABLES["goals"](row))
    assert f"{COUNTS[missed]} goals are missed" in PAGE
    assert TABLES["missed"](DATA).count("\n") == missed + 1


def test_missed_shares_are_not_rounded_to_the_goal() -> None:
    row = {"ours": {"median": 25.2}, "reference": {"median": 100.0}, "goal": 0.25}
    assert TABLES["share_text"](row) == "0.252"
    assert TABLES["share_text"](row | {"goal": 0.2}) == "0.25"


@pytest.mark.parametrize("run", RUNS)
def test_runs_have_date_and_command(run: dict[str, Any]) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])
    assert run["command"] or "throw-away script" in run["how"]
    if run["command"].startswith("python "):
        script, *arguments = run["command"].split()[1:]
        text = (ROOT / script).read_text(encoding="utf-8")
        assert all(f'"{argument}"' in text for argument in arguments if argument.startswith("--"))


@pytest.mark.parametrize("run", RUNS)
def test_medians_are_between_minimum_and_maximum(run: dict[str, Any]) -> None:
    for row in run["rows"]:
        for found in row.values():
            if isinstance(found, dict) and "low" in found:
                assert 0 < found["low"] <= found["median"] <= found["high"]


def test_bars_match_the_data(plot: dict[str, Any]) -> None:
    with Image.open(PLOT) as picture:
        assert picture.text["Description"] == plot["digest"](plot["bars"](DATA)), "run benchmarks/plot.py"


def test_curves_match_the_data(plot: dict[str, Any]) -> None:
    with Image.open(PLOT.with_name("curves.png")) as picture:
        drawn = plot["curves"](json.loads(CURVES.read_text(encoding="utf-8")))
        assert picture.text["Description"] == plot["digest"](drawn), "run benchmarks/plot.py with --curves"
    assert list(drawn) == ["batch", "megapixels", "prompts", "people in an image"]


def test_bars_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plot: dict[str, Any]) -> None:
    run_plot(monkeypatch, str(tmp_path / "bars.png"))
    with Image.open(tmp_path / "bars.png") as drawn, Image.open(PLOT) as shown:
        assert abs(drawn.width - shown.width) < 40
        assert drawn.text["Description"] == shown.text["Description"]
        colours = {colour for _, colour in drawn.convert("RGB").getcolors(4096)}
    for name in ("OURS", "MISSED", "REFERENCE", "PAPER"):
        wanted = tuple(bytes.fromhex(plot[name][1:]))
        assert any(max(abs(a - b) for a, b in zip(wanted, one, strict=True)) <= 3 for one in colours), name


def curve_cells() -> list[Measurement]:
    """Return cells as gpu.py --curves measures them: batches × sizes, and prompts."""
    found = []
    for batch in (1, 2, 8):
        for size_hw in ((512, 384), (1024, 768)):
            ours, theirs = (Timing(factor * batch * size_hw[0] / 1e2, 1.0, 2.0, 3) for factor in (1, 2))
            times = {"optimized": ours, "reference": theirs}
            found.append(Measurement("sapiens2-pose-0.4b", batch, size_hw, 0, "bfloat16", times=times))
    for prompts in (1, 64, 1024):
        times = {"optimized": Timing(prompts / 10, 0.1, 200.0, 3)}
        found.append(Measurement("sam2-tiny-decoder", 1, (1024, 1024), prompts, "bfloat16", times=times))
    found.append(Measurement("sam2-tiny-decoder", 2, (1024, 1024), 64, "bfloat16", note="failed"))
    return found


def test_lines_vary_one_variable(plot: dict[str, Any]) -> None:
    drawn = plot["lines"]([cell.to_dict() for cell in curve_cells()])
    assert {way: list(panel) for way, panel in drawn.items()} == {
        "batch": ["sapiens2-pose-0.4b bfloat16, megapixels 0.79"],
        "megapixels": ["sapiens2-pose-0.4b bfloat16, batch 1"],
        "prompts": ["sam2-tiny-decoder bfloat16, batch 1, megapixels 1.05"],
    }
    (batches,), (sizes,), (prompts,) = (panel.values() for panel in drawn.values())
    assert batches == [(1, 10.24, 20.48), (2, 20.48, 40.96), (8, 81.92, 163.84)]
    assert sizes == [(0.2, 5.12, 10.24), (0.79, 10.24, 20.48)]
    assert prompts == [(1, 0.1), (64, 6.4), (1024, 102.4)]  # no reference there


def test_curves_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    written = {"machine": "a machine", "cells": [json.loads(json.dumps(cell.to_dict())) for cell in curve_cells()]}
    (tmp_path / "results.json").write_text(json.dumps(written), encoding="utf-8")
    run_plot(monkeypatch, str(tmp_path / "curves.png"), "--curves", str(tmp_path / "results.json"))
    with Image.open(tmp_path / "curves.png") as drawn:
        assert min(drawn.size) > 1000  # three panels in two rows
        assert len(drawn.convert("RGB").getcolors(4096) or []) > 8
    (tmp_path / "results.json").write_text(json.dumps(written | {"cells": written["cells"][:1]}), encoding="utf-8")
    with pytest.raises(SystemExit, match="expected cells of which batch"):
        run_plot(monkeypatch, str(tmp_path / "none.png"), "--curves", str(tmp_path / "results.json"))
