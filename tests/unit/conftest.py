"""A tiny multi-task model, also in the place of the built-in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.tiny_multitask import tiny_multitask
from vitruvian import hub
from vitruvian.models.sapiens2.multitask import save_multitask
from vitruvian.pipelines import _warn_about_builtin


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of all tasks."""
    folder = tmp_path_factory.mktemp("packed") / "mine"
    save_multitask(tiny_multitask(), folder)
    return folder


@pytest.fixture
def inside(packed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in the place of the package's own."""
    _warn_about_builtin.cache_clear()
    monkeypatch.setattr(hub, "BUILTIN_FOLDER", packed)
    return packed
