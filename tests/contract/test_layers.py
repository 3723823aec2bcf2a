"""The import order: a module imports only from layers above its own, and model families only what they share.

CONTRIBUTING.md has the same layers as a table with a line about each.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import vitruvian

PACKAGE = Path(vitruvian.__file__).parent
CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"

# Folders and root modules of the package in import order. Those on one line do not import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "version", "cpu_threads"),
    ("tasks", "limits"),
    ("filesystem",),
    ("hub", "outputs"),
    ("config",),
    ("weights",),
    ("devices",),
    ("tensor_cache",),
    ("cuda",),
    ("ops",),
    ("layers", "images", "human"),
    ("image_utils", "losses"),
    ("model", "processor"),
    ("models",),
    ("auto",),
    ("draw", "files"),
    ("results",),
    ("pipelines",),
    ("training", "bench", "export", "serving"),
    ("scale",),
    ("cli",),
    ("__main__",),
)
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}
# Methods that are a shorter way to something in a later layer, imported when they are called.
SHORTCUTS = {("pipelines.base", "scale.ray_pipeline.RayPipeline")}  # TaskPipeline.on_ray
# Operations decide which version runs; a kernel that is no operation of models does so beside them.
KERNELS_OUTSIDE_OPS = {"training.synthetic.rasterizer"}
# The families that a model family may import beside itself.
_MASK_PARTS = {"swin", "resnet", "mask_classification"}
SHARED_FAMILIES = {"maskformer": _MASK_PARTS, "mask2former": _MASK_PARTS, "mask_classification": {"swin", "resnet"}}


def imported(source: str, package: str) -> set[str]:
    """Return the modules of the package that a source imports, anywhere in it; `package` resolves relative imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            # A name may be a module; from the top-level package it may be a public name of another module.
            found |= {
                vitruvian._MODULE_OF_NAME.get(alias.name, f"{base}.{alias.name}")
                if base == "vitruvian"
                else f"{base}.{alias.name}"
                for alias in node.names
            }
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return {name for name in found if name.startswith("vitruvian.")}


def violation(importer: str, target: str) -> str | None:
    """Describe what is wrong with an import; both modules are named without the package. None if it is allowed."""
    if (importer, target) in SHORTCUTS:
        return None
    layer, other = importer.split(".")[0], target.split(".")[0]
    if other not in DEPTH:
        return None if other == "__version__" else f"{importer} imports {target}, which is not in LAYERS"
    if layer != other and DEPTH[other] >= DEPTH[layer]:
        return f"{importer} imports {target}, which is not above it"
    asks_version = target == "ops.dispatch" or target.startswith("ops.dispatch.use_")
    if asks_version and layer != "ops" and importer not in KERNELS_OUTSIDE_OPS:
        return f"{importer} imports {target}: an operation in ops decides which of its versions runs"
    if layer == other == "models" and "." in importer and "." in target:
        family, other_family = importer.split(".")[1], target.split(".")[1]
        if family != other_family and other_family not in SHARED_FAMILIES.get(family, set()):
            return f"{importer} imports {target}, of another family"
    return None


def modules() -> list[tuple[str, Path]]:
    """Return every module of the package: its name without the package, and its file."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found.append((name, path))
    return found


@pytest.mark.parametrize(("name", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_come_from_above(name: str, path: Path) -> None:
    assert name.split(".")[0] in DEPTH, f"{name} is not in LAYERS"
    package = f"vitruvian.{name}" if path.name == "__init__.py" else f"vitruvian.{name}".rpartition(".")[0]
    found = imported(path.read_text(encoding="utf-8"), package)
    wrong = [violation(name, target.removeprefix("vitruvian.")) for target in sorted(found)]
    assert not [text for text in wrong if text]


def test_layers_list_exactly_what_exists() -> None:
    assert sorted(DEPTH) == sorted({name.split(".")[0] for name, _ in modules()})


def test_families_that_are_shared_exist() -> None:
    families = {name.split(".")[1] for name, _ in modules() if name.startswith("models.")}
    assert families >= {name for family, shared in SHARED_FAMILIES.items() for name in (family, *shared)}


def test_contributing_lists_the_layers_in_this_order() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8").partition("## Layout")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)/?` \|", text, re.MULTILINE)
    assert rows == [name for names in LAYERS for name in names]


def test_contributing_names_files_that_exist() -> None:
    paths = re.findall(r"`([\w./]+/[\w./]*)`", CONTRIBUTING.read_text(encoding="utf-8"))
    real = {path for path in paths if "NAME" not in path and "FAMILY" not in path}
    assert not [path for path in sorted(real) if not (CONTRIBUTING.parent / path).exists() | (PACKAGE / path).exists()]


def test_contributing_names_functions_that_exist() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8").partition("## Call flow")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \d+ \| (.+?) \| `(.+?)` \|", text, re.MULTILINE)
    assert len(rows) > 10
    for functions, file in rows:
        path = PACKAGE / file
        source = "".join(one.read_text(encoding="utf-8") for one in (path.glob("*.py") if path.is_dir() else [path]))
        for function in re.findall(r"`(.+?)`", functions):
            holder, _, name = function.rpartition(".")
            assert re.search(rf"\bdef {name}\(", source), f"{file} has no {name}"
            assert not holder or re.search(rf"^class {holder}\b", source, re.MULTILINE), f"{file} has no {holder}"


def test_contributing_names_where_things_are_decided() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8").partition("## Where to find things")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .+\? \| `(.+?)` \| `(.+?)` \|", text, re.MULTILINE)
    assert len(rows) > 20
    for name, file in rows:
        source = (PACKAGE / file).read_text(encoding="utf-8")
        for part in name.split("."):
            assert re.search(rf"^ *(async def|def|class) {part}\b|^{part}\b.* = ", source, re.MULTILINE), (
                f"{file} has no {part}"
            )


def test_the_top_level_package_imports_only_light_modules() -> None:
    found = imported((PACKAGE / "__init__.py").read_text(encoding="utf-8"), "vitruvian")
    assert {name.split(".")[1] for name in found} <= {"errors", "version"}


class TestChecks:
    """The checks above detect what they are for."""

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
    def test_every_form_of_import_is_detected(self, source: str) -> None:
        found = imported(source, "vitruvian.layers")
        assert [name for name in found if name.startswith("vitruvian.model")]

    @pytest.mark.parametrize(
        ("importer", "target", "allowed"),
        [
            ("layers.mlp", "errors.InputError", True),
            ("layers.mlp", "tensor_cache.cached_tensors", True),
            ("layers.mlp", "images.resize", False),
            ("layers.mlp", "model.Model", False),
            ("layers.mlp", "ops.dispatch.use_triton", False),
            ("models.sam2.modeling", "ops.dispatch.use_cpu_version", False),
            ("models.sam2.modeling", "ops.dispatch", False),
            ("models.sam2.modeling", "ops.dispatch.wants_grad", True),
            ("ops.rope", "ops.dispatch.use_triton", True),
            ("config", "hub.find_file", True),
            ("hub", "config.read_config_dict", False),
            ("outputs", "hub.find_file", False),
            ("models.sam2.modeling", "models.swin.modeling", False),
            ("models.maskformer.modeling", "models.swin.modeling", True),
            ("models.mask2former.modeling", "models.maskformer.modeling", False),
            ("models.swin.modeling", "models.maskformer.modeling", False),
            ("models.sam2.modeling", "models.sam2.hiera", True),
            ("models.sam2.modeling", "auto.AutoModel", False),
            ("cli.commands.pose", "auto.AutoModel", True),
            ("model", "unlisted.module", False),
        ],
    )
    def test_violations(self, importer: str, target: str, allowed: bool) -> None:
        assert (violation(importer, target) is None) == allowed
