"""What the tests of exports share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.export.tiny_pose import build
from vitruvian.export import export_onnx


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pose model as ONNX, optimised before the export, as users may have it."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("export") / "pose"
    assert export_onnx(build().optimize(), folder) == folder / "model.onnx"
    return folder
