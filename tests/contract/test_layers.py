"""The layer rule of the house: a module imports only from rooms above its own, and families leave each other alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import vitruvian

ROOT = Path(vitruvian.__file__).parent

# From the top of the house down; rooms on one line ignore each other.
HOUSE: tuple[tuple[str, ...], ...] = (
    ("errors", "version"),
    ("atomic", "tasks"),
    ("ops",),
    ("hub",),
    ("config", "outputs"),
    ("layers", "images", "human"),
    ("image_utils",),
    ("losses",),
    ("weights",),
    ("devices",),
    ("model", "processor"),
    ("models",),
    ("auto",),
    ("draw", "files"),
    ("results",),
    ("pipelines",),
    ("training", "benchmarking", "serving", "export"),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(HOUSE) for room in rooms}
# The families that a family may use beside its own.
MASK_PARTS = {"swin", "resnet", "mask_classification"}
GUESTS = {"maskformer": MASK_PARTS, "mask2former": MASK_PARTS, "mask_classification": {"swin", "resnet"}}


def imported(source: str, package: str) -> set[str]:
    """Names of our modules that a source imports, anywhere in it; `package` is where relative imports start."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            # A name may be a module of its own; from the top-level package it may stand for another module's name.
            found |= {
                vitruvian.ADDRESS.get(alias.name, f"{base}.{alias.name}")
                if base == "vitruvian"
                else f"{base}.{alias.name}"
                for alias in node.names
            }
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return {name for name in found if name.startswith("vitruvian.")}


def complaint(importer: str, target: str) -> str | None:
    """Say what is wrong with a module importing another, both with dots and without the package's name."""
    room, other = importer.split(".")[0], target.split(".")[0]
    if other not in FLOOR:
        return None if other == "__version__" else f"{importer} imports {target}, which has no room in HOUSE"
    if room != other and FLOOR[other] >= FLOOR[room]:
        return f"{importer} imports {target}, which is not above it"
    if room == other == "models" and "." in importer and "." in target:
        family, guest = importer.split(".")[1], target.split(".")[1]
        if family != guest and guest not in GUESTS.get(family, set()):
            return f"{importer} imports {target}, of another family"
    return None


def modules() -> list[tuple[str, Path]]:
    """Every module of the package: its name without the package's, and its file."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found.append((name, path))
    return found


@pytest.mark.parametrize(("name", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_come_from_above(name: str, path: Path) -> None:
    assert name.split(".")[0] in FLOOR, f"{name} has no room in HOUSE"
    package = f"vitruvian.{name}" if path.name == "__init__.py" else f"vitruvian.{name}".rpartition(".")[0]
    found = imported(path.read_text(encoding="utf-8"), package)
    wrong = [complaint(name, target.removeprefix("vitruvian.")) for target in sorted(found)]
    assert not [text for text in wrong if text]


def test_the_top_level_package_imports_only_what_is_light() -> None:
    found = imported((ROOT / "__init__.py").read_text(encoding="utf-8"), "vitruvian")
    assert {name.split(".")[1] for name in found} <= {"errors", "version"}


class TestTheRuleItself:
    """The checks above find what they are for."""

    @pytest.mark.parametrize(
        "source",
        [
            "import vitruvian.model",
            "from vitruvian import model",
            "from vitruvian.model import Model",
            "from vitruvian import Model",
            "def f():\n    from vitruvian.model import Model",
            "from ..model import Model",
            "from .. import model",
            "import importlib\nimportlib.import_module('vitruvian.model')",
            "if TYPE_CHECKING:\n    from vitruvian.model import Model",
        ],
    )
    def test_every_way_to_import_is_seen(self, source: str) -> None:
        found = imported(source, "vitruvian.layers")
        assert [name for name in found if name.startswith("vitruvian.model")]

    @pytest.mark.parametrize(
        ("importer", "target", "fine"),
        [
            ("layers.attention", "errors.InputError", True),
            ("layers.attention", "ops.cache.cached_tensors", True),
            ("layers.attention", "images.resize", False),
            ("layers.attention", "model.Model", False),
            ("config", "hub.find_file", True),
            ("hub", "config.read_json", False),
            ("config", "outputs.ModelOutput", False),
            ("models.sam2.modeling", "models.swin.modeling", False),
            ("models.maskformer.modeling", "models.swin.modeling", True),
            ("models.mask2former.modeling", "models.maskformer.modeling", False),
            ("models.swin.modeling", "models.maskformer.modeling", False),
            ("models.sam2.modeling", "models.sam2.hiera", True),
            ("models.sam2.modeling", "auto.AutoModel", False),
            ("cli.pose", "auto.AutoModel", True),
            ("model", "attic.things", False),
        ],
    )
    def test_complaints(self, importer: str, target: str, fine: bool) -> None:
        assert (complaint(importer, target) is None) == fine
