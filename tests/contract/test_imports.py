"""`import vitruvian` is light, and every public name is where it says."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.resources import files

import pytest

import vitruvian

HEAVY = {
    "torch",
    "numpy",
    "PIL",
    "transformers",
    "huggingface_hub",
    "safetensors",
    "typer",
    "rich",
    "scipy",
    "accelerate",
}


def fresh(code: str) -> str:
    """Run code in an interpreter of its own and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def loaded_by(statement: str) -> set[str]:
    """The heavy packages that a statement loads in a fresh interpreter."""
    code = f"""
import sys, time
before = set(sys.modules)
start = time.perf_counter()
{statement}
spent = time.perf_counter() - start
print(*sorted({{name.split(".")[0] for name in set(sys.modules) - before}}))
print(spent)
"""
    names, spent = fresh(code).splitlines()
    print(f"{statement}: {float(spent) * 1000:.1f} ms")
    return set(names.split()) & HEAVY


@pytest.mark.parametrize(
    "statement",
    [
        "import vitruvian",
        "import vitruvian; dir(vitruvian); vitruvian.__version__; vitruvian.__all__",
        "from vitruvian import InputError, CheckpointError",
        "import vitruvian; hasattr(vitruvian, 'Sapiens2Modle')",
        "from vitruvian import Config, Sapiens2Config; Sapiens2Config()",
    ],
)
def test_light_statements_load_nothing_heavy(statement: str) -> None:
    assert loaded_by(statement) == set()


def test_models_load_torch_and_nothing_of_the_reference() -> None:
    found = loaded_by("from vitruvian import AutoModel, Sapiens2ForPoseEstimation, Sapiens2ImageProcessor")
    assert {"torch", "PIL"} <= found
    assert not found & {"transformers", "accelerate", "scipy", "huggingface_hub"}


@pytest.mark.parametrize("name", vitruvian.__all__)
def test_every_public_name_is_there(name: str) -> None:
    found = getattr(vitruvian, name)
    module = vitruvian.ADDRESS.get(name)
    if module is not None:
        assert found is getattr(importlib.import_module(module), name)
        assert vitruvian.__dict__[name] is found  # looked up once


def test_names_are_listed_once() -> None:
    assert len(vitruvian.__all__) == len(set(vitruvian.__all__))
    assert sum(len(names) for names in vitruvian.PUBLIC.values()) == len(vitruvian.ADDRESS)


def test_dir_and_star() -> None:
    assert set(vitruvian.__all__) <= set(dir(vitruvian))
    names: dict[str, object] = {}
    exec("from vitruvian import *", names)
    assert set(vitruvian.__all__) <= set(names)


def test_modules_are_attributes() -> None:
    code = "import vitruvian; print(vitruvian.layers.__name__, vitruvian.image_utils.load_image.__name__)"
    assert fresh(code).split() == ["vitruvian.layers", "load_image"]


def test_unknown_names_are_explained() -> None:
    with pytest.raises(
        AttributeError, match=r"module 'vitruvian' has no attribute 'AutoModle'\. Did you mean AutoModel"
    ):
        _ = vitruvian.AutoModle
    with pytest.raises(ImportError, match="AutoModle"):
        exec("from vitruvian import AutoModle")
    assert not hasattr(vitruvian, "nothing_like_it")


def test_a_module_that_fails_inside_is_not_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(vitruvian.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="torch"):
        _ = vitruvian.some_module


def test_types_ship() -> None:
    assert (files("vitruvian") / "py.typed").is_file()


def test_version() -> None:
    assert vitruvian.__version__.split(".")[0].isdigit()
