"""Judging models on a set: perfect answers get perfect scores, and wrong ones do not."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tests.unit.training.tiny_runs import SIZE_HW, TASKS, make_set
from vitruvian.errors import InputError
from vitruvian.training.datasets.folder import PeopleFolder
from vitruvian.training.datasets.labels import LabeledImages, keypoint_targets, task_labels
from vitruvian.training.evaluation.evaluate import _MAIN_SCORES, _main_scores, evaluate_folder


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> PeopleFolder:
    folder = make_set(tmp_path_factory.mktemp("set"), 6, seed=5)
    return PeopleFolder(folder, size_hw=SIZE_HW, tasks=TASKS)


def truth_outputs(views: LabeledImages) -> dict[str, Any]:
    """What a perfect model would return."""
    target = task_labels(views, "people", stride=8)["labels"]
    return {
        "pose": SimpleNamespace(
            heatmaps=keypoint_targets(views.keypoints, size_hw=tuple(views.image.shape[-2:]), sigma=1.5)[0]
        ),
        "parts": SimpleNamespace(logits=one_hot(views.require("parts")[:, 0], 29).movedim(-1, 1).float()),
        "normals": SimpleNamespace(normals=views.require("normals") * torch.tensor([3.0, -3.0, -3.0])[:, None, None]),
        "pointmap": SimpleNamespace(pointmaps=views.points * views.scales[:, :, None, None], scales=views.scales),
        "matte": SimpleNamespace(alphas=views.require("alpha")),
        "albedo": SimpleNamespace(albedos=views.require("albedo")),
        "people": SimpleNamespace(logits=torch.where(target.center > 0.999, 9.0, -9.0), sides=target.sides),
    }


def replay(people: PeopleFolder, change: Any = None) -> Any:
    """A model that knows the answers, called with batches in order."""
    position = 0

    def predict(pixels: Tensor) -> dict[str, Any]:
        nonlocal position
        views = LabeledImages.cat([people.read(i) for i in range(position, position + len(pixels))])
        position += len(pixels)
        return truth_outputs(views if change is None else change(views))

    return predict


def test_ground_truth_as_prediction_has_perfect_scores(people: PeopleFolder):
    report = evaluate_folder(replay(people), people, tasks=list(TASKS), batch_size=3)
    found = _main_scores(report)
    assert found["pose/pck.pck@0.1"] == 1
    assert found["pose/oks.ap"] > 0.95  # maps of 16 × 12 miss points at their rim by a pixel or two
    assert found["parts/classes.mean_iou"] == 1
    assert found["parts/person_mask.mean_iou"] == 1
    assert found["normals/mean"] == pytest.approx(0, abs=0.05)
    assert found["pointmap/depth.abs_rel"] == pytest.approx(0, abs=1e-5)
    assert found["pointmap/points.relative_distance"] == pytest.approx(0, abs=1e-5)
    assert found["matte/alpha.mse"] == 0
    assert found["albedo/mae"] == 0
    assert found["people/recall@0.5"] > 0.8  # people who share a cell hide each other
    assert set(found) == {f"{task}/{name}" for task, names in _MAIN_SCORES.items() for name in names}


def test_errors_are_measured(people: PeopleFolder):
    def wrong(views: LabeledImages) -> LabeledImages:
        moved = views.keypoints + torch.tensor([20.0, 0.0, 0.0])
        return LabeledImages(**{
            **vars(views), "keypoints": moved, "normals": -views.require("normals"),
            "depth": views.require("depth") * 1.5,
            "alpha": (views.require("alpha") + 0.5).clamp(0, 1), "albedo": views.require("albedo") * 0.5,
            "parts": torch.where(views.require("parts") > 0, 1, 0), "boxes_xyxy": views.boxes_xyxy * 0.5,
        })  # fmt: skip

    found = _main_scores(evaluate_folder(replay(people, wrong), people, tasks=list(TASKS), batch_size=4))
    assert found["pose/pck.pck@0.1"] < 0.5
    assert found["pose/oks.ap"] < 0.5
    assert found["parts/classes.mean_iou"] < 0.5
    assert found["parts/person_mask.mean_iou"] == 1  # parts are mixed up, people are not
    assert found["normals/mean"] == pytest.approx(180, abs=0.05)
    assert found["pointmap/depth.abs_rel"] == pytest.approx(0.5, abs=1e-4)
    assert found["pointmap/points.relative_distance"] == pytest.approx(0, abs=1e-4)  # after scale
    assert found["matte/alpha.mse"] > 0.05
    assert found["albedo/mae"] > 0.05
    assert found["people/recall@0.5"] < 0.5


def test_limit_on_the_number_of_images(people: PeopleFolder):
    calls: list[tuple[int, int]] = []
    report = evaluate_folder(
        replay(people), people, tasks=["matte"], batch_size=2, images=3,
        progress=lambda done, count: calls.append((done, count)),
    )  # fmt: skip
    assert calls == [(2, 3), (3, 3)]
    assert report.numbers("matte")["alpha.images"] == 3


def test_small_maps(people: PeopleFolder):
    def smaller(pixels: Tensor, full: Any = replay(people)) -> dict[str, Any]:  # noqa: B008
        logits = full(pixels)["parts"].logits
        return {"parts": SimpleNamespace(logits=torch.nn.functional.avg_pool2d(logits, 2))}

    report = evaluate_folder(smaller, people, tasks=["parts"])
    assert 0.8 < report.numbers("parts")["person_mask.mean_iou"] < 1


def test_a_scale_of_zero_gives_finite_errors(people: PeopleFolder):
    def broken(pixels: Tensor) -> dict[str, Any]:
        ones = torch.ones(len(pixels), 3, *SIZE_HW)
        return {"pointmap": SimpleNamespace(pointmaps=ones, scales=torch.zeros(len(pixels), 1))}

    numbers = evaluate_folder(broken, people, tasks=["pointmap"]).numbers("pointmap")
    assert numbers["depth.abs_rel"] > 1


def test_unknown_tasks_are_refused(people: PeopleFolder):
    with pytest.raises(InputError, match="expected one of pose"):
        evaluate_folder(replay(people), people, tasks=["mood"])
