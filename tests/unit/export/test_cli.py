"""`vitruvian export`: files, costs and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.export.tiny_pose import build, pixels
from vitruvian.cli.export import export, read_size
from vitruvian.errors import InputError
from vitruvian.export import OnnxModel, OpenVinoModel
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("checkpoint")
    build().save_pretrained(place)
    Sapiens2ImageProcessor(size={"height": 64, "width": 48}).save_pretrained(place)
    rng = np.random.default_rng(0)
    (place / "photos").mkdir()
    for number in range(3):
        Image.fromarray(rng.integers(0, 255, (80, 60, 3), dtype=np.uint8)).save(place / "photos" / f"{number}.png")
    return place


def test_onnx(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    export(str(checkpoint), tmp_path)
    assert capsys.readouterr().out.strip() == str(tmp_path / "model.onnx")
    assert OnnxModel(tmp_path)(pixels()).heatmaps.shape == (1, 5, 16, 12)
    assert (tmp_path / "preprocessor_config.json").is_file()


def test_int8_prints_its_cost(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("onnxscript", "onnxruntime", "openvino", "nncf"):
        pytest.importorskip(package)
    export(str(checkpoint), tmp_path, int8=True, calibrate=checkpoint / "photos")
    shown = capsys.readouterr().out
    assert str(tmp_path / "model.xml") in shown
    assert "keypoints moved" in shown
    assert OpenVinoModel(tmp_path).signature.precision == "int8"


def test_refusals(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs pictures"):
        export(str(checkpoint), tmp_path, int8=True)
    with pytest.raises(InputError, match="with --int8 alone"):
        export(str(checkpoint), tmp_path, calibrate=checkpoint)
    with pytest.raises(InputError, match="--size"):
        read_size("big")
    assert read_size("1024x768") == (1024, 768)
    assert read_size(None) is None
