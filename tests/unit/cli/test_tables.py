"""Commands without torch's tables for tracers: the same results, and all of torch once something wants it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitruvian.cli import run, tables
from vitruvian.hub import BUILTIN_FOLDER

PICTURE = BUILTIN_FOLDER / "standing.jpg"
COMMANDS = ("pose", "parts", "normals", "pointmap", "matte", "albedo")
OPTIONS = ("--quiet", "--model", "builtin", "--device", "cpu", "--out")
LOOKING = """
import sys
from vitruvian.cli import run
for command in {commands!r}:
    assert run([command, {picture!r}, *{options!r}, {out!r}]) == 0
assert "torch._prims" not in sys.modules and "torch._dynamo" not in sys.modules
"""
TRACING = """
import torch
assert not vars(torch._meta_registrations).get("__file__")
softmax = torch.compile(lambda x: torch.softmax(x @ x.T, -1), backend="aot_eager")
x = torch.ones(2, 2)
torch.testing.assert_close(softmax(x), torch.softmax(x @ x.T, -1))
assert vars(torch._meta_registrations)["__file__"] and torch.Generator().manual_seed(3).initial_seed() == 3
assert torch.nn.functional.interpolate(torch.ones(1, 1, 2, 2, device="meta"), scale_factor=2).shape == (1, 1, 4, 4)
"""


def run_python(code: str, *, path: Path | None = None) -> None:
    before = "" if path is None else f"import sys; sys.path.insert(0, {str(path)!r})\n"
    done = subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def groups(*, model: str | None = None, device: str | None = None, finder: str | None = None) -> dict[str, Any]:
    return {"model": SimpleNamespace(model=model, device=device), "people": SimpleNamespace(finder=finder)}


def test_results_are_the_same(tmp_path: Path) -> None:
    without, everything = tmp_path / "without", tmp_path / "everything"
    code = LOOKING.format(commands=COMMANDS, options=OPTIONS, picture=str(PICTURE), out=str(without))
    run_python(code + TRACING)
    for command in COMMANDS:
        assert run([command, str(PICTURE), *OPTIONS, str(everything)]) == 0
    names = sorted(path.name for path in everything.iterdir() if not path.name.startswith("."))
    assert len(names) >= len(COMMANDS)
    for name in names:
        assert (without / name).read_bytes() == (everything / name).read_bytes(), name


def test_the_model_in_the_box_needs_no_tables() -> None:
    assert tables.needs_no_tables(groups())
    assert tables.needs_no_tables(groups(model="builtin", device="cpu", finder="builtin"))


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "facebook/sapiens2-pose-0.4b"},
        {"device": "cuda"},
        {"finder": "facebook/mask2former-swin-small-coco-instance"},
    ],
)
def test_other_models_and_devices_get_them(asked: dict[str, str]) -> None:
    assert not tables.needs_no_tables(groups(**asked))


@pytest.mark.parametrize("name", ["model", "people"])
def test_commands_of_another_kind_get_them(name: str) -> None:
    assert not tables.needs_no_tables({name: groups()[name]})


@pytest.mark.parametrize("release", ["2.9.1", "2.14.0", "3.0.0+cpu"])
def test_releases_that_were_not_tried_are_imported_as_they_are(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "version", lambda _: release)
    assert not tables.needs_no_tables(groups())


def test_extensions_of_torch_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "entry_points", lambda *, group: [group])
    assert not tables.needs_no_tables(groups())


def test_a_torch_that_cannot_be_imported_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('broken')")
    code = """
import sys
from types import SimpleNamespace
from vitruvian.cli import tables
before = list(sys.meta_path)
try:
    one = SimpleNamespace(model=None, device="cpu", finder=None)
    tables.import_torch({"model": one, "people": one})
except ImportError as error:
    assert "broken" in str(error)
else:
    raise AssertionError("imported")
assert sys.meta_path == before
"""
    run_python(code, path=tmp_path)
