"""The built-in model: the default of pipelines, and its detector."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.pipelines import sample_image
from tests.helpers.tiny_multitask import install, tiny_multitask
from vitruvian import InputError, VitruvianWarning, pipeline
from vitruvian.images.types import RgbImage
from vitruvian.models.sapiens2.multitask import save_multitask
from vitruvian.models.sapiens2.people_detection import Sapiens2ForPeopleDetection
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.pipelines import default_model
from vitruvian.pipelines.people import open_detector
from vitruvian.pipelines.people.sapiens2_detector import Sapiens2Detector, _extra_tiles
from vitruvian.tasks import find_task

DENSE = ("parts", "normals", "pointmap", "matte", "albedo")


class Seen:
    """Stands in for the model of a detector: sees what it is told, where the image is bright."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []
        self.config = SimpleNamespace(token_hw=(16, 16))

    def eval(self) -> Seen:
        return self

    def parameters(self) -> Any:
        return iter([torch.zeros(1)])

    def __call__(self, pixels: torch.Tensor, return_dict: bool) -> Any:
        """Find a box around the brightest spot in cells of 8 pixels, 2 cells to each side."""
        self.sizes.append((pixels.shape[-2], pixels.shape[-1]))
        small = torch.nn.functional.avg_pool2d(pixels.mean(1, keepdim=True), 8)  # [1, 1, g, g']
        logits = torch.where(small == small.amax(), 3.0, -9.0)
        logits = torch.where(small > 0, logits, -9.0)
        return SimpleNamespace(logits=logits, sides=torch.full((1, 4, *small.shape[-2:]), 2.0))


class PartsInBox:
    """Stands in for a model of body parts: a share of the bottom of every image is a person, the rest background."""

    def __init__(self, share: float) -> None:
        self.share = share

    def eval(self) -> PartsInBox:
        return self

    def __call__(self, pixels: torch.Tensor, return_dict: bool) -> Any:
        rows = torch.arange(pixels.shape[-2])[:, None].expand(pixels.shape[-2:]) / pixels.shape[-2]  # [h, w]
        # The box is the middle two thirds of the crop around it.
        person = torch.where(rows >= 1 / 6 + (1 - self.share) * 2 / 3, 9.0, -9.0)
        return SimpleNamespace(logits=torch.stack([-person, person])[None])


def stand_in(**options: Any) -> tuple[Sapiens2Detector, Seen]:
    model: Any = Seen()
    processor = Sapiens2ImageProcessor(do_normalize=False)
    return Sapiens2Detector(model, processor, **options), model


def with_spot(size_hw: tuple[int, int], *, x: int, y: int, side: int = 8) -> RgbImage:
    """A black image with a white square around (x, y)."""
    made = np.zeros((*size_hw, 3), np.uint8)
    made[y - side // 2 : y + side // 2, x - side // 2 : x + side // 2] = 255
    return made


class TestDefaults:
    @pytest.mark.parametrize("task", ["pose", *DENSE, "embed"])
    def test_every_task_of_people_has_it(self, task: str, inside: Path) -> None:
        with pytest.warns(VitruvianWarning, match=f"not given for {task}, so the small built-in model"):
            pipe = pipeline(task)
        assert pipe.name == "builtin"
        result = pipe(sample_image())
        assert result.model == "builtin"
        assert result.size_hw == (40, 56)

    def test_the_notice_comes_once_and_not_for_those_who_ask(self, inside: Path) -> None:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            pipeline("pose", "builtin")
            assert not seen
            pipeline("pose")
            pipeline("pose")
        assert len(seen) == 1
        assert "facebook/sapiens2-pose-1b" in str(seen[0].message)
        assert seen[0].filename == __file__

    def test_tasks_it_does_not_have(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install(tmp_path, monkeypatch, "pose")
        assert default_model("pose") == "builtin"
        assert default_model("parts") is None
        assert default_model("panoptic") is None
        with pytest.raises(InputError, match="expected a checkpoint for parts"):
            pipeline("parts")

    def test_poses_look_for_people(self, inside: Path) -> None:
        pipe = pipeline("pose", "builtin", device="cpu")
        found = pipe(sample_image())
        assert found.people.detector == "builtin"
        assert pipe(sample_image(), detect="whole").people.detector == "whole image"
        assert pipe(sample_image(), boxes=[[3, 4, 30, 38]]).people.detector == "given"

    @pytest.mark.parametrize("task", DENSE)
    def test_maps_look_for_people(self, task: str, inside: Path) -> None:
        pipe = pipeline(task, "builtin", device="cpu")
        assert pipe.processor.do_pad  # in proportion, as the model was trained
        assert pipe(sample_image()).people.detector == "builtin"
        assert pipe(sample_image(), detect="whole").people.detector == "whole image"
        assert pipe(sample_image(), boxes=[[3, 4, 30, 38]]).people.detector == "given"

    def test_a_packed_folder_does_as_much(self, packed: Path) -> None:
        found = pipeline("pose", packed, device="cpu")(sample_image())
        assert found.people.detector == "mine"

    def test_without_people_among_its_tasks(self, tmp_path: Path) -> None:
        save_multitask(tiny_multitask("pose", "seg"), tmp_path)
        for task in ("pose", "parts"):
            assert pipeline(task, tmp_path)(sample_image()).people.detector == "builtin"


@pytest.mark.parametrize("task", ["normals", "pointmap", "albedo"])
class TestMaskedBackground:
    """A multi-task model with mattes masks what is no person."""

    @pytest.mark.parametrize("options", [{"detect": "whole"}, {"boxes": [[3, 4, 30, 38]]}, {"tile": 32}])
    def test_by_the_matte(self, task: str, options: dict[str, Any], packed: Path) -> None:
        alpha = pipeline("matte", packed, device="cpu")(sample_image(), **options).alpha
        pipe = pipeline(task, packed, device="cpu")
        result, kept = pipe(sample_image(), **options), pipe(sample_image(), background="keep", **options)
        person = alpha >= 0.5
        assert 0 < person.sum() < person.size
        inside = person if kept.mask is None else person & kept.mask
        np.testing.assert_array_equal(result.mask, inside)
        values, everywhere = (getattr(one, "points" if task == "pointmap" else task) for one in (result, kept))
        assert not values[~inside].any()
        if task != "pointmap":  # whose camera is fitted to people
            np.testing.assert_array_equal(values[inside], everywhere[inside])
        assert everywhere[~person].any()
        assert (np.asarray(result.plot())[~inside] == 128).all()

    def test_without_mattes_the_map_is_whole(self, task: str, tmp_path: Path) -> None:
        head = str(find_task(task).sapiens2_head)
        save_multitask(tiny_multitask(head, "people"), tmp_path)
        result = pipeline(task, tmp_path, device="cpu")(sample_image(), detect="whole")
        assert result.mask is None or result.mask.any()

    def test_the_encoder_runs_once(self, task: str, packed: Path) -> None:
        pipe, calls = pipeline(task, packed, device="cpu"), []
        pipe.model.model.register_forward_hook(lambda *_: calls.append(1))
        pipe(sample_image(), detect="whole")
        assert len(calls) == 1

    def test_no_such_choice(self, task: str, packed: Path) -> None:
        with pytest.raises(InputError, match='background: expected "mask" or "keep"'):
            pipeline(task, packed, device="cpu", background="blur")


class TestDetector:
    def test_opening(self, inside: Path) -> None:
        detector = open_detector("builtin", device="cpu", threshold=0.0)
        assert isinstance(detector, Sapiens2Detector)
        assert isinstance(detector.model, Sapiens2ForPeopleDetection)
        assert (detector.name, detector.threshold) == ("builtin", 0.0)
        people = detector.detect(sample_image())
        assert len(people) > 0  # random weights, any score will do
        assert (np.diff(people.scores) <= 0).all()
        assert people.boxes_xyxy.min() >= 0
        assert (people.boxes_xyxy <= [56, 40, 56, 40]).all()
        assert open_detector(inside).name == "mine"

    @pytest.mark.parametrize(("share", "kept"), [(1.0, True), (0.5, True), (0.3, True), (0.1, False), (0.0, False)])
    def test_boxes_are_confirmed_by_the_parts_inside(self, share: float, kept: bool) -> None:
        image = with_spot((384, 384), x=196, y=196)
        (plain,) = stand_in()[0].detect(image).scores
        detector, _ = stand_in(parts=PartsInBox(share))
        found = detector.detect(image)
        assert detector.threshold == 0.5
        assert len(found) == kept
        if kept:
            assert found.scores[0] == pytest.approx((plain * min(1, 2 * share)) ** 0.5, rel=0.02)

    def test_a_checkpoint_with_parts_confirms_its_boxes(self, inside: Path) -> None:
        detector = open_detector("builtin", device="cpu")
        assert isinstance(detector, Sapiens2Detector)
        assert detector.parts is not None
        assert detector.parts.model is detector.model.model

    @pytest.mark.parametrize("size_hw", [(480, 640), (640, 480), (96, 128), (1000, 1100)])
    def test_boxes_are_in_source_pixels(self, size_hw: tuple[int, int]) -> None:
        detector, model = stand_in()
        x, y = size_hw[1] * 5 // 8, size_hw[0] * 3 // 8
        people = detector.detect(with_spot(size_hw, x=x, y=y, side=max(4, max(size_hw) // 40)))
        ((h, w),) = model.sizes
        assert max(h, w) == 384
        assert h % 16 == 0
        assert w % 16 == 0
        assert abs(h / w - size_hw[0] / size_hw[1]) < 0.05 * h / w
        ((left, top, right, bottom),) = people.boxes_xyxy
        cell_x, cell_y = 8 * size_hw[1] / w, 8 * size_hw[0] / h
        assert abs((left + right) / 2 - x) <= cell_x
        assert abs((top + bottom) / 2 - y) <= cell_y
        assert (right - left, bottom - top) == pytest.approx((4 * cell_x, 4 * cell_y), rel=1e-3)

    def test_long_images_are_looked_at_in_pieces(self) -> None:
        wide = with_spot((300, 1800), x=950, y=120, side=40)
        detector, model = stand_in()
        found = detector.detect(wide)
        assert len(model.sizes) > 3
        assert all(size == (288, 384) for size in model.sizes[1:])
        widths = found.boxes_xyxy[:, 2] - found.boxes_xyxy[:, 0]
        near = found.boxes_xyxy[widths < 50]  # seen in pieces: cells of the whole image have 37 pixels
        assert len(near) > 0
        assert (abs((near[:, 0] + near[:, 2]) / 2 - 950) < 25).all()

    def test_people_cut_by_a_piece_are_left_to_others(self) -> None:
        detector, _ = stand_in()
        pixels = torch.from_numpy(with_spot((400, 400), x=204, y=200, side=8)).permute(2, 0, 1)
        window = _extra_tiles((400, 1200))[0]._replace(left=0, top=0, height=400, width=212)
        boxes, _ = detector._detect(pixels[:, :, :212])
        assert len(boxes) == 1  # seen, but it ends at the edge
        assert len(detector._detect_in_tile(pixels, window)[0]) == 0

    def test_options(self) -> None:
        with pytest.raises(InputError, match="threshold"):
            stand_in(threshold=1.5)
