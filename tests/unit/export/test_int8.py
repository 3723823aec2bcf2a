"""int8: calibrated, close to the model, and what it costs in terms of the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.export.tiny_pose import build, pixels
from vitruvian.errors import InputError
from vitruvian.export import OnnxModel, OpenVinoModel, quantize_int8
from vitruvian.export.comparison import _peaks, compare_outputs, task_errors
from vitruvian.export.int8 import _MATMUL_TYPES, _gated_matmuls, _input_and_output_matmuls, _single_inputs
from vitruvian.export.runtime import Signature
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


def test_ends_stay_in_floating_point(folder: Path, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    pytest.importorskip("nncf")

    def products(path: Path) -> dict[str, Any]:
        nodes = openvino.Core().read_model(path).get_ordered_ops()
        return {node.get_friendly_name(): node for node in nodes if node.get_type_name() in _MATMUL_TYPES}

    def int8_ones(path: Path) -> list[str]:
        kinds = {name: node.input_value(0).get_node().get_type_name() for name, node in products(path).items()}
        return [name for name, kind in kinds.items() if kind == "FakeQuantize"]

    graph = openvino.Core().read_model(folder / "model.onnx")
    names = list(products(folder / "model.onnx"))
    ends = {names[0], *names[-3:]}  # the embedding; the predictor and the two 1×1 convolutions before it
    assert set(_input_and_output_matmuls(graph)) == ends
    (gated,) = _gated_matmuls(graph)  # the last product of the one layer
    assert gated == names[-6]
    quantize_int8(folder, tmp_path / "a", [{"pixel_values": pixels()}])
    before = int8_ones(tmp_path / "a" / "model.xml")
    assert before
    assert not {gated, *ends} & set(before)
    quantize_int8(folder, tmp_path / "b", [{"pixel_values": pixels()}], keep=before[:1])
    assert before[0] not in int8_ones(tmp_path / "b" / "model.xml")
    with pytest.raises(InputError, match="keep: expected names of operations"):
        quantize_int8(folder, tmp_path / "c", [{"pixel_values": pixels()}], keep=["node_none"])
    with pytest.raises(InputError, match="the output folder"):
        quantize_int8(folder, folder, [{"pixel_values": pixels()}])


def test_vectors_stay_in_floating_point_and_ways_through_shapes_do_not_count() -> None:
    openvino = pytest.importorskip("openvino")
    ops = pytest.importorskip("openvino.opset13")

    def times(x: Any, shape: tuple[int, ...], name: str) -> Any:
        return ops.matmul(x, ops.constant(np.ones(shape, np.float32)), False, False, name=name)

    tokens = ops.parameter([-1, 5, 8], np.float32)
    inner = times(ops.relu(times(tokens, (8, 8), "embedding")), (8, 8), "inner")
    vector = times(ops.relu(ops.reduce_mean(inner, [1], False)), (8, 4), "first")
    vector = times(ops.relu(vector), (4, 1), "last")
    shape = ops.convert(ops.shape_of(tokens), np.float32)
    other = times(ops.reshape(shape, ops.constant(np.array([1, 3])), False), (3, 8), "of shape")
    graph = openvino.Model([vector, ops.add(inner, other)], [tokens])
    assert set(_input_and_output_matmuls(graph)) == {"embedding", "first", "last", "of shape"}
    assert "of shape" not in _input_and_output_matmuls(openvino.Model([vector], [tokens]))


def test_norms_are_no_gates() -> None:
    openvino = pytest.importorskip("openvino")
    ops = pytest.importorskip("openvino.opset13")

    def times(x: Any, name: str) -> Any:
        return ops.matmul(x, ops.constant(np.ones((8, 8), np.float32)), False, False, name=name)

    tokens = ops.parameter([-1, 5, 8], np.float32)
    x = times(tokens, "embedding")
    x = ops.multiply(x, ops.divide(ops.constant(np.float32(1)), ops.sqrt(ops.reduce_mean(x, [2], True))))
    x = times(ops.multiply(x, ops.constant(np.ones(8, np.float32))), "after a norm")
    x = times(ops.multiply(x, ops.sigmoid(x)), "after an activation")
    x = times(ops.multiply(ops.swish(times(x, "gate")), times(x, "value")), "after a gate")
    assert _gated_matmuls(openvino.Model([x], [tokens])) == ["after a gate"]


def test_bfloat16_only_for_int8_and_where_the_machine_has_it(folder: Path, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    quantize_int8(folder, tmp_path, [{"pixel_values": pixels()}])
    has = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    hint = "INFERENCE_PRECISION_HINT"
    assert OpenVinoModel(folder).options[hint] == "f32"
    assert OpenVinoModel(folder, precision="bf16").options[hint] == "bf16"
    assert OpenVinoModel(tmp_path).options[hint] == ("bf16" if has else "f32")
    assert OpenVinoModel(tmp_path, precision="f32").options[hint] == "f32"
    with pytest.raises(InputError, match="precision"):
        OpenVinoModel(tmp_path, precision="int4")


def test_int8_needs_images(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("nncf")
    pytest.importorskip("openvino")
    with pytest.raises(InputError, match="at least one"):
        quantize_int8(folder, tmp_path, [])


def test_samples_are_taken_apart_and_fitted() -> None:
    signature = Signature("A", "", {"pixel_values": [1, 3, 8, 6]}, ["y"])
    samples = [{"pixel_values": torch.rand(2, 3, 8, 6)}, {"pixel_values": torch.rand(2, 3, 16, 12)}]
    found = list(_single_inputs(samples, signature, 3))
    assert [one["pixel_values"].shape for one in found] == [(1, 3, 8, 6)] * 3
    with pytest.raises(InputError, match="none of pixel_values"):
        list(_single_inputs([{"pixels": torch.zeros(1)}], signature, 3))
    with pytest.raises(InputError, match="like"):
        list(_single_inputs([{"pixel_values": torch.zeros(1, 4, 8, 6)}], signature, 3))


def test_cost_of_each_task() -> None:
    heatmaps = torch.zeros(1, 2, 8, 8)
    heatmaps[0, 0, 3, 4], heatmaps[0, 1, 5, 6] = 1, 1
    moved = heatmaps.roll(2, dims=-1)
    assert _peaks(heatmaps).tolist() == [[[4, 3], [6, 5]]]
    found = Sapiens2PoseEstimatorOutput(heatmaps=moved), Sapiens2PoseEstimatorOutput(heatmaps=heatmaps)
    assert task_errors(*found)["keypoints moved, mean of heatmap pixels"] == pytest.approx((2 + 6) / 2)
    heatmaps[0, 1] *= 0.1  # a keypoint that is not in the image counts in the first number alone
    assert task_errors(*found)["sure keypoints moved, mean of heatmap pixels"] == pytest.approx(2)
    normals = torch.zeros(1, 3, 2, 2)
    normals[:, 2] = 1
    turned = normals.roll(1, dims=1)
    costs = task_errors(Sapiens2NormalEstimatorOutput(normals=turned), Sapiens2NormalEstimatorOutput(normals=normals))
    assert costs["normals turned, mean degrees"] == pytest.approx(90)
    logits = torch.zeros(1, 3, 2, 2)
    other = logits.clone()
    other[0, 2, 0, 0] = 1
    costs = task_errors(Sapiens2SemanticSegmenterOutput(logits=other), Sapiens2SemanticSegmenterOutput(logits=logits))
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
