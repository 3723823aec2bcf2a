"""int8: calibrated, close to the model, and what it costs in terms of the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.export.tiny_pose import build, pixels
from vitruvian.errors import InputError
from vitruvian.export import OnnxModel, OpenVinoModel, quantize_int8
from vitruvian.export.accuracy import compare_outputs, peaks, task_cost
from vitruvian.export.folder import Signature
from vitruvian.export.int8 import singles
from vitruvian.models.sapiens2.outputs import (
    Sapiens2NormalEstimatorOutput,
    Sapiens2PoseEstimatorOutput,
    Sapiens2SemanticSegmenterOutput,
)


def test_int8_is_close_and_is_int8(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    path = quantize_int8(folder, tmp_path / "int8", [{"pixel_values": pixels(4)}])
    assert path == tmp_path / "int8" / "model.xml"
    assert 'element_type="i8"' in path.read_text()
    exported = OpenVinoModel(tmp_path / "int8", threads=1)
    assert exported.signature.precision == "int8"
    for batch in (1, 2):
        with torch.inference_mode():
            want = build()(pixels(batch)).heatmaps
        distance = (exported(pixels(batch)).heatmaps - want).norm() / want.norm()
        assert 0 < distance < 0.15


def test_int8_needs_pictures(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("nncf")
    pytest.importorskip("openvino")
    with pytest.raises(InputError, match="at least one"):
        quantize_int8(folder, tmp_path, [])


def test_samples_are_taken_apart_and_fitted() -> None:
    signature = Signature("A", "", {"pixel_values": [1, 3, 8, 6]}, ["y"])
    samples = [{"pixel_values": torch.rand(2, 3, 8, 6)}, {"pixel_values": torch.rand(2, 3, 16, 12)}]
    found = list(singles(samples, signature, 3))
    assert [one["pixel_values"].shape for one in found] == [(1, 3, 8, 6)] * 3
    with pytest.raises(InputError, match="none of pixel_values"):
        list(singles([{"pixels": torch.zeros(1)}], signature, 3))
    with pytest.raises(InputError, match="like"):
        list(singles([{"pixel_values": torch.zeros(1, 4, 8, 6)}], signature, 3))


def test_cost_of_each_task() -> None:
    heatmaps = torch.zeros(1, 2, 8, 8)
    heatmaps[0, 0, 3, 4], heatmaps[0, 1, 5, 6] = 1, 1
    moved = heatmaps.roll(2, dims=-1)
    assert peaks(heatmaps).tolist() == [[[4, 3], [6, 5]]]
    found = Sapiens2PoseEstimatorOutput(heatmaps=moved), Sapiens2PoseEstimatorOutput(heatmaps=heatmaps)
    assert task_cost(*found)["keypoints moved, mean of heatmap pixels"] == pytest.approx((2 + 6) / 2)
    heatmaps[0, 1] *= 0.1  # a keypoint that is not in the picture counts in the first number alone
    assert task_cost(*found)["sure keypoints moved, mean of heatmap pixels"] == pytest.approx(2)
    normals = torch.zeros(1, 3, 2, 2)
    normals[:, 2] = 1
    turned = normals.roll(1, dims=1)
    costs = task_cost(Sapiens2NormalEstimatorOutput(normals=turned), Sapiens2NormalEstimatorOutput(normals=normals))
    assert costs["normals turned, mean degrees"] == pytest.approx(90)
    logits = torch.zeros(1, 3, 2, 2)
    other = logits.clone()
    other[0, 2, 0, 0] = 1
    costs = task_cost(Sapiens2SemanticSegmenterOutput(logits=other), Sapiens2SemanticSegmenterOutput(logits=logits))
    assert costs["pixels with another class, %"] == pytest.approx(25)


def test_missing_outputs_are_infinitely_far() -> None:
    def output(value: Tensor | None) -> Any:
        return Sapiens2PoseEstimatorOutput(heatmaps=value)

    want = output(torch.tensor([1.0, -4.0]))
    assert compare_outputs(output(torch.tensor([1.0, -3.0])), want) == {"heatmaps": 0.25}
    assert compare_outputs(output(None), want) == {"heatmaps": float("inf")}
    assert compare_outputs(output(torch.zeros(3)), want) == {"heatmaps": float("inf")}


def test_onnx_runtime_points_to_the_other_engine(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "export.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(OSError, match="OpenVinoModel"):
        OnnxModel(tmp_path)
