"""Datasets and results files against COCOeval of pycocotools."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.results.samples import masks_fields, sample
from vitruvian.files import CocoWriter
from vitruvian.results import Masks

pytest.importorskip("pycocotools")


def evaluate(truth: Path, results: Path, kind: str) -> float:
    """The average precision that COCOeval computes."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(truth))
        evaluation = COCOeval(coco, coco.loadRes(str(results)), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def write(folder: Path, result: Any, names: list[str]) -> tuple[Path, Path]:
    with CocoWriter(folder / "all.json", results=folder / "all_results.json") as writer:
        for name in names:
            writer.add(result, file_name=name)
    return folder / "all.json", folder / "all_results.json"


def test_keypoints(tmp_path: Path) -> None:
    pose = sample("pose").to_layout("coco17")
    truth, results = write(tmp_path, pose, ["train/000000000139.jpg", "000000000285.jpg"])
    assert evaluate(truth, results, "keypoints") == pytest.approx(1.0)
    records = json.loads(results.read_text())
    assert {record["image_id"] for record in records} == {139, 285}
    assert set(records[0]) == {"image_id", "category_id", "bbox", "keypoints", "score"}
    records[0]["keypoints"] = [value + 50 for value in records[0]["keypoints"]]
    results.write_text(json.dumps(records))
    assert evaluate(truth, results, "keypoints") < 0.9


@pytest.mark.parametrize("kind", ["segm", "bbox"])
def test_masks(kind: str, tmp_path: Path) -> None:
    fields = masks_fields() | {"label_ids": np.array([15, 16, 15])}
    truth, results = write(tmp_path, Masks(size_hw=(20, 30), **fields), ["7.jpg"])
    values = json.loads(truth.read_text())
    for record in [*values["annotations"], *values["categories"]]:  # as COCO has them
        key = "category_id" if "category_id" in record else "id"
        record[key] = {15: 17, 16: 18}[record[key]]
    truth.write_text(json.dumps(values))
    assert {record["category_id"] for record in json.loads(results.read_text())} == {17, 18}  # cat and dog
    assert evaluate(truth, results, kind) == pytest.approx(1.0)


def test_image_ids(tmp_path: Path) -> None:
    truth, _ = write(tmp_path, sample("instances"), ["b.jpg", "0012.jpg", "x/0012.jpg", "c.jpg", "0.jpg"])
    images = json.loads(truth.read_text())["images"]
    assert [image["id"] for image in images] == [1, 12, 13, 14, 0]


def test_nothing_found(tmp_path: Path) -> None:
    none: dict[str, Any] = {"rles": [], "scores": np.zeros(0, np.float32), "boxes_xyxy": np.zeros((0, 4), np.float32)}
    _, results = write(tmp_path, Masks(kind="segment", size_hw=(20, 30), **none), ["b.jpg"])
    assert json.loads(results.read_text()) == []
