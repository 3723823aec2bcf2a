from __future__ import annotations

import contextlib
import dataclasses
import io
import pickle

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from vitruvian.errors import InputError
from vitruvian.human import BODY_25, COCO_17, GROUPS, LAYOUTS, SIGMAS
from vitruvian.training.evaluation import PCK, KeypointAP, box_length, layout_groups, layout_sigmas
from vitruvian.training.evaluation.keypoints import KeypointAPScores, _keypoint_similarity, head_length, torso_length

NAMES = [field.name for field in dataclasses.fields(KeypointAPScores)]  # in the order of COCO
COUNTS = {"coco17": 17, "coco133": 133, "sapiens308": 308}


def moved(points: np.ndarray, x: list[float]) -> np.ndarray:
    """Points [N, J, 2] with the first ones of each person moved to the right."""
    out = points.copy()
    out[:, : len(x), 0] += x
    return out


def test_pck_of_known_values() -> None:
    truth = np.random.default_rng(0).uniform(0, 100, (2, 17, 2))
    quality = PCK("coco17", thresholds=[0.1, 0.2], groups={"face": range(5), "none": []})
    mask = np.zeros((2, 17), dtype=bool)
    mask[:, :4] = True
    # Lengths of 100 and 50 pixels: moves of 8, 12, 25 are 0.08, 0.12, 0.25 and 0.16, 0.24, 0.5 of them.
    quality.update(moved(truth, [8, 12, 25, 0, 99]), truth, reference=[100, 50], mask=mask)
    scores = quality.compute()
    assert scores.points == 8
    assert scores.pck == {0.1: 3 / 8, 0.2: 5 / 8}
    assert scores.per_group["face"] == scores.pck
    assert np.isnan(scores.per_group["none"][0.1])
    assert scores.per_keypoint["nose"] == {0.1: 0.5, 0.2: 1}
    assert scores.per_keypoint["left_eye"] == {0.1: 0, 0.2: 0.5}
    assert np.isnan(scores.per_keypoint["right_ankle"][0.1])


def test_pck_at_the_threshold_counts() -> None:
    quality = PCK("coco17", thresholds=[0.25])
    truth = np.zeros((1, 17, 2))
    quality.update(truth + np.array([4, 0]), truth, reference=16)
    assert quality.compute().pck == {0.25: 1}


def test_pck_of_groups_of_308_points_and_merge() -> None:
    truth = torch.rand(3, 308, 2, generator=torch.manual_seed(0)) * 50
    guess = truth.clone()
    guess[:, 21:41] += 30  # ids of the right hand
    boxes = torch.tensor([[0.0, 0, 100, 40]]).repeat(3, 1)
    whole, part = PCK(thresholds=[0.1]), PCK(thresholds=[0.1])
    whole.update(guess[:1], truth[:1], reference=box_length(boxes[:1]))
    part.update(guess[1:], truth[1:], reference=box_length(boxes[1:]))
    whole.merge(pickle.loads(pickle.dumps(part)))
    scores = whole.compute()
    assert {name: values[0.1] for name, values in scores.per_group.items()} == {
        "body": 1, "feet": 1, "left_hand": 1, "right_hand": 0, "face": 1, "irises": 1, "ears": 1,
    }  # fmt: skip
    assert scores.pck[0.1] == pytest.approx(288 / 308)
    assert scores.points == 3 * 308


def test_pck_of_missing_points() -> None:
    quality = PCK("coco17", thresholds=[0.1])
    assert np.isnan(quality.compute().pck[0.1])
    truth = np.zeros((3, 17, 2))
    truth[0, 0] = np.nan  # is not labelled
    guess = np.zeros((3, 17, 2))
    guess[0, 1] = np.nan  # was not found
    quality.update(guess, truth, reference=[10, np.nan, 0])  # the last two have no length
    scores = quality.compute()
    assert scores.points == 16
    assert scores.pck[0.1] == 15 / 16


def test_similarity_by_hand() -> None:
    truth = np.array([[[10.0, 10], [20, 20], [0, 0]]])
    found = np.array([[[13.0, 14], [20, 20], [99, 99]]])
    sigmas = np.array([0.1, 0.05, 0.05])
    visible = np.array([[True, True, False]])
    value = _keypoint_similarity(found, truth, visible, np.array([500.0]), np.zeros((1, 4)), sigmas)
    assert value == pytest.approx((np.exp(-25 / (2 * 500 * 0.2**2)) + 1) / 2)
    found[0, 1] = np.nan
    value = _keypoint_similarity(found, truth, visible, np.array([500.0]), np.zeros((1, 4)), sigmas)
    assert value == pytest.approx(np.exp(-25 / (2 * 500 * 0.2**2)) / 2)


def random_image(seed: int, joints: int) -> dict[str, np.ndarray]:
    """People of all sizes, some unlabelled and some crowds; found are shaken copies, doubles, halves and strangers."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 9)) if seed % 6 else 0
    corner = random.uniform(0, 300, (count, 1, 2))
    size = random.choice([25.0, 60, 90, 200], (count, 1, 1)) * random.uniform(0.8, 1.2, (count, 1, 2))
    truth = corner + size * random.random((count, joints, 2))
    visible = np.where(random.random((count, joints)) < 0.7, random.integers(1, 3, (count, joints)), 0)
    visible[random.random(count) < 0.15] = 0
    again = random.integers(0, count, 4 * count) if count else np.zeros(0, dtype=int)
    shake = random.choice([0.005, 0.02, 0.1], (len(again), 1, 1))
    found = truth[again] + size[again] * shake * random.normal(size=(len(again), joints, 2))
    found = np.concatenate([found, random.uniform(0, 500, (seed % 3, joints, 2))])
    return {
        "truth": truth,
        "visible": visible,
        "boxes_xyxy": np.concatenate([corner, corner + size], axis=-1)[:, 0],
        "areas": size.prod(-1)[:, 0] * 0.6,
        "crowd": random.random(count) < 0.15,
        "found": found,
        "scores": (random.random(len(found)) * 20).round() / 20,  # with ties
    }


def reference(images: list[dict], sigmas: tuple[float, ...]) -> np.ndarray:
    """pycocotools' ten numbers."""
    annotations, results = [], []
    for number, one in enumerate(images):
        for points, seen, box, area, crowd in zip(
            one["truth"], one["visible"], one["boxes_xyxy"], one["areas"], one["crowd"], strict=True
        ):
            row = {"id": len(annotations) + 1, "image_id": number, "category_id": 1, "iscrowd": int(crowd)}
            row |= {"keypoints": np.concatenate([points, seen[:, None]], axis=1).ravel().tolist(), "area": float(area)}
            row |= {"bbox": [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()], "num_keypoints": int((seen > 0).sum())}
            annotations.append(row)
        for points, score in zip(one["found"], one["scores"], strict=True):
            flat = np.concatenate([points, np.ones((len(points), 1))], axis=1).ravel().tolist()
            results.append({"image_id": number, "category_id": 1, "keypoints": flat, "score": float(score)})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": [{"id": i, "height": 500, "width": 500} for i in range(len(images))],
            "categories": [{"id": 1}],
            "annotations": annotations,
        }
        truth.createIndex()
        evaluator = COCOeval(truth, truth.loadRes(results), "keypoints")
        evaluator.params.kpt_oks_sigmas = np.array(sigmas)
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return evaluator.stats


def add(quality: KeypointAP, one: dict, **extra) -> None:
    quality.update(
        torch.from_numpy(one["found"]),
        one["scores"].tolist(),
        one["truth"],
        target_visible=torch.from_numpy(one["visible"]),
        target_areas=one["areas"],
        target_boxes_xyxy=one["boxes_xyxy"],
        crowd=one["crowd"],
        **extra,
    )


@pytest.mark.parametrize("layout", COUNTS)
def test_numbers_are_those_of_pycocotools(layout: str) -> None:
    images = [random_image(seed, COUNTS[layout]) for seed in range(20)]
    assert any(len(one["found"]) > 20 for one in images), "the limit of 20 people must be put to the test"
    assert any((~one["visible"].any(1) & ~one["crowd"]).any() for one in images)
    expected = reference(images, layout_sigmas(layout))
    total, part = KeypointAP(layout), KeypointAP(layout_sigmas(layout))
    for number, one in enumerate(images):
        add(total if number < 8 else part, one)
    total.merge(pickle.loads(pickle.dumps(part)))
    found = np.array([getattr(total.compute(), name) for name in NAMES])
    assert (expected > 0).all(), "each of the numbers must be put to the test"
    assert found == pytest.approx(expected, abs=1e-9)


def test_ignored_people_are_neither_missed_nor_false_positives() -> None:
    one = {name: value[:1] for name, value in random_image(1, 17).items()}
    one["found"], one["visible"], one["crowd"] = one["truth"], np.ones((1, 17)), np.array([False])
    wanted, ignored = KeypointAP(), KeypointAP()
    add(wanted, one)
    assert (wanted.compute().ap, wanted.compute().ar75) == pytest.approx((1, 1))
    add(ignored, one, ignored=[True])
    assert np.isnan(ignored.compute().ap)


def test_people_with_missing_points_count() -> None:
    one = {name: value[:1] for name, value in random_image(1, 17).items()}
    one["visible"], one["crowd"] = np.ones((1, 17)), np.array([False])
    one["found"] = one["truth"].copy()
    one["found"][0, :6] = np.nan
    quality = KeypointAP()
    add(quality, one)
    assert quality.compute().ar == pytest.approx(0.3)  # 11 of 17 points are 0.647: three of ten thresholds


def test_nothing_to_find_is_nan_and_nothing_found_is_zero() -> None:
    quality = KeypointAP()
    assert np.isnan(dataclasses.astuple(quality.compute())).all()
    empty = np.zeros((0, 17, 2))
    quality.update(empty, [], empty, target_visible=[], target_areas=[])
    assert np.isnan(quality.compute().ap)
    quality.update(empty, [], np.zeros((1, 17, 2)), target_visible=np.ones((1, 17)), target_areas=[5000])
    scores = quality.compute()
    assert (scores.ap, scores.ar, scores.ap_medium) == (0, 0, 0)
    assert np.isnan(scores.ap_large)


def test_bad_inputs_of_metrics() -> None:
    points = np.zeros((1, 17, 2))
    accuracy, precision = PCK("coco17"), KeypointAP("coco17")
    with pytest.raises(InputError, match=r"target: expected the shape \[..., 17, 2\]"):
        accuracy.update(points, np.zeros((1, 308, 2)), reference=1)
    with pytest.raises(InputError, match="expected the 1 people"):
        accuracy.update(np.zeros((2, 17, 2)), points, reference=1)
    with pytest.raises(InputError, match="reference"):
        accuracy.update(points, points, reference=[1, 2])
    with pytest.raises(InputError, match="thresholds"):
        PCK(thresholds=[0])
    with pytest.raises(InputError, match="groups, tail"):
        PCK("coco17", groups={"tail": [17]})
    with pytest.raises(InputError, match="different thresholds"):
        accuracy.merge(PCK("coco17", thresholds=[1]))
    with pytest.raises(InputError, match="sigmas"):
        KeypointAP([0.1, 0])
    with pytest.raises(InputError, match="target_boxes_xyxy: needed for people"):
        precision.update(points, [1], points, target_visible=np.zeros((1, 17)), target_areas=[1])
    with pytest.raises(InputError, match="target_boxes_xyxy: expected one for each"):
        precision.update(
            points, [1], points, target_visible=np.ones((1, 17)), target_areas=[1], target_boxes_xyxy=np.ones((2, 4))
        )
    with pytest.raises(InputError, match="different sigmas"):
        precision.merge(KeypointAP("sapiens308"))


COCO_SIGMAS = [26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]  # thousandths


def test_sigmas() -> None:
    assert np.array(layout_sigmas("coco17")) * 1000 == pytest.approx(COCO_SIGMAS)
    assert layout_sigmas("sapiens308") == SIGMAS
    assert layout_sigmas(BODY_25)[1] == pytest.approx(0.079)  # midway between the shoulders
    whole = layout_sigmas("coco133")
    assert len(whole) == 133
    assert whole[:17] == layout_sigmas(COCO_17)
    assert whole[17:25] == (0.068, 0.066, 0.066, 0.092, 0.094, 0.094, 0.042, 0.043)
    assert whole[90:96] == (0.008, 0.029, 0.022, 0.035, 0.037, 0.047)  # end of the face, start of the left hand
    assert whole[91:112] == whole[112:]
    assert whole[132] == 0.031


def test_sigmas_are_those_of_pycocotools() -> None:
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    assert layout_sigmas("coco17") == pytest.approx(cocoeval.Params("keypoints").kpt_oks_sigmas)


def test_groups() -> None:
    assert layout_groups("sapiens308") == GROUPS
    assert layout_groups("coco17") == {"body": tuple(range(17))}
    assert {name: len(ids) for name, ids in layout_groups("coco133").items()} == {
        "body": 17, "feet": 6, "face": 68, "left_hand": 21, "right_hand": 21,
    }  # fmt: skip
    assert layout_groups("openpose")["feet"] == tuple(range(19, 25))


def test_lengths_by_hand() -> None:
    boxes = torch.tensor([[10.0, 10, 13, 14], [0, 0, 12, 5]])
    assert box_length(boxes).tolist() == [4, 12]
    assert box_length(boxes, factor=0.5).tolist() == [2, 6]
    assert box_length(boxes, side="smaller").tolist() == [3, 5]
    assert box_length(boxes, side="width").tolist() == [3, 12]
    assert box_length(boxes, side="height").tolist() == [4, 5]
    assert box_length(boxes, side="diagonal").tolist() == [5, 13]
    assert head_length([0, 0, 30, 40]) == pytest.approx(30)
    points = np.zeros((2, 17, 2))
    points[0, 5], points[0, 12] = [3, 0], [0, 4]  # left shoulder, right hip
    points[1, 5] = np.nan
    assert torso_length(points, layout="coco17")[0] == 5
    assert np.isnan(torso_length(points, layout="coco17")[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_torso_goes_from_shoulder_to_hip_in_every_layout(layout: str) -> None:
    every = np.random.default_rng(0).normal(size=(308, 2))
    points, _ = LAYOUTS[layout].convert(every, np.ones(308))
    expected, _ = COCO_17.convert(every, np.ones(308))
    assert torso_length(points, layout=layout) == pytest.approx(np.linalg.norm(expected[5] - expected[12]))


def test_bad_inputs_of_layouts() -> None:
    with pytest.raises(InputError, match="Did you mean coco17"):
        layout_sigmas("coco_17")
    headless = dataclasses.replace(
        COCO_17, name="mine", names=("a", "b"), sources=((0,), ()), skeleton=(), flip_permutation=(0, 1)
    )
    with pytest.raises(InputError, match="mine layout: expected sigmas for all points, got none for b"):
        layout_sigmas(headless)
    with pytest.raises(InputError, match="expected the point left_shoulder"):
        torso_length(np.zeros((2, 2)), layout=headless)
    with pytest.raises(InputError, match="side"):
        box_length([[0, 0, 1, 1]], side="longest")
    with pytest.raises(InputError, match="boxes_xyxy"):
        box_length([0, 0, 1])
