"""`vitruvian export`: files, costs and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.helpers.tiny_multitask import tiny_multitask
from tests.unit.export.tiny_pose import build, pixels
from vitruvian import cli
from vitruvian.cli.commands.export import export
from vitruvian.errors import InputError
from vitruvian.export import OnnxModel, OpenVinoModel
from vitruvian.export.int8 import held_out
from vitruvian.export.runtime import Signature
from vitruvian.models.sapiens2.multitask import save_multitask
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    build().save_pretrained(folder)
    Sapiens2ImageProcessor(size={"height": 64, "width": 48}).save_pretrained(folder)
    rng = np.random.default_rng(0)
    (folder / "photos").mkdir()
    for number in range(3):
        Image.fromarray(rng.integers(0, 255, (80, 60, 3), dtype=np.uint8)).save(folder / "photos" / f"{number}.png")
    return folder


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


def test_a_task_of_several(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    save_multitask(tiny_multitask("seg", "normal"), tmp_path / "packed")
    export(str(tmp_path / "packed"), tmp_path / "out", task="normals", check=False)
    assert Signature.read(tmp_path / "out").model == "Sapiens2ForNormalEstimation"


def test_costs_are_measured_on_other_images() -> None:
    samples = [{"pixel_values": torch.full((1,), number)} for number in range(20)]
    some, others = held_out(samples)
    assert len(some) == 16
    assert len(others) == 4
    assert sorted(int(one["pixel_values"]) for one in some + others) == list(range(20))
    assert held_out(samples[:3]) == (samples[:3], samples[:3])


def test_refusals(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="requires images"):
        export(str(checkpoint), tmp_path, int8=True)
    with pytest.raises(InputError, match="--calibrate requires --int8"):
        export(str(checkpoint), tmp_path, calibrate=checkpoint)
    with pytest.raises(InputError, match="--size"):
        export(str(checkpoint), tmp_path, size="big")


def test_commands_take_exported_folders(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    Sapiens2ImageProcessor(size={"height": 64, "width": 48}).save_pretrained(tmp_path)
    Image.new("RGB", (60, 80)).save(tmp_path / "photo.png")
    arguments = ["pose", str(tmp_path / "photo.png"), "-m", str(tmp_path), "--detect", "whole"]
    assert cli.run([*arguments, "-o", str(tmp_path / "out"), "--save", "json", "-q"]) == 0
    result = json.loads((tmp_path / "out" / "photo_pose.json").read_text())
    assert (len(result["poses"]), result["model"]) == (1, str(tmp_path))
    assert cli.run([*arguments, "--device", "cuda"]) == 2
    assert "--device: expected cpu for an exported model" in capsys.readouterr().err
