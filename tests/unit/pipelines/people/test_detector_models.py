"""Detectors: a segmenter of ours, ONNX detectors in every layout they are exported in, and files of boxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.families.mask2former import tiny as tiny_mask2former
from tests.families.maskformer import tiny as tiny_maskformer
from tests.shared import SHARED, needs_shared
from vitruvian.errors import CheckpointError, InputError
from vitruvian.images.types import RgbImage
from vitruvian.models.mask2former.modeling import Mask2FormerForUniversalSegmentation
from vitruvian.models.mask2former.processing import Mask2FormerImageProcessor
from vitruvian.models.mask_classification.outputs import QueryLogits
from vitruvian.models.maskformer.modeling import MaskFormerForInstanceSegmentation
from vitruvian.models.maskformer.processing import MaskFormerImageProcessor
from vitruvian.pipelines.people import detect_people, open_detector
from vitruvian.pipelines.people.boxes_file import BoxesFile
from vitruvian.pipelines.people.onnx_detector import OnnxDetector, _letterbox
from vitruvian.pipelines.people.segmentation_detector import SegmentationDetector

IMAGE: RgbImage = np.zeros((40, 80, 3), np.uint8)
Arrays = dict[str, NDArray[Any]]


# ------------------------------------------------------------------------------------------------------- ONNX


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


def test_letterbox_keeps_the_shape_and_pads_grey() -> None:
    canvas, inner_hw = _letterbox(np.full((20, 80, 3), 200, np.uint8), (64, 32))
    assert (canvas.shape, inner_hw) == ((64, 32, 3), (8, 32))
    assert (canvas[:8] == 200).all()
    assert (canvas[8:] == 114).all()


# ------------------------------------------------------------------------------------------------------- segmenters


def detector_of(**options: Any) -> SegmentationDetector:
    torch.manual_seed(0)
    config = tiny_mask2former(id2label={0: "cat", 1: "person", 2: "sky"}, num_labels=3)
    processor = Mask2FormerImageProcessor(size={"shortest_edge": 64, "longest_edge": 128})
    return SegmentationDetector(Mask2FormerForUniversalSegmentation(config).eval(), processor, **options)


def queries(masks: NDArray[np.bool_], labels: list[int]) -> QueryLogits:
    """Sure queries with these masks [Q, h, w] and labels; 3 is no object."""
    classes = torch.nn.functional.one_hot(torch.tensor(labels), 4).float() * 8
    return QueryLogits(classes[None], torch.from_numpy(np.where(masks, 8.0, -8.0))[None].float())


class TestSegmenter:
    def test_boxes_of_people_only_without_specks(self) -> None:
        masks = np.zeros((5, 16, 24), np.bool_)
        masks[0, 2:12, 3:8] = True  # a person, with a speck far away
        masks[0, 15, 23] = True
        masks[1, 4:10, 12:20] = True  # a cat
        masks[2, 3:12, 3:8] = True  # the first person again
        masks[3, 0:8, 12:16] = True  # another person
        masks[4, 0:8, 0:8] = True  # no object
        pixel_mask = torch.ones(1, 64, 96)
        given = queries(masks, [1, 0, 1, 1, 3])
        given.classes[0, 2] *= 0.6
        people = detector_of(name="tiny")._people_of(given, pixel_mask, (128, 192))
        order = np.argsort(people.boxes_xyxy[:, 0])
        np.testing.assert_allclose(people.boxes_xyxy[order], [[24, 16, 64, 96], [96, 0, 128, 64]], atol=4)
        assert people.detector == "tiny"
        assert (people.scores > 0.9).all()

    def test_the_score_is_the_probability_of_a_person_among_all(self) -> None:
        logits = torch.tensor([[1.0, 2.0, 0.5, 1.5], [0.0, 0.0, 0.0, 0.0]])
        two = detector_of()._person_logits(logits).softmax(-1)
        torch.testing.assert_close(two[:, 0], logits.softmax(-1)[:, 1])
        torch.testing.assert_close(two.sum(-1), torch.ones(2))

    def test_padding_is_left_out(self) -> None:
        masks = np.zeros((1, 16, 32), np.bool_)
        masks[0, 4:12, 8:16] = True
        pixel_mask = torch.zeros(1, 64, 128)
        pixel_mask[:, :, :64] = 1  # the right half is padding
        people = detector_of()._people_of(queries(masks, [1]), pixel_mask, (64, 64))
        np.testing.assert_allclose(people.boxes_xyxy, [[32, 16, 64, 48]], atol=2)

    def test_large_images_are_looked_at_in_a_megapixel(self) -> None:
        masks = np.zeros((1, 16, 16), np.bool_)
        masks[0, 4:12, 4:8] = True
        people = detector_of()._people_of(queries(masks, [1]), torch.ones(1, 64, 64), (4096, 4096))
        np.testing.assert_allclose(people.boxes_xyxy, [[1024, 1024, 2048, 3072]], atol=140)

    @pytest.mark.parametrize("family", ["mask2former", "maskformer"])
    def test_a_checkpoint_runs_from_pixels_to_boxes(self, tmp_path: Path, family: str) -> None:
        torch.manual_seed(1)
        model: Any
        if family == "mask2former":
            model = Mask2FormerForUniversalSegmentation(
                tiny_mask2former(id2label={0: "Person", 1: "b", 2: "c"}, num_labels=3)
            )
            Mask2FormerImageProcessor(size={"shortest_edge": 64, "longest_edge": 96}).save_pretrained(tmp_path)
        else:
            model = MaskFormerForInstanceSegmentation(
                tiny_maskformer(id2label={0: "Person", 1: "b", 2: "c"}, num_labels=3)
            )
            MaskFormerImageProcessor(size={"shortest_edge": 64, "longest_edge": 96}).save_pretrained(tmp_path)
        model.save_pretrained(tmp_path)
        detector = open_detector(str(tmp_path), device="cpu", threshold=0.05)
        assert isinstance(detector, SegmentationDetector)
        image = np.random.default_rng(0).integers(0, 256, (50, 90, 3), dtype=np.uint8)
        people = detector.detect(image)
        assert len(people) > 0  # untrained, at so low a threshold, it sees someone
        assert (people.boxes_xyxy >= 0).all()
        assert (people.boxes_xyxy <= [90, 50, 90, 50]).all()

    def test_a_model_without_people_is_refused(self) -> None:
        model = Mask2FormerForUniversalSegmentation(tiny_mask2former(id2label={0: "cat", 1: "dog"}, num_labels=2))
        with pytest.raises(InputError, match="label person"):
            SegmentationDetector(model, Mask2FormerImageProcessor())


# ------------------------------------------------------------------------------------------------------- files

COCO = {
    "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
    "categories": [{"id": 1, "name": "person"}, {"id": 2, "name": "cat"}],
    "annotations": [
        {"image_id": 1, "category_id": 1, "bbox": [10, 20, 30, 40]},
        {"image_id": 1, "category_id": 2, "bbox": [0, 0, 5, 5]},
        {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "iscrowd": 1},
        {"image_id": 1, "category_id": 1, "bbox": [0, 0, 0, 9]},
    ],
}


def boxes_file(folder: Path, values: Any, name: str = "boxes.json", **options: Any) -> BoxesFile:
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return BoxesFile(path, **options)


def boxes_of(detector: BoxesFile, source: str, frame: int | None = None) -> list[list[float]]:
    found: list[list[float]] = detector.detect_in(IMAGE, source=source, frame=frame).boxes_xyxy.tolist()
    return found


class TestFiles:
    def test_coco_annotations(self, tmp_path: Path) -> None:
        detector = boxes_file(tmp_path, COCO)
        assert boxes_of(detector, "/photos/a.jpg") == [[10, 20, 40, 60]]
        assert boxes_of(detector, "b.jpg") == []
        assert detector.detect_in(IMAGE, source="b.jpg", frame=None).note is None
        assert detector.detect_in(IMAGE, source="c.jpg", frame=None).note == "c.jpg is not listed in boxes.json"

    def test_coco_detections(self, tmp_path: Path) -> None:
        entry = {"image_id": 139, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.4}
        detector = boxes_file(tmp_path, [entry, entry | {"score": 0.1}, entry | {"category_id": 3}], threshold=0.2)
        people = detector.detect_in(IMAGE, source="val2017/000000000139.jpg", frame=None)
        assert people.boxes_xyxy.tolist() == [[1, 2, 4, 6]]
        assert people.scores[0] == pytest.approx(0.4)

    def test_a_table_and_a_single_box(self, tmp_path: Path) -> None:
        detector = boxes_file(tmp_path, {"a.jpg": [[1, 2, 3, 4], [5, 6, 7, 8, 0.5]], "b.jpg": [1, 2, 3, 4]})
        people = detector.detect_in(IMAGE, source="a.jpg", frame=None)
        assert people.boxes_xyxy.tolist() == [[1, 2, 4, 6], [5, 6, 12, 14]]
        assert people.scores.tolist() == [1.0, 0.5]
        assert boxes_of(detector, "b.jpg") == [[1, 2, 4, 6]]

    def test_frames_of_a_video(self, tmp_path: Path) -> None:
        detector = boxes_file(tmp_path, {"clip.mp4": {"0": [[1, 2, 3, 4]], "5": [[5, 6, 7, 8]]}})
        assert boxes_of(detector, "clip.mp4", 5) == [[5, 6, 12, 14]]
        assert boxes_of(detector, "clip.mp4", 1) == []

    def test_csv(self, tmp_path: Path) -> None:
        detector = boxes_file(
            tmp_path, "file, frame, x, y, w, h, score\na.jpg,,1,2,3,4,0.5\nb.mp4,3,1,2,3,4,\n", "b.csv"
        )
        assert boxes_of(detector, "a.jpg") == [[1, 2, 4, 6]]
        assert boxes_of(detector, "b.mp4", 3) == [[1, 2, 4, 6]]
        assert boxes_of(detector, "b.mp4", 4) == []
        corners = boxes_file(tmp_path, "image,xmin,ymin,xmax,ymax\na.jpg,1,2,4,6\n", "c.csv")
        assert boxes_of(corners, "a.jpg") == [[1, 2, 4, 6]]
        unnamed = boxes_file(tmp_path, "file,,,x,y,w,h\na.jpg,7,8,1,2,3,4,9\n", "u.csv")  # columns of others
        assert boxes_of(unnamed, "a.jpg") == [[1, 2, 4, 6]]

    def test_images_of_one_name_in_two_folders(self, tmp_path: Path) -> None:
        detector = boxes_file(tmp_path, {"x/1.jpg": [[1, 1, 1, 1]], "y\\1.jpg": [[2, 2, 2, 2]], "2.jpg": []})
        assert boxes_of(detector, "/data/y/1.jpg") == [[2, 2, 4, 4]]
        assert boxes_of(detector, "/data/x/1.jpg") == [[1, 1, 2, 2]]
        with pytest.raises(InputError, match="matches both"):
            boxes_of(detector, "1.jpg")

    def test_a_image_without_a_name(self, tmp_path: Path) -> None:
        assert boxes_file(tmp_path, {"a.jpg": [[1, 2, 3, 4]]}).detect(IMAGE).boxes_xyxy.tolist() == [[1, 2, 4, 6]]
        with pytest.raises(InputError, match="lists 2 images"):
            boxes_file(tmp_path, {"a.jpg": [], "b.jpg": []}).detect(IMAGE)

    @pytest.mark.parametrize(
        ("values", "name", "words"),
        [
            ("{", "b.json", "line 1 column 2"),
            ("3", "b.json", "got int"),
            ([3], "b.json", "list of detections"),
            ({"a.jpg": 3}, "b.json", "list of boxes"),
            ({"a.jpg": {"x": []}}, "b.json", "list of boxes"),
            ({"a.jpg": [[1, 2, 3]]}, "b.json", "x, y, w, h"),
            ({"a.jpg": [[1, 2, -3, 4]]}, "b.json", "some area"),
            (COCO | {"categories": [{"id": 1, "name": "cat"}]}, "b.json", "named person"),
            (COCO | {"images": [{"id": 1}]}, "b.json", "id and file_name"),
            (COCO | {"images": []}, "b.json", "not among its images"),
            ("a.jpg,1,2,3,4\n", "b.csv", "columns"),
            ("file,x,y,w,h\na.jpg,1,2,3\n", "b.csv", "line 2"),
            ("file,x,y,w,h\na.jpg,1,2,3,z\n", "b.csv", "line 2"),
            ("file,x,x,y,w,h\na.jpg,1,1,2,3,4\n", "b.csv", "one column 'x', got 2"),
            (f"file,x,y,w,h\n{'a' * 200_000},1,2,3,4\n", "b.csv", "line 2: expected CSV"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path: Path, values: Any, name: str, words: str) -> None:
        with pytest.raises(InputError, match=words):
            boxes_file(tmp_path, values, name)

    def test_missing_and_binary_files(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="file not found"):
            BoxesFile(tmp_path / "none.json")
        (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00\x80")
        with pytest.raises(InputError, match="expected JSON"):
            BoxesFile(tmp_path / "b.json")

    @needs_shared
    def test_real_annotations(self) -> None:
        detector = BoxesFile(SHARED / "photos/coco/boxes.json")
        names = sorted((SHARED / "photos/coco/images").glob("*.jpg"))
        assert sum(len(boxes_of(detector, str(name))) for name in names) == 245
