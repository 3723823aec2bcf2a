"""Keypoints of people in boxes, found or given, and of whole images."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.helpers.pipelines import opened, parts_of, sample_image
from vitruvian import Sapiens2ImageProcessor, pipeline
from vitruvian.errors import InputError
from vitruvian.pipelines.tasks.pose import _LazyValue
from vitruvian.results import People

BOXES = [[4.0, 3.0, 30.0, 38.0], [22.0, 5.0, 50.0, 36.0]]


class Detector:
    """Finds what it is told, and notes what it saw."""

    name = "told"

    def __init__(self, *answers: list[list[float]]) -> None:
        self.answers, self.seen = list(answers), []

    def detect(self, shown: np.ndarray) -> People:
        self.seen.append(int(shown[0, 0, 0]))
        boxes = np.array(self.answers[len(self.seen) % len(self.answers)], np.float32).reshape(-1, 4)
        return People(boxes_xyxy=boxes, scores=np.ones(len(boxes), np.float32), detector=self.name)


@pytest.mark.parametrize("size_hw", [(1, 20_000), (20_000, 1)])
def test_an_image_of_one_row_or_column(size_hw: tuple[int, int]) -> None:
    pose = opened("pose")(np.zeros((*size_hw, 3), np.uint8), detect="whole")
    assert pose.size_hw == size_hw
    assert np.isfinite(pose.keypoints).all()


def test_by_hand() -> None:
    pipe, shown = opened("pose"), sample_image()
    xywh = [[[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in BOXES]]
    with torch.inference_mode():
        out = pipe.model(**pipe.processor(shown, boxes=xywh, return_tensors="pt"))
    (wanted,) = pipe.processor.post_process_pose_estimation(out, boxes=xywh)
    result = pipe(shown, boxes=BOXES)
    for row, person in enumerate(wanted):
        # Two at once, or one by one: random heatmaps have saddles, which magnify rounding.
        np.testing.assert_allclose(result.keypoints[row], person["keypoints"].numpy(), atol=2e-2)
        np.testing.assert_allclose(result.scores[row], person["scores"].numpy(), atol=1e-5)
    assert result.people.boxes_xyxy.tolist() == BOXES
    assert result.names == tuple(pipe.model.config.id2label.values())
    again = pipe(shown, boxes=xywh[0], box_format="xywh")
    np.testing.assert_array_equal(again.keypoints, result.keypoints)


def test_a_dot_is_found_where_it_is() -> None:
    """Heatmaps of a model that sees brightness peak at the one bright spot, in source pixels."""
    model, _ = parts_of("pose")

    def answer(pixels: torch.Tensor, **_: Any) -> SimpleNamespace:
        bright = torch.nn.functional.avg_pool2d(pixels.mean(1, keepdim=True), 4) + 2.2  # [B, 1, h/4, w/4]
        return SimpleNamespace(heatmaps=bright.expand(-1, 5, -1, -1))

    model.forward = answer
    pipe = pipeline("pose", model, processor=Sapiens2ImageProcessor(size={"height": 256, "width": 192}), device="cpu")
    rows, columns = np.mgrid[0:120, 0:150]
    for x, y in ((40, 70), (95, 31)):
        spot = 255 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 40)
        shown = np.repeat(spot[..., None], 3, -1).astype(np.uint8)
        for options in (
            {"detect": "whole"},
            {"boxes": [[10, 10, 130, 110]]},
            {"boxes": [[x - 30, y - 25, x + 20, y + 40]]},
        ):
            (points,) = pipe(shown, **options).keypoints
            np.testing.assert_allclose(points, [[x, y]] * 5, atol=1.5)


class TestWhoIsLookedAt:
    def test_the_whole_image(self) -> None:
        result = opened("pose")(sample_image(), detect="whole")
        assert (len(result), result.people.detector, result.people.note) == (1, "whole image", None)
        assert result.people.boxes_xyxy.tolist() == [[0, 0, 56, 40]]

    def test_without_anything_the_builtin_detector(self) -> None:
        result = opened("pose", detect=None)(np.asarray(Image.open("examples/astronaut.jpg")))
        assert result.people.detector == "builtin"
        assert len(result) >= 1
        assert result.people.note == "people were detected by the built-in detector, the default"

    def test_what_a_call_says_replaces_what_the_pipeline_says(self) -> None:
        assert opened("pose", detect="whole")(sample_image(), boxes=BOXES).people.detector == "given"
        assert opened("pose", boxes=BOXES)(sample_image(), detect="whole").people.detector == "whole image"

    def test_a_detector_looks_in_order_at_every_image(self) -> None:
        detector = Detector(BOXES, [], BOXES[:1])
        shown = [sample_image(seed) for seed in range(9)]
        for number, one in enumerate(shown):
            one[0, 0] = number
        found = list(opened("pose", detect=detector)(shown, batch_size=4))
        assert detector.seen == list(range(9))
        assert [len(result) for result in found] == [0, 1, 2] * 3
        assert found[0].people.note == "no person detected"
        assert found[0].keypoints.shape == (0, 5, 2)
        assert {result.people.detector for result in found} == {"told"}

    def test_nobody_found_and_the_whole_image_instead(self) -> None:
        result = opened("pose", detect=Detector([]), on_empty="whole")(sample_image())
        assert len(result) == 1
        assert result.people.note == "no person detected; processed the whole image"
        assert result.people.scores.tolist() == [0]
        found = list(opened("pose", detect=Detector([]), on_empty="error")([sample_image()]))
        assert "no one" in found[0].message

    def test_a_detector_from_a_file(self, tmp_path: Path) -> None:
        Image.fromarray(sample_image()).save(tmp_path / "a.png")
        (tmp_path / "boxes.json").write_text('{"a.png": [[4, 3, 26, 35]]}')
        pipe = opened("pose", detect=str(tmp_path / "boxes.json"))
        (result,) = pipe([tmp_path / "a.png"])
        assert result.people.boxes_xyxy.tolist() == [[4, 3, 30, 38]]
        assert list(pipe._open_detectors) == [(str(tmp_path / "boxes.json"), None)]

    def test_the_best_few(self) -> None:
        assert len(opened("pose")(sample_image(), boxes=BOXES, max_people=1)) == 1
        assert len(opened("pose")(sample_image(), detect=Detector(BOXES), max_people=1)) == 1

    def test_boxes_for_each_image(self, tmp_path: Path) -> None:
        pipe = opened("pose")
        shown = [sample_image(seed) for seed in range(3)]
        found = list(pipe(shown, boxes=[BOXES, [], BOXES[1:]]))
        assert [len(result) for result in found] == [2, 0, 1]
        found = list(pipe(shown, boxes=[BOXES]))
        assert "none for array" in found[1].message
        Image.fromarray(shown[0]).save(tmp_path / "a.png")
        table = {"a.png": BOXES, "b": BOXES[:1]}
        assert len(pipe(tmp_path / "a.png", boxes=table)) == 2
        Image.fromarray(shown[0]).save(tmp_path / "c.png")
        with pytest.raises(InputError, match=r"no entry for .*c\.png"):
            pipe(tmp_path / "c.png", boxes=table)

    @pytest.mark.parametrize(
        "boxes", [[[4, 3, 2, 1]], [[400, 300, 500, 400]], [[0, 0, float("nan"), 5]], [[1, 2, 3]], "all"]
    )
    def test_boxes_that_make_no_sense(self, boxes: Any) -> None:
        with pytest.raises(InputError, match="boxes"):
            opened("pose")(sample_image(), boxes=boxes)

    def test_boxes_of_the_whole_image(self) -> None:
        with pytest.raises(InputError, match='boxes: expected boxes or detect="whole", got both'):
            opened("pose")(sample_image(), boxes=BOXES, detect="whole")


def test_mirrored_too() -> None:
    pipe = opened("pose")
    with pytest.raises(InputError, match="flip_pairs"):
        pipe(sample_image(), flip=True)
    pipe.model.config.flip_pairs = [[1, 2], [3, 4]]
    xywh = [[4.0, 3.0, 26.0, 35.0]]
    crops = pipe.processor(sample_image(), boxes=[xywh], return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        plain = pipe.model(crops)
        flipped = pipe.model(crops.flip(-1), flip_pairs=torch.tensor([[1, 2], [3, 4]]))
    (person,) = pipe.processor.post_process_pose_estimation(plain, boxes=[xywh], outputs_flipped=flipped)[0]
    result = pipe(sample_image(), boxes=[[4, 3, 30, 38]], flip=True)
    np.testing.assert_allclose(result.keypoints[0], person["keypoints"].numpy(), atol=1e-4)


class TestLazyValue:
    def test_computed_once_for_all_threads(self) -> None:
        asked: list[int] = []

        def work() -> int:
            asked.append(1)
            threading.Event().wait(0.02)
            return 7

        later, found = _LazyValue(work), []
        threads = [threading.Thread(target=lambda: found.append(later.get())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [7] * 8
        assert asked == [1]
        assert later._compute is None

    def test_computed_again_after_an_error(self) -> None:
        answers = iter([ValueError("not yet"), 3])

        def work() -> int:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        later = _LazyValue(work)
        with pytest.raises(ValueError, match="not yet"):
            later.get()
        assert later.get() == later.get() == 3
