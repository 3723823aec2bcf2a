"""The tiny models of all families."""

import importlib
import pkgutil

from tests.families.case import FamilyCase

CASES: list[FamilyCase] = [
    case
    for module in pkgutil.iter_modules(__path__)
    if module.name != "case"
    for case in importlib.import_module(f"{__name__}.{module.name}").CASES
]
