"""ONNX detectors, in every layout that they are exported in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vitruvian.errors import CheckpointError, InputError
from vitruvian.images.types import RgbImage
from vitruvian.pipelines.people import detect_people, open_detector
from vitruvian.pipelines.people.onnx_detector import OnnxDetector, _letterbox

IMAGE: RgbImage = np.zeros((40, 80, 3), np.uint8)
Arrays = dict[str, NDArray[Any]]


def save_graph(path: Path, nodes: list[Any], outputs: Arrays, shape: list[Any], dtype: Any = np.float32) -> Path:
    """Write a graph with one input `images` whose nodes fill outputs of the types and shapes of `outputs`."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    types = {name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in outputs.items()}
    graph = onnx.helper.make_graph(
        nodes,
        "detector",
        [onnx.helper.make_tensor_value_info("images", onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)],
        [onnx.helper.make_tensor_value_info(name, types[name], value.shape) for name, value in outputs.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def constant_graph(path: Path, outputs: Arrays, shape: list[Any] | None = None, dtype: Any = np.float32) -> Path:
    """Write a detector that always answers the same."""
    onnx = pytest.importorskip("onnx")
    nodes = [
        onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(value))
        for name, value in outputs.items()
    ]
    return save_graph(path, nodes, outputs, shape or [1, 3, 64, 64], dtype)


def grid_cells(size: int = 64, strides: tuple[int, ...] = (8, 16, 32)) -> list[tuple[int, int, int]]:
    return [(x, y, s) for s in strides for y in range(size // s) for x in range(size // s)]


def raw_yolox(boxes: list[tuple[int, float, float, float, float, float]], classes: int = 3) -> NDArray[np.float32]:
    """The head's output before decoding: at given cells boxes (cx, cy, w, h, score), elsewhere nothing."""
    cells = grid_cells()
    table = np.full((len(cells), 5 + classes), -1.0, np.float32)
    table[:, 4:] = 0.01
    for cell, cx, cy, w, h, score in boxes:
        x, y, stride = cells[cell]
        table[cell] = [cx / stride - x, cy / stride - y, np.log(w / stride), np.log(h / stride), 0.95, *[0.0] * classes]
        table[cell, 5] = score / 0.95  # the score is that of an object times that of its class
    return table[None]  # [1, N, 5 + K]


BOXES = [(10, 20.0, 15.0, 16.0, 20.0, 0.9), (70, 40.0, 10.0, 8.0, 12.0, 0.6), (11, 21.0, 15.0, 16.0, 20.0, 0.8)]
# 40×80 in 64×64: scale 0.8, so corners in the image are those of the input / 0.8, cut at the edges.
EXPECTED = np.array([[12, 5, 28, 25], [36, 4, 44, 16]], np.float32) / 0.8


def check(detector: OnnxDetector, expected: NDArray[np.float32] = EXPECTED) -> None:
    people = detector.detect(IMAGE)
    np.testing.assert_allclose(people.boxes_xyxy, expected, atol=1e-3)
    np.testing.assert_allclose(people.scores, [0.9, 0.6], atol=1e-5)
    assert people.detector == detector.name
    assert people.boxes_xyxy.dtype == people.scores.dtype == np.float32


class TestOnnx:
    def test_raw_yolox(self, tmp_path: Path) -> None:
        check(OnnxDetector(constant_graph(tmp_path / "m.onnx", {"output": raw_yolox(BOXES)})))

    def test_raw_yolox_with_four_strides(self, tmp_path: Path) -> None:
        table = np.concatenate((raw_yolox(BOXES), raw_yolox([])[:, :1]), axis=1)  # one more cell, of stride 64
        check(OnnxDetector(constant_graph(tmp_path / "m.onnx", {"output": table})))

    def test_decoded_yolox(self, tmp_path: Path) -> None:
        table = raw_yolox([])
        table[0, :, :4] = 1.0
        for cell, *box in BOXES:
            table[0, cell] = [*box[:4], 0.95, box[4] / 0.95, 0, 0]
        check(OnnxDetector(constant_graph(tmp_path / "m.onnx", {"output": table})))

    def test_threshold(self, tmp_path: Path) -> None:
        path = constant_graph(tmp_path / "m.onnx", {"output": raw_yolox(BOXES)})
        assert len(OnnxDetector(path, threshold=0.85).detect(IMAGE)) == 1

    def test_detections_with_labels(self, tmp_path: Path) -> None:
        corners = [[12, 5, 28, 25, 0.9], [0, 0, 9, 9, 0.8], [36, 4, 44, 16, 0.6], [36, 4, 44, 16, 0.1]]
        outputs: Arrays = {"dets": np.array([corners], np.float32), "labels": np.array([[0, 2, 0, 0]])}
        check(OnnxDetector(constant_graph(tmp_path / "rtmdet-nano.onnx", outputs)))

    def test_nms_in_the_graph_is_final(self, tmp_path: Path) -> None:
        outputs: Arrays = {"dets": np.array([[[1, 1, 9, 9, 0.9], [1, 1, 9, 9, 0.8]]], np.float32)}
        assert len(OnnxDetector(constant_graph(tmp_path / "yolox.onnx", outputs)).detect(IMAGE)) == 2

    def test_no_detections(self, tmp_path: Path) -> None:
        outputs: Arrays = {"dets": np.zeros((1, 0, 5), np.float32), "labels": np.zeros((1, 0), np.int64)}
        people = OnnxDetector(constant_graph(tmp_path / "rtmdet.onnx", outputs)).detect(IMAGE)
        assert people.boxes_xyxy.shape == (0, 4)

    def test_lists_with_a_count(self, tmp_path: Path) -> None:
        boxes = [[12, 5, 28, 25], [36, 4, 44, 16], [0, 0, 9, 9], [5, 5, 20, 20]]
        outputs: Arrays = {
            "num_dets": np.array([[3]], np.int32),
            "boxes": np.array([boxes], np.float32),
            "scores": np.array([[0.9, 0.6, 0.8, 0.9]], np.float32),
            "labels": np.array([[0, 0, 1, 0]], np.int32),
        }
        check(OnnxDetector(constant_graph(tmp_path / "rtmdet.onnx", outputs)))

    def test_boxes_and_scores_of_all_classes(self, tmp_path: Path) -> None:
        boxes = [[12, 5, 28, 25], [36, 4, 44, 16], [13, 5, 29, 25]]
        scores = np.array([[[0.9, 0], [0.6, 0], [0.8, 0]]], np.float32)
        outputs: Arrays = {"boxes": np.array([boxes], np.float32), "scores": scores}
        check(OnnxDetector(constant_graph(tmp_path / "rtmdet.onnx", outputs)))

    def test_bare_rtmdet(self, tmp_path: Path) -> None:
        outputs: Arrays = {}
        for kind, channels, start in (("cls", 2, -9.0), ("reg", 4, 1.0)):
            for stride in (8, 16, 32):
                outputs[f"{kind}{stride}"] = np.full((1, channels, 64 // stride, 64 // stride), start, np.float32)
        outputs["cls8"][0, 0, 2, 2] = np.log(0.9 / 0.1)  # the cell at (16, 16)
        outputs["reg8"][0, :, 2, 2] = [4, 11, 12, 9]
        outputs["cls16"][0, 0, 0, 2] = np.log(0.6 / 0.4)  # the cell at (32, 0)
        outputs["reg16"][0, :, 0, 2] = [-4, -4, 12, 16]
        check(OnnxDetector(constant_graph(tmp_path / "rtmdet.onnx", outputs)))

    @pytest.mark.parametrize(
        ("shape", "dtype"),
        [([1, 3, 64, 64], np.float16), ([1, 64, 64, 3], np.float32), ([1, 64, 64, 3], np.uint8)],
    )
    def test_input_is_read_off_the_graph(self, tmp_path: Path, shape: Any, dtype: Any) -> None:
        path = constant_graph(tmp_path / "m.onnx", {"output": raw_yolox(BOXES)}, shape, dtype)
        check(OnnxDetector(path))

    def test_open_sizes_become_640(self, tmp_path: Path) -> None:
        path = constant_graph(tmp_path / "yolox.onnx", {"dets": np.zeros((1, 1, 5), np.float32)}, [1, 3, None, None])
        assert OnnxDetector(path).layout.size_hw == (640, 640)

    @pytest.mark.parametrize(("kind", "colour", "score"), [("yolox", (0, 0, 51), 51.0), ("rtmdet", (0, 0, 200), None)])
    def test_pixels_are_bgr_and_prepared_as_in_training(
        self, tmp_path: Path, kind: Any, colour: tuple[int, int, int], score: float | None
    ) -> None:
        """The graph answers one box whose score is the first value of its input: blue of the top left pixel."""
        onnx = pytest.importorskip("onnx")
        make = onnx.helper.make_node

        def constant(name: str, value: Any) -> Any:
            return make("Constant", [], [name], value=onnx.numpy_helper.from_array(np.array(value)))

        nodes = [
            constant("axes", [0, 1, 2, 3]),
            constant("start", [0, 0, 0, 0]),
            constant("end", [1, 1, 1, 1]),
            constant("form", [1, 1, 1]),
            constant("corners", np.array([[[1, 1, 9, 9]]], np.float32)),
            make("Slice", ["images", "start", "end", "axes"], ["pixel"]),
            make("Reshape", ["pixel", "form"], ["score"]),
            make("Concat", ["corners", "score"], ["dets"], axis=2),
        ]
        path = save_graph(tmp_path / "m.onnx", nodes, {"dets": np.zeros((1, 1, 5), np.float32)}, [1, 3, 64, 64])
        image = np.full((64, 64, 3), colour, np.uint8)
        people = OnnxDetector(path, kind=kind).detect(image)
        assert people.scores[0] == pytest.approx((200 - 103.53) / 57.375 if score is None else score, rel=1e-5)

    def test_kind_is_told_by_the_names_of_weights(self, tmp_path: Path) -> None:
        outputs: Arrays = {"dets": np.zeros((1, 1, 5), np.float32)}
        path = constant_graph(tmp_path / "people.onnx", outputs)
        with pytest.raises(InputError, match="cannot tell YOLOX from RTMDet"):
            OnnxDetector(path)
        with pytest.raises(InputError, match="kind: expected"):
            OnnxDetector(path, kind="detr")  # type: ignore[arg-type]
        onnx = pytest.importorskip("onnx")
        model = onnx.load(path)
        model.graph.node[0].name = "bbox_head.rtm_cls.0"
        onnx.save(model, path)
        assert OnnxDetector(path).kind == "rtmdet"

    @pytest.mark.parametrize(
        "outputs",
        [
            {"output": np.zeros((1, 80, 84), np.float32)},
            {"output": np.zeros((1, 86, 8), np.float32)},
            {"a": np.zeros((1, 9, 4), np.float32)},
        ],
    )
    def test_other_outputs_are_refused(self, tmp_path: Path, outputs: Arrays) -> None:
        detector = OnnxDetector(constant_graph(tmp_path / "yolox.onnx", outputs))
        with pytest.raises(InputError, match="expected the outputs of YOLOX or RTMDet"):
            detector.detect(IMAGE)

    def test_other_inputs_and_files_are_refused(self, tmp_path: Path) -> None:
        outputs: Arrays = {"dets": np.zeros((1, 1, 5), np.float32)}
        with pytest.raises(InputError, match="Is this a detector"):
            OnnxDetector(constant_graph(tmp_path / "m.onnx", outputs, [1, 5]))
        with pytest.raises(InputError, match="3 channels"):
            OnnxDetector(constant_graph(tmp_path / "m.onnx", outputs, [1, 1, 64, 64]))
        (tmp_path / "bad.onnx").write_bytes(b"not a model")
        with pytest.raises(CheckpointError, match=r"bad\.onnx: expected an ONNX model"):
            OnnxDetector(tmp_path / "bad.onnx")
        with pytest.raises(InputError, match="device"):
            OnnxDetector(constant_graph(tmp_path / "yolox.onnx", outputs), device="meta")

    def test_opened_by_name(self, tmp_path: Path) -> None:
        path = constant_graph(tmp_path / "m.onnx", {"output": raw_yolox(BOXES)})
        people = detect_people(open_detector(str(path), threshold=0.85), IMAGE)
        np.testing.assert_allclose(people.boxes_xyxy, EXPECTED[:1], atol=1e-3)


def test_letterbox_keeps_the_shape_and_pads_gray() -> None:
    canvas, inner_hw = _letterbox(np.full((20, 80, 3), 200, np.uint8), (64, 32))
    assert (canvas.shape, inner_hw) == ((64, 32, 3), (8, 32))
    assert (canvas[:8] == 200).all()
    assert (canvas[8:] == 114).all()
