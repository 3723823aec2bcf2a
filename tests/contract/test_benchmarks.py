"""What `make` and `benchmarks/run.py` list is there, and says what it does."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = runpy.run_path(str(ROOT / "benchmarks" / "run.py"))
SCRIPTS = {**LIST["SCRIPTS"], **LIST["SLOW"]}


@pytest.mark.parametrize("name", [*SCRIPTS, "run", "builtin"])
def test_every_benchmark_says_what_it_prints(name: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")))
    assert text is not None
    assert re.search(r"\b[Pp]rints\b", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_benchmarks_take_the_arguments_of_the_list(name: str) -> None:
    text = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    for word in SCRIPTS[name]:
        assert not word.startswith("--") or f'"{word}"' in text


def test_slow_ones_are_named_in_the_help_alone() -> None:
    assert "clip" not in LIST["SCRIPTS"]
    assert re.search(r"clip +\(slow", LIST["listing"]())


def test_make_says_what_each_command_does() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    for target in listed.split():
        assert re.search(rf"^{target}:.*## \S", text, re.MULTILINE), target
