"""What all results share: checks on construction, saving by the ending, plain dicts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.unit.results.samples import HW, SAMPLES, people, sample
from vitruvian import results
from vitruvian.errors import InputError
from vitruvian.results.base import rounded_list

EVERY = sorted(SAMPLES)


class TestPeople:
    def test_checks(self) -> None:
        assert len(people(3)) == 3
        with pytest.raises(
            InputError, match=r"people.boxes_xyxy: expected a numpy array of float32 and shape \[P, 4\]"
        ):
            results.People(boxes_xyxy=np.zeros((2, 5), np.float32), scores=np.zeros(2, np.float32), detector="given")
        with pytest.raises(InputError, match=r"people.scores: .* shape \[2\], got the shape \[3\]"):
            results.People(boxes_xyxy=np.zeros((2, 4), np.float32), scores=np.zeros(3, np.float32), detector="given")
        with pytest.raises(InputError, match=r"people.ids: .*int64.*, got float32"):
            results.People(
                boxes_xyxy=np.zeros((1, 4), np.float32),
                scores=np.zeros(1, np.float32),
                ids=np.zeros(1, np.float32),
                detector="given",
            )

    def test_to_dict(self) -> None:
        actual = people(1, ids=True).to_dict()
        assert actual == {
            "boxes_xyxy": [[1, 2, 11, 14]], "scores": [0.9], "ids": [0], "detector": "test", "note": "a note",
        }  # fmt: skip


@pytest.mark.parametrize("task", EVERY)
class TestEveryResult:
    def test_its_names(self, task: str) -> None:
        result = sample(task)
        assert result.task == task
        assert result.size_hw == HW
        assert result.people is not None
        assert "20×30" in repr(result)

    def test_to_dict_is_ready_for_json(self, task: str) -> None:
        actual = json.loads(json.dumps(sample(task).to_dict(), allow_nan=False))
        assert actual["task"] == task
        assert actual["size_hw"] == [20, 30]
        assert (actual["source"], actual["model"], actual["frame"], actual["time"]) == ("a.jpg", "tiny", 4, 0.5)
        assert actual["people"]["detector"] == "test"

    def test_without_its_image(self, task: str) -> None:
        result = sample(task)
        lighter = result.without_image()
        assert result.image is not None
        assert lighter.image is None
        assert type(lighter) is type(result)
        assert lighter.task == task

    @pytest.mark.parametrize("with_image", [True, False])
    def test_plot(self, task: str, with_image: bool) -> None:
        result = sample(task) if with_image else sample(task).without_image()
        image = result.plot()
        assert image.mode == "RGB"
        assert image.size[0] >= 30
        assert image.size[1] >= 20
        assert result.plot_frame().size == (30, 20)

    def test_npz_holds_every_array(self, task: str, tmp_path: Path) -> None:
        result = sample(task)
        assert result.save(tmp_path / "a.npz") == tmp_path / "a.npz"
        with np.load(tmp_path / "a.npz", allow_pickle=False) as data:
            for name, array in result.arrays().items():
                np.testing.assert_array_equal(data[name], array)
            assert "image" not in data
            assert set(data) > {"people_boxes_xyxy", "people_scores", "info"}
            assert json.loads(str(data["info"]))["task"] == task

    def test_every_ending_is_written(self, task: str, tmp_path: Path) -> None:
        pytest.importorskip("OpenEXR")
        result = sample(task)
        for ending in result.extensions:
            path = result.save(tmp_path / f"A{ending.upper()}")
            assert path.stat().st_size > 0
        assert len(list(tmp_path.iterdir())) == len(result.extensions)

    def test_unknown_endings_name_those_known(self, task: str, tmp_path: Path) -> None:
        result = sample(task)
        for name in ("a.docx", "a", ".png"):
            with pytest.raises(InputError, match=f"expected a name that ends in {result.extensions[0]}.* for {task}"):
                result.save(tmp_path / name)
        assert list(tmp_path.iterdir()) == []

    def test_an_image_of_another_size(self, task: str) -> None:
        with pytest.raises(InputError, match=r"image: expected a numpy array of uint8 and shape \[20, 30, 3\]"):
            sample(task, image=np.zeros((30, 20, 3), np.uint8))

    def test_a_size_that_is_none(self, task: str) -> None:
        for size in ((0, 30), [20, 30], (20.0, 30), (20,)):
            with pytest.raises(InputError, match="size_hw: expected"):
                sample(task, size_hw=size)


MAP, VECTORS = np.zeros(HW, np.float32), np.zeros((*HW, 3), np.float32)
WRONG = [
    ("pose", {"keypoints": np.zeros((1, 308, 3), np.float32)}, r"keypoints: .*\[P, 308, 2\], got the shape \[1"),
    ("pose", {"keypoints": np.zeros((2, 308, 2))}, "keypoints: .* got float64"),
    ("pose", {"scores": np.zeros((1, 308), np.float32)}, "scores: "),
    ("pose", {"names": ("a", "b")}, r"keypoints: .*\[P, 2, 2\]"),
    ("parts", {"labels": np.full(HW, 29, np.uint8)}, "labels: expected numbers from 0 to 28, got 29"),
    ("parts", {"labels": np.zeros(HW, np.int64)}, "labels: .* got int64"),
    ("parts", {"colors": np.zeros((3, 3), np.uint8)}, "colors: "),
    ("parts", {"score": MAP}, "score: .*float16"),
    ("normals", {"normals": MAP}, "normals: "),
    ("normals", {"mask": MAP}, "mask: .*bool"),
    ("normals", {"convention": "blender"}, "convention: expected one of opencv, opengl, got 'blender'"),
    ("pointmap", {"points": MAP}, "points: "),
    ("pointmap", {"mask": np.ones((3, 3), bool)}, "mask: "),
    ("pointmap", {"intrinsics": np.zeros((3, 3), np.float32)}, "intrinsics: expected .* above 0"),
    ("pointmap", {"intrinsics": np.eye(3, dtype=np.float32) * np.nan}, "intrinsics: expected .* above 0"),
    ("pointmap", {"intrinsics": np.float32([[5, 0, 1], [0, 5, 1], [1, 0, 0]])}, "intrinsics: expected .* above 0"),
    ("pointmap", {"intrinsics": np.eye(3)}, "intrinsics: .* got float64"),
    ("pointmap", {"intrinsics_from": "guess"}, "intrinsics_from: expected one of"),
    ("pointmap", {"scale": -1.0}, "scale: "),
    ("matte", {"alpha": MAP + 2}, "alpha: expected values from 0 to 1, got 2 to 2"),
    ("matte", {"foreground": VECTORS * np.nan}, "foreground: expected values from 0 to 1, got nan"),
    ("matte", {"alpha": VECTORS}, "alpha: "),
    ("albedo", {"albedo": MAP}, "albedo: "),
    ("instances", {"rles": np.zeros((3, 5, 5), bool)}, r"rles: .*\[N, 20, 30\]"),
    ("instances", {"rles": [{"size": [5, 5], "counts": [25]}]}, "masks of 20×30 pixels, got 5×5"),
    ("instances", {"rles": [{"size": [20, 30], "counts": [7]}]}, "add up to"),
    ("instances", {"rles": 5}, "rles: expected a list"),
    ("instances", {"scores": np.zeros(1, np.float32)}, "scores: "),
    ("instances", {"kind": "things"}, "kind: expected one of segment, masks, instances"),
    ("instances", {"label_names": ("one",)}, "label_names: expected 3 names"),
    ("semantic", {"labels": np.full(HW, -1, np.int32)}, "labels: expected numbers from 0"),
    ("panoptic", {"segmentation": np.full(HW, 9, np.int32)}, r"got \[9\] too"),
    ("panoptic", {"segmentation": np.full(HW, -1, np.int32)}, "0 for none, got -1"),
    ("embed", {"patches": np.zeros((2, 3, 5), np.float32)}, r"patches: .*\[h, w, 8\]"),
    ("embed", {"cls": np.zeros((1, 8), np.float32)}, "cls: "),
]  # fmt: skip


@pytest.mark.parametrize(("task", "change", "message"), WRONG, ids=[f"{t}-{next(iter(c))}" for t, c, _ in WRONG])
def test_what_does_not_fit_is_named(task: str, change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sample(task, **change)


def test_tasks_of_all_classes_are_different() -> None:
    classes = {cls for cls, _ in SAMPLES.values()}
    assert len({cls.task for cls in classes}) == len(classes)


def test_the_longest_ending_counts(tmp_path: Path) -> None:
    from PIL import Image

    result = sample("pointmap")
    result.save(tmp_path / "a.16.png")
    result.save(tmp_path / "b16.png")
    assert Image.open(tmp_path / "a.16.png").mode == "I;16"
    assert Image.open(tmp_path / "b16.png").mode == "RGB"


def test_plain_numbers() -> None:
    assert rounded_list(np.array([[1.23456, np.nan], [np.inf, 2]], np.float32)) == [[1.2346, None], [None, 2.0]]
