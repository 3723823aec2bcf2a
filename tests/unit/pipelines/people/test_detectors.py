"""People detectors: opened by name, boxes clipped and checked, and images without people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitruvian.errors import InputError
from vitruvian.images.types import RgbImage
from vitruvian.pipelines.people import PeopleDetector, detect_people, open_detector, people_from_boxes
from vitruvian.pipelines.people.detectors import FunctionDetector
from vitruvian.results.base import People

IMAGE: RgbImage = np.zeros((60, 80, 3), np.uint8)


def found(boxes: list[list[float]], scores: list[float] | None = None, note: str | None = None) -> People:
    table = np.array(boxes, np.float32).reshape(-1, 4)
    sure = np.ones(len(table), np.float32) if scores is None else np.array(scores, np.float32)
    return People(boxes_xyxy=table, scores=sure, detector="fake", note=note)


class Fake:
    name = "fake"

    def __init__(self, people: People) -> None:
        self.people = people

    def detect(self, image: RgbImage) -> People:
        return self.people


def test_boxes_are_clipped_sorted_and_useless_ones_dropped() -> None:
    boxes = [[-10, -5, 20, 30], [70, 50, 200, 90], [100, 10, 120, 20], [5, 5, 5.5, 40], [0, 0, np.nan, 5]]
    people = detect_people(Fake(found(boxes, [0.5, 0.9, 1.0, 1.0, 1.0])), IMAGE)
    np.testing.assert_array_equal(people.boxes_xyxy, [[70, 50, 80, 60], [0, 0, 20, 30]])
    np.testing.assert_allclose(people.scores, [0.9, 0.5])
    assert people.note is None
    assert len(detect_people(Fake(found(boxes)), IMAGE, max_people=1)) == 1


def test_nobody_is_explicit() -> None:
    nobody = Fake(found([]))
    whole = detect_people(nobody, IMAGE)
    np.testing.assert_array_equal(whole.boxes_xyxy, [[0, 0, 80, 60]])
    assert (whole.scores.tolist(), whole.detector) == ([0.0], "fake")
    assert whole.note == "no person detected; processed the whole image"
    assert whole.fallback
    none = detect_people(Fake(found([], note="not listed")), IMAGE, on_empty="none")
    assert (len(none), none.note) == (0, "not listed: no person detected")
    with pytest.raises(InputError, match=r"a\.jpg: expected people, but fake detected no one"):
        detect_people(nobody, IMAGE, source="a.jpg", on_empty="error")


def test_a_detector_that_wants_the_file_gets_it() -> None:
    class Asks(Fake):
        def detect_in(self, image: RgbImage, *, source: str, frame: int | None) -> People:
            assert (source, frame) == ("clip.mp4", 7)
            return found([[1, 2, 30, 40]])

    people = detect_people(Asks(found([])), IMAGE, source="clip.mp4", frame=7)
    np.testing.assert_array_equal(people.boxes_xyxy, [[1, 2, 30, 40]])


class TestOpening:
    @pytest.mark.parametrize("spec", [None, "whole", "WHOLE"])
    def test_whole_image(self, spec: str | None) -> None:
        detector = open_detector(spec)
        people = detect_people(detector, IMAGE)
        np.testing.assert_array_equal(people.boxes_xyxy, [[0, 0, 80, 60]])
        assert (people.scores.tolist(), people.detector, people.note) == ([1.0], "whole image", None)
        assert not people.fallback

    def test_a_function(self) -> None:
        def faces(image: RgbImage) -> list[list[float]]:
            return [[1, 2, 3, 4, 0.5]] if image.size else []

        detector = open_detector(faces)
        assert isinstance(detector, PeopleDetector)
        people = detector.detect(IMAGE)
        assert (people.detector, people.scores.tolist()) == ("faces", [0.5])
        np.testing.assert_array_equal(people.boxes_xyxy, [[1, 2, 3, 4]])
        assert len(detector.detect(IMAGE[:0])) == 0
        with pytest.raises(InputError, match=r"got \[2, 3\]"):
            FunctionDetector(lambda _: np.ones((2, 3)), name="bad").detect(IMAGE)

    def test_a_detector_stays_what_it_is(self) -> None:
        detector = Fake(found([]))
        assert open_detector(detector) is detector

    @pytest.mark.parametrize("spec", [3, "", " "])
    def test_other_things_are_refused(self, spec: Any) -> None:
        with pytest.raises(InputError, match="detect: expected"):
            open_detector(spec)

    def test_files_are_told_by_their_ending(self, tmp_path: Path) -> None:
        path = tmp_path / "boxes.json"
        path.write_text('{"a.jpg": [[1, 2, 3, 4, 0.3], [5, 6, 7, 8]]}')
        assert len(open_detector(path).detect(IMAGE)) == 2
        assert len(open_detector(str(path), threshold=0.5).detect(IMAGE)) == 1
        with pytest.raises(OSError, match="file not found"):
            open_detector(tmp_path / "none.onnx")


class TestGivenBoxes:
    def test_forms(self) -> None:
        people = people_from_boxes([[10, 20, 30, 40]], (60, 80), box_format="xywh")
        np.testing.assert_array_equal(people.boxes_xyxy, [[10, 20, 40, 60]])
        assert (people.detector, people.scores.tolist()) == ("given", [1.0])
        one = people_from_boxes([10, 20, 30, 40], (60, 80), box_format="xyxy")
        np.testing.assert_array_equal(one.boxes_xyxy, [[10, 20, 30, 40]])
        assert len(people_from_boxes([], (60, 80), box_format="xywh")) == 0

    def test_a_box_may_reach_out(self) -> None:
        people = people_from_boxes([[-10, -10, 200, 200]], (60, 80), box_format="xywh")
        np.testing.assert_array_equal(people.boxes_xyxy, [[-10, -10, 190, 190]])

    @pytest.mark.parametrize(
        ("boxes", "words"),
        [
            ([[1, 2, 0, 4]], "some area"),
            ([[1, 2, 3, -4]], "some area"),
            ([[1, 2, 3, float("inf")]], "finite"),
            ([[100, 2, 30, 40]], "is outside"),
            ([[1, 2, 3]], "shape"),
            ([[[1, 2, 3, 4]]], "shape"),
            ([["a", 2, 3, 4]], "four numbers"),
        ],
    )
    def test_impossible_boxes_are_refused(self, boxes: Any, words: str) -> None:
        with pytest.raises(InputError, match=words):
            people_from_boxes(boxes, (60, 80), box_format="xywh")
