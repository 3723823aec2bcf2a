"""`import vitruvian` is light, and every public name can be imported."""

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


def run_in_new_process(code: str) -> str:
    """Run code in a new interpreter and return its output."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def heavy_imports(statement: str) -> set[str]:
    """Return the heavy packages that a statement imports in a new interpreter."""
    code = f"""
import sys, time
before = set(sys.modules)
start = time.perf_counter()
{statement}
spent = time.perf_counter() - start
print(*sorted({{name.split(".")[0] for name in set(sys.modules) - before}}))
print(spent)
"""
    names, spent = run_in_new_process(code).splitlines()
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
def test_light_statements_import_nothing_heavy(statement: str) -> None:
    assert heavy_imports(statement) == set()


def test_models_import_torch_but_not_the_reference() -> None:
    found = heavy_imports(
        "import vitruvian\n"
        "assert vitruvian.layers.__name__ == 'vitruvian.layers'  # modules are attributes\n"
        "assert vitruvian.image_utils.load_image.__name__ == 'load_image'\n"
        "from vitruvian import AutoModel, Sapiens2ForPoseEstimation, Sapiens2ImageProcessor"
    )
    assert {"torch", "PIL"} <= found
    assert not found & {"transformers", "accelerate", "scipy", "huggingface_hub"}


@pytest.mark.parametrize("name", vitruvian.__all__)
def test_every_public_name_exists(name: str) -> None:
    found = getattr(vitruvian, name)
    module = vitruvian._MODULE_OF_NAME.get(name)
    if module is not None:
        assert found is getattr(importlib.import_module(module), name)
        assert vitruvian.__dict__[name] is found  # cached


def test_names_are_listed_once() -> None:
    assert len(vitruvian.__all__) == len(set(vitruvian.__all__))
    assert sum(len(names) for names in vitruvian._PUBLIC_NAMES.values()) == len(vitruvian._MODULE_OF_NAME)


def test_dir_and_star() -> None:
    assert set(vitruvian.__all__) <= set(dir(vitruvian))
    names: dict[str, object] = {}
    exec("from vitruvian import *", names)
    assert set(vitruvian.__all__) <= set(names)


def test_unknown_names_are_explained() -> None:
    with pytest.raises(
        AttributeError, match=r"module 'vitruvian' has no attribute 'AutoModle'\. Did you mean AutoModel"
    ):
        _ = vitruvian.AutoModle
    with pytest.raises(ImportError, match="AutoModle"):
        exec("from vitruvian import AutoModle")
    assert not hasattr(vitruvian, "nothing_like_it")


def test_import_errors_inside_a_module_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(vitruvian.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="torch"):
        _ = vitruvian.some_module


def test_py_typed_is_packaged() -> None:
    assert (files("vitruvian") / "py.typed").is_file()


def test_version() -> None:
    assert vitruvian.__version__.split(".")[0].isdigit()
