"""Exported models in pipelines: results as those of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.export.tiny_pose import build, pixels
from vitruvian.errors import CheckpointError, InputError
from vitruvian.export import OnnxModel, OpenVinoModel, exported_pipeline, quantize_int8
from vitruvian.export import runtime as module
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.pipelines import pipeline

PROCESSOR = Sapiens2ImageProcessor(size={"height": 64, "width": 48})


def image() -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 255, (9, 7, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((60, 80))


@pytest.mark.parametrize("kind", [OnnxModel, OpenVinoModel])
def test_results_are_those_of_the_model(kind: type[OnnxModel | OpenVinoModel], folder: Path) -> None:
    pytest.importorskip("onnxruntime" if kind is OnnxModel else "openvino")
    want = pipeline("pose", build(), processor=PROCESSOR)(image(), detect="whole")
    exported = exported_pipeline("pose", kind(folder), processor=PROCESSOR, detect="whole")
    found = exported(image())
    np.testing.assert_allclose(found.keypoints, want.keypoints, atol=0.01)
    np.testing.assert_allclose(found.scores, want.scores, atol=1e-4)
    assert found.model == str(folder)
    several = list(exported([image(), image()]))
    np.testing.assert_allclose(several[1].keypoints, want.keypoints, atol=0.01)


def test_folders_open_in_the_engine_that_fits(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    with pytest.raises(CheckpointError, match="processor"):
        exported_pipeline("pose", quantize_int8(folder, tmp_path / "bare", [{"pixel_values": pixels()}]).parent)
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    PROCESSOR.save_pretrained(tmp_path)
    quantize_int8(tmp_path, tmp_path / "int8", [{"pixel_values": pixels()}])
    assert isinstance(exported_pipeline("pose", tmp_path / "int8", threads=1).model, OpenVinoModel)
    assert isinstance(exported_pipeline("pose", tmp_path).model, OpenVinoModel)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert isinstance(exported_pipeline("pose", tmp_path).model, OnnxModel)


def test_refusals(folder: Path) -> None:
    exported = OnnxModel(folder, threads=1)
    with pytest.raises(InputError, match="Sapiens2ForNormalEstimation for normals, got one of Sapiens2ForPose"):
        exported_pipeline("normals", exported, processor=PROCESSOR)
    with pytest.raises(InputError, match="calls the model once for each image"):
        exported_pipeline("segment", exported, processor=PROCESSOR)
    with pytest.raises(InputError, match=r"options: .*got 'fuzz'"):
        exported_pipeline("pose", exported, processor=PROCESSOR, fuzz=1)
