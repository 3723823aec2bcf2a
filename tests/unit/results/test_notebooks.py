"""Results in notebooks, in file objects, and as JSON with a published schema."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.results.samples import SAMPLES, sample
from vitruvian.errors import InputError
from vitruvian.results import Masks, Track

SCHEMA = Path(__file__).parents[3] / "docs/schemas/result-1.json"


@pytest.mark.parametrize("task", SAMPLES)
def test_a_notebook_shows_the_drawing(task: str) -> None:
    result = sample(task)
    shown = Image.open(io.BytesIO(result._repr_png_()))
    assert shown.size == result.plot().size
    text = result._repr_html_()
    assert text.startswith('<figure><img src="data:image/png;base64,')
    assert "2 people · a note</figcaption>" in text
    assert "a.jpg" in text


def test_names_are_escaped_in_html() -> None:
    result = sample("normals", source="<script>.jpg")
    assert "<script>" not in result._repr_html_()


def test_large_drawings_are_reduced() -> None:
    large = np.zeros((2000, 1000, 3), np.float32)
    result = sample("albedo", size_hw=(2000, 1000), albedo=large, mask=None, image=None)
    assert Image.open(io.BytesIO(result._repr_png_())).size == (512, 1024)


def test_show_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    display = SimpleNamespace(display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: 1, display=display))  # type: ignore[arg-type]
    sample("normals").show()
    assert shown[0].size == (30, 20)


@pytest.mark.parametrize("task", SAMPLES)
def test_file_objects(task: str, tmp_path: Path) -> None:
    result = sample(task)
    for ending in result.extensions:
        if ending == ".exr":
            pytest.importorskip("OpenEXR")
        stream = io.BytesIO()
        result.save(stream, format=ending.lstrip("."))
        path = result.save(tmp_path / f"x{ending}")
        assert path is not None
        assert ending in (".npz", ".exr") or stream.getvalue() == path.read_bytes()
        assert stream.getbuffer().nbytes > 0
    with pytest.raises(InputError, match="format: required for a file object"):
        result.save(io.BytesIO())
    with pytest.raises(InputError, match="file name or a file object, got int"):
        result.save(3)  # type: ignore[call-overload]
    named = result.save(tmp_path / "plain", format=result.extensions[0].lstrip("."))
    assert named == tmp_path / f"plain{result.extensions[0]}"


@pytest.mark.parametrize("task", [*SAMPLES, "segment", "track"])
def test_json_follows_the_published_schema(task: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    values = json.loads(json.dumps(_result(task).to_dict()))
    assert [error.message for error in validator.iter_errors(values)] == []
    for wrong in (
        values | {"more": 1},
        values | {"schema_version": 2},
        {k: v for k, v in values.items() if k != "task"},
    ):
        assert not validator.is_valid(wrong)


def _result(task: str) -> Any:
    if task in SAMPLES:
        return sample(task)
    masks = np.zeros((1, 6, 8), bool)
    masks[0, 2:4, 3:7] = True
    common: dict[str, Any] = {"size_hw": (6, 8), "rles": masks, "scores": np.ones(1, np.float32)}
    common["boxes_xyxy"] = np.array([[3, 2, 7, 4]], np.float32)
    if task == "segment":
        return Masks(kind="segment", **common)
    return Track(object_ids=np.array([3]), presence=np.ones(1, np.float32), **common)
