"""The dataset of `--coco`: results of images that are processed again replace the earlier ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vitruvian.cli.coco_dataset import CocoDataset
from vitruvian.results import Masks


def result(score: float) -> Masks:
    mask = np.zeros((1, 8, 8), bool)
    mask[:, 2:6, 2:6] = True
    return Masks(
        kind="segment",
        size_hw=(8, 8),
        rles=mask,
        scores=np.array([score], np.float32),
        boxes_xyxy=np.array([[2, 2, 6, 6]], np.float32),
    )


def scores(path: Path) -> list[tuple[str, float]]:
    """Return the name and the score of each annotation, one for each image."""
    dataset = json.loads(path.read_text())
    names = {image["id"]: image["file_name"] for image in dataset["images"]}
    assert len(names) == len(dataset["images"]) == len(dataset["annotations"])
    return sorted((names[one["image_id"]], one["score"]) for one in dataset["annotations"])


class TestDataset:
    @pytest.mark.parametrize("written_before", [False, True])
    def test_an_image_that_changed_replaces_its_entry(self, tmp_path: Path, written_before: bool) -> None:
        path = tmp_path / "data.json"
        dataset = CocoDataset(path, overwrite=False)
        dataset.add(result(0.25), "a.jpg", "settings")
        dataset.add(result(0.5), "b.jpg", "settings")
        if written_before:
            dataset.close()
            dataset = CocoDataset(path, overwrite=False)
        assert dataset.has("a.jpg", "settings")
        dataset.remove({"a.jpg", "new.jpg"})
        assert not dataset.has("a.jpg", "settings")
        dataset.add(result(0.75), "a.jpg", "settings")
        dataset.close()
        assert scores(path) == [("a.jpg", 0.75), ("b.jpg", 0.5)]
