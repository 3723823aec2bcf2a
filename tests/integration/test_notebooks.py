"""The notebooks of examples/ run from top to bottom."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vitruvian.results import Result

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


def shown(source: str, names: dict[str, Any]) -> object:
    """Run a cell, and return the value of its last line if that is an expression, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(EXAMPLES / "grace_hopper.jpg", tmp_path)
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 5
    names: dict[str, Any] = {}
    values = [shown(source, names) for source in code]
    images = [value for value in values if hasattr(value, "_repr_png_")]
    assert images
    for value in images:
        assert not isinstance(value, Result) or value._repr_png_().startswith(b"\x89PNG")


def test_there_are_two_without_stored_output() -> None:
    assert len(NOTEBOOKS) == 2
    for name in NOTEBOOKS:
        for cell in json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs")
