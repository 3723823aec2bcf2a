"""`make` and `benchmarks/run.py` list commands that exist, and the ablation names operations that exist."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = runpy.run_path(str(ROOT / "benchmarks" / "run.py"))
SCRIPTS = {**LIST["SCRIPTS"], **LIST["SLOW"]}


@pytest.mark.parametrize("name", [*SCRIPTS, "run", "builtin_accuracy"])
def test_docstrings_tell_what_is_printed(name: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")))
    assert text is not None
    assert re.search(r"\b[Pp]rints\b", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_arguments_of_the_list_exist(name: str) -> None:
    text = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    for argument in SCRIPTS[name]:
        assert not argument.startswith("--") or f'"{argument}"' in text


def test_every_script_is_listed() -> None:
    """A script is in the list of `run.py` or named in its docstring, unless others import it."""
    scripts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    everything = "".join(scripts.values())
    imported = {name for name in scripts if re.search(rf"^from {name} import", everything, re.MULTILINE)}
    listed = {*SCRIPTS, "run", *re.findall(r"(\w+)\.py", ast.get_docstring(ast.parse(scripts["run"])) or "")}
    assert listed | imported >= set(scripts)
    assert listed <= set(scripts)


def test_ablation_names_operations_that_exist() -> None:
    """Names of operations are strings, and a misspelt one switches nothing off."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "vitruvian" / "ops").glob("*.py"))
    known = set(re.findall(r'use_(?:triton|cpu_version)\(\s*"(\w+)"', source))
    tables = [
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "benchmarks" / "ablation.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("OPERATIONS")
    ]
    assert len(tables) == 2
    assert {name for table in tables for names in table.values() for name in names} <= known


def test_slow_scripts_run_only_if_named() -> None:
    assert "long_video" not in LIST["SCRIPTS"]
    assert re.search(r"long_video +\(slow", LIST["listing"]())


def test_every_make_target_has_a_description() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    for target in listed.split():
        assert re.search(rf"^{target}:.*## \S", text, re.MULTILINE), target
