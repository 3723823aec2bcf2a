"""torch a fifth sooner: tables that only tracers read come with the first tracer.

torch's import ends by registering how each operator acts on tensors without values, which takes a quarter of it. A
command that looks at pictures with the model inside the package, on the CPU, compiles and exports nothing. There the
tables are left out, and brought in, in torch's own order, as soon as anything asks for more of torch than its import
brings. Releases of torch that nobody has tried this with are imported as they are.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, entry_points, version
from types import ModuleType
from typing import Any

TABLES = "torch._meta_registrations"
RELEASES = ("2.11.", "2.13.")  # of torch, which the tests of this file pass with
HARMLESS = ("torch.utils._device",)  # what commands import later, and needs no tables


class Later(MetaPathFinder, Loader):
    """Leaves the tables empty while torch is imported; the next module of torch that is asked for fills them."""

    def __init__(self) -> None:
        self.imported = False

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: Any = None) -> ModuleSpec | None:
        """Take the tables alone, and see what else is asked for."""
        if name == TABLES and not self.imported:
            return ModuleSpec(name, self)
        if self.imported and name.startswith("torch.") and name not in HARMLESS:
            complete()
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""


def import_torch(groups: Mapping[str, Any]) -> None:
    """Import torch for a command with these groups of options, where it needs no tables; else leave it to others."""
    if "torch" in sys.modules or not needs_no_tables(groups):
        return
    later = Later()
    sys.meta_path.insert(0, later)
    try:
        import torch
    except BaseException:
        sys.meta_path.remove(later)
        raise
    later.imported = True
    if groups["model"].device is None and torch.accelerator.is_available():
        complete()


def needs_no_tables(groups: Mapping[str, Any]) -> bool:
    """Tell whether a command looks at people with the model inside the package, and none else, on the CPU."""
    from vitruvian.hub import BUILTIN

    model, people = groups.get("model"), groups.get("people")
    if model is None or people is None or model.device not in (None, "cpu"):
        return False
    if model.model not in (None, BUILTIN) or people.finder not in (None, BUILTIN):
        return False
    try:
        known = version("torch").startswith(RELEASES)
    except PackageNotFoundError:
        return False
    return known and not entry_points(group="torch.backends")  # whoever extends torch may want all of it


def complete() -> None:
    """Import the tables, where they were left out."""
    later = next((finder for finder in sys.meta_path if isinstance(finder, Later)), None)
    if later is None:
        return
    try:
        sys.meta_path.remove(later)
    except ValueError:  # another thread was as quick, and does it
        return
    sys.modules.pop(TABLES, None)
    importlib.import_module(TABLES)
