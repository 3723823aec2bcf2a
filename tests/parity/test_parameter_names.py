"""Layers and weights have the names that they have in transformers, in memory and in files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from tests.families import mask2former, maskformer, sam2, sapiens2, swin
from tests.families.case import FamilyCase

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.reference

# The first case of each class that transformers has too.
CASES: dict[str, FamilyCase] = {}
for _case in (*sapiens2.CASES, *sam2.CASES, *maskformer.CASES, *mask2former.CASES, *swin.CASES):
    if hasattr(transformers, _case.cls.__name__):
        CASES.setdefault(_case.cls.__name__, _case)
each_class = pytest.mark.parametrize("case", CASES.values(), ids=CASES)

# Buffers that files of transformers 4 have, and that version 5 computes; the last norm of Swin, which no backbone uses.
EXTRA_BUFFER, UNUSED_NORM = "relative_position_bias.relative_position_index", "swin.layernorm."


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def both(case: FamilyCase) -> tuple[Any, Any]:
    """Our model and theirs with the same configuration, each with its own random weights."""
    ours = case.cls(case.config())
    cls = getattr(transformers, case.cls.__name__)
    return ours, cls(cls.config_class.from_dict(ours.config.to_dict()))


@each_class
def test_adapters_find_the_same_layers(case: FamilyCase) -> None:
    """The names of linear layers and convolutions, which `target_modules` of peft select."""
    ours, theirs = both(case)

    def names(model: nn.Module) -> set[str]:
        return {name for name, part in model.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)}

    assert names(ours) == names(theirs)


@each_class
def test_state_dicts_load_both_ways(case: FamilyCase) -> None:
    ours, theirs = both(case)
    ours.load_state_dict(theirs.state_dict())  # strict
    for name, value in theirs.state_dict().items():
        if UNUSED_NORM not in name:
            assert torch.equal(ours.state_dict()[name], value), name

    ours, theirs = both(case)
    result = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert all(UNUSED_NORM in name for name in result.missing_keys)
    assert all(name.endswith(EXTRA_BUFFER) for name in result.unexpected_keys)


@pytest.mark.parametrize("case", [c for c in CASES.values() if c.cls.saved_keys], ids=lambda case: case.cls.__name__)
def test_files_have_the_names_that_transformers_writes(case: FamilyCase, tmp_path: Path) -> None:
    ours, theirs = both(case)
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")

    def names(folder: str) -> set[str]:
        with safe_open(tmp_path / folder / "model.safetensors", framework="pt") as file:
            return {name for name in file.keys() if not re.search(r"relative_position_index|swin\.layernorm", name)}  # noqa: SIM118

    assert names("ours") == names("theirs") != set(ours.state_dict())
