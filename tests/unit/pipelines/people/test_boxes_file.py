"""Boxes of people from files: COCO, tables and CSV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.shared_folder import SHARED, needs_shared
from vitruvian.errors import InputError
from vitruvian.images.types import RgbImage
from vitruvian.pipelines.people.boxes_file import BoxesFile

IMAGE: RgbImage = np.zeros((40, 80, 3), np.uint8)


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
