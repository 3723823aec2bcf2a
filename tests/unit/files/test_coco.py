"""COCO records and datasets, read back by pycocotools."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitruvian.errors import InputError
from vitruvian.files import CocoWriter, coco
from vitruvian.files.coco import keypoint_category, keypoint_record, mask_record, write_youtube_vis
from vitruvian.human import COCO_17, COCO_WHOLEBODY_133, SAPIENS_308
from vitruvian.images.rle import encode_rle

BOX = np.array([10.126, 20, 30, 60], np.float32)


def person(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(count)
    return random.uniform(0, 50, (count, 2)).astype(np.float32), random.uniform(0, 1, count).astype(np.float32)


def record_of(keypoints: np.ndarray, scores: np.ndarray, layout: Any) -> dict[str, Any]:
    return keypoint_record(
        keypoints, scores, layout=layout, box_xyxy=BOX, image_id=7, annotation_id=3, score=0.5, threshold=0.4
    )


@dataclass
class Thing:
    """The smallest result that a dataset takes."""

    records: list[dict[str, Any]]
    categories: list[dict[str, Any]]
    size_hw: tuple[int, int] = (20, 30)
    source: str | None = "a.jpg"
    frame: int | None = None
    time: float | None = None

    def to_coco(self, *, image_id: int, first_id: int) -> list[dict[str, Any]]:
        return [record | {"id": first_id + i, "image_id": image_id} for i, record in enumerate(self.records)]

    def coco_categories(self) -> list[dict[str, Any]]:
        return self.categories


def thing(count: int = 1, name: str = "cat") -> Thing:
    mask = np.zeros((20, 30), bool)
    mask[3:9, 4:14] = True
    record = mask_record(encode_rle(mask, compress=True), image_id=0, annotation_id=0, category_id=5, score=0.75)
    return Thing([record] * count, [{"id": 5, "name": name, "supercategory": "animal"}])


class TestKeypoints:
    @pytest.mark.parametrize("layout", [COCO_17, SAPIENS_308], ids=lambda layout: layout.name)
    def test_triples(self, layout: Any) -> None:
        keypoints, scores = person(len(layout.names))
        record = record_of(keypoints, scores, layout)
        actual = np.array(record["keypoints"]).reshape(-1, 3)
        np.testing.assert_allclose(actual[:, :2], keypoints, atol=0.0051)
        np.testing.assert_array_equal(actual[:, 2], np.where(scores >= 0.4, 2, 0))
        assert record["num_keypoints"] == (scores >= 0.4).sum()
        assert record["bbox"] == [10.13, 20, 19.87, 40]
        assert record["area"] == pytest.approx(19.87 * 40)
        assert (record["id"], record["image_id"], record["category_id"], record["score"]) == (3, 7, 1, 0.5)
        category = keypoint_category(layout)
        assert category["keypoints"] == list(layout.names)
        start, end = category["skeleton"][0]
        assert (start - 1, end - 1) == (layout.skeleton[0].start, layout.skeleton[0].end)

    def test_points_that_are_not_there(self) -> None:
        keypoints, scores = person(17)
        keypoints[4], scores[4] = np.nan, 0.9
        assert record_of(keypoints, scores, COCO_17)["keypoints"][12:15] == [0, 0, 0]

    def test_whole_bodies_are_stored_as_their_dataset_does(self) -> None:
        keypoints, scores = person(133)
        scores[17:23] = 0.1  # no foot is visible
        record = record_of(keypoints, scores, COCO_WHOLEBODY_133)
        parts = {"keypoints": 17, "foot_kpts": 6, "face_kpts": 68, "lefthand_kpts": 21, "righthand_kpts": 21}
        assert {name: len(record[name]) // 3 for name in parts} == parts
        joined = np.concatenate([np.array(record[name]).reshape(-1, 3)[:, :2] for name in parts])
        np.testing.assert_allclose(joined, keypoints, atol=0.0051)
        assert (record["foot_valid"], record["face_valid"]) == (False, True)
        assert record["num_keypoints"] == (scores[:17] >= 0.4).sum()
        assert len(keypoint_category(COCO_WHOLEBODY_133)["keypoints"]) == 17

    def test_pycocotools_scores_a_perfect_match(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        coco = pytest.importorskip("pycocotools.coco")
        cocoeval = pytest.importorskip("pycocotools.cocoeval")
        keypoints, _ = person(17)
        record = record_of(keypoints, np.ones(17, np.float32), COCO_17)
        path = tmp_path / "people.json"
        with CocoWriter(path) as writer:
            writer.add(Thing([record], [keypoint_category(COCO_17)]))
        truth = coco.COCO(str(path))
        actual = truth.loadRes([{k: v for k, v in a.items() if k != "id"} for a in truth.loadAnns([1])])
        evaluation = cocoeval.COCOeval(truth, actual, "keypoints")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        assert evaluation.stats[0] == pytest.approx(1)
        capsys.readouterr()


def test_masks_and_their_numbers() -> None:
    mask_tools = pytest.importorskip("pycocotools.mask")
    mask = np.random.default_rng(0).random((20, 30)) > 0.5
    rle = encode_rle(mask, compress=True)
    record = mask_record(rle, image_id=1, annotation_id=2, category_id=3, score=0.123456)
    np.testing.assert_array_equal(mask_tools.decode(record["segmentation"]), mask)
    assert record["area"] == mask.sum()
    assert record["bbox"] == mask_tools.toBbox(record["segmentation"]).tolist()
    assert record["score"] == 0.1235


class TestWriter:
    def test_a_dataset_of_many_images(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        coco = pytest.importorskip("pycocotools.coco")
        path = tmp_path / "new" / "set.json"
        with CocoWriter(path, description="größe") as writer:
            ids = [writer.add(thing(count), file_name=f"{count}.jpg") for count in (1, 0, 2)]
            ids.append(writer.add(Thing([], [], source="clip.mp4", frame=3, time=0.12)))
            assert not path.exists()
        assert ids == [1, 0, 2, 3]
        dataset = coco.COCO(str(path))
        assert sorted(dataset.imgs) == [0, 1, 2, 3]
        assert [len(dataset.getAnnIds(imgIds=i)) for i in ids] == [1, 0, 2, 0]
        assert sorted(dataset.anns) == [1, 2, 3]
        assert dataset.annToMask(dataset.anns[2]).sum() == 60
        assert dataset.loadCats([5])[0]["name"] == "cat"
        assert dataset.imgs[2] == {"id": 2, "file_name": "2.jpg", "height": 20, "width": 30}
        assert (dataset.imgs[3]["frame"], dataset.imgs[3]["time"]) == (3, 0.12)
        assert json.loads(path.read_text(encoding="utf-8"))["info"]["description"] == "größe"
        assert list(path.parent.iterdir()) == [path]
        capsys.readouterr()

    def test_an_empty_dataset_is_one(self, tmp_path: Path) -> None:
        with CocoWriter(tmp_path / "a.json"):
            pass
        data = json.loads((tmp_path / "a.json").read_text())
        assert (data["images"], data["annotations"], data["categories"]) == ([], [], [])

    def test_panoptic_images_lie_beside_it(self, tmp_path: Path) -> None:
        class Stuff(Thing):
            def panoptic_image(self) -> np.ndarray:
                return np.full((*self.size_hw, 3), 7, np.uint8)

        with CocoWriter(tmp_path / "panoptic.json") as writer:
            for _ in range(2):  # images of one name do not overwrite each other
                writer.add(Stuff([{"segments_info": [], "file_name": "else.png"}], []))
        data = json.loads((tmp_path / "panoptic.json").read_text())
        names = [record["file_name"] for record in data["annotations"]]
        assert len(set(names)) == 2
        for name in names:
            assert np.asarray(Image.open(tmp_path / "panoptic" / name)).tolist()[0][0] == [7, 7, 7]

    def test_after_an_error_nothing_is_written(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError), CocoWriter(tmp_path / "a.json") as writer:  # noqa: PT012
            writer.add(thing())
            raise RuntimeError
        assert list(tmp_path.iterdir()) == []

    def test_a_result_that_fails_leaves_no_trace(self, tmp_path: Path) -> None:
        with CocoWriter(tmp_path / "a.json") as writer:
            writer.add(thing())
            with pytest.raises(InputError, match="finite"):
                writer.add(Thing([{"score": float("nan")}], [{"id": 9, "name": "x"}]))
            writer.add(thing())
        data = json.loads((tmp_path / "a.json").read_text())
        assert [image["id"] for image in data["images"]] == [1, 2]
        assert [record["id"] for record in data["annotations"]] == [1, 2]
        assert [category["id"] for category in data["categories"]] == [5]

    def test_categories_that_contradict(self, tmp_path: Path) -> None:
        with CocoWriter(tmp_path / "a.json") as writer:
            writer.add(thing())
            with pytest.raises(InputError, match="category 5: expected 'cat' as in earlier results, got 'dog'"):
                writer.add(thing(name="dog"))

    def test_many_threads(self, tmp_path: Path) -> None:
        with CocoWriter(tmp_path / "a.json") as writer:
            threads = [threading.Thread(target=lambda: [writer.add(thing(2)) for _ in range(20)]) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        data = json.loads((tmp_path / "a.json").read_text())
        assert [image["id"] for image in data["images"]] == list(range(1, 81))
        assert [record["id"] for record in data["annotations"]] == list(range(1, 161))

    def test_closed_writers_and_other_endings(self, tmp_path: Path) -> None:
        writer = CocoWriter(tmp_path / "a.json")
        assert writer.close() == writer.close() == tmp_path / "a.json"
        with pytest.raises(InputError, match="got a closed one"):
            writer.add(thing())
        with pytest.raises(InputError, match=r"ends in \.json, got '\.txt'"):
            CocoWriter(tmp_path / "a.txt")

    def test_a_removed_image_is_replaced(self, tmp_path: Path) -> None:
        with CocoWriter(tmp_path / "a.json", results=tmp_path / "r.json") as writer:
            for name, count in (("000000000139.jpg", 2), ("b.jpg", 1)):
                writer.add(thing(count), file_name=name)
            writer.remove({"000000000139.jpg", "missing.jpg"})
            assert (writer.images, writer.annotations) == (1, 1)
            writer.add(thing(1), file_name="000000000139.jpg")
        dataset = json.loads((tmp_path / "a.json").read_text())
        assert [(image["id"], image["file_name"]) for image in dataset["images"]] == [
            (140, "b.jpg"),
            (139, "000000000139.jpg"),
        ]
        assert [(record["id"], record["image_id"]) for record in dataset["annotations"]] == [(3, 140), (4, 139)]
        assert [record["image_id"] for record in json.loads((tmp_path / "r.json").read_text())] == [140, 139]


def test_youtube_vis_reads_the_records_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = np.zeros((4, 6), bool)
    mask[1:3, 2:5] = True
    rle, none = encode_rle(mask), encode_rle(np.zeros_like(mask))
    there = {"rle": rle, "area": 6, "score": 0.5}
    frames = [
        [{"id": 7, **there}, {"id": 2, **there, "score": None}],
        [{"id": 7, "rle": none, "area": 0, "score": 0.1}],
        [{"id": 7, **there, "score": 0.8}, {"id": 9, "rle": none, "area": 0, "score": 0.0}],
    ]
    records = tmp_path / "track.json"
    records.write_text("".join(json.dumps({"size_hw": [4, 6], "objects": objects}) + "\n" for objects in frames))
    reads, read = [], coco._read_json_lines
    monkeypatch.setattr(coco, "_read_json_lines", lambda path: reads.append(path) or read(path))
    write_youtube_vis(tmp_path / "vis.json", records, name="clip")
    written = json.loads((tmp_path / "vis.json").read_text())
    assert written["videos"] == [
        {"id": 1, "file_names": [f"clip/0000{n}" for n in range(3)], "length": 3, "height": 4, "width": 6}
    ]
    two, seven, nine = written["annotations"]
    assert (two["id"], seven["id"], nine["id"]) == (2, 7, 9)
    assert (seven["segmentations"], seven["areas"], seven["score"]) == ([rle, None, rle], [6, None, 6], 0.65)
    assert (two["bboxes"], two["score"]) == ([[2, 1, 3, 2], None, None], 0)
    assert (nine["segmentations"], nine["score"]) == ([None] * 3, 0)
    assert len(reads) == 1
