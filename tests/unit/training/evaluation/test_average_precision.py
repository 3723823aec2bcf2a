from __future__ import annotations

import contextlib
import dataclasses
import io
import pickle

import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from vitruvian.errors import InputError
from vitruvian.training.evaluation.average_precision import (
    IOU_THRESHOLDS,
    BoxAP,
    MeanAveragePrecision,
    MeanAveragePrecisionScores,
)

NAMES = [
    f.name for f in dataclasses.fields(MeanAveragePrecisionScores) if f.name != "per_label"
]  # in the order of COCO


def box_mask(box: np.ndarray, size: int = 200) -> np.ndarray:
    mask = np.zeros((size, size), dtype=bool)
    x, y, right, bottom = box.round().astype(int)
    mask[y:bottom, x:right] = True
    return mask


def random_image(seed: int) -> dict[str, np.ndarray]:
    """True boxes of all sizes with crowds, and detections: shaken copies, doubles, wrong labels, false alarms."""
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 9)) if seed % 7 else 0
    corner = random.integers(0, 100, (count, 2))
    truth = np.concatenate([corner, corner + random.choice([8, 20, 50, 99], (count, 2))], axis=1).astype(float)
    truth_labels = random.integers(0, 3, count)
    again = random.integers(0, count, 2 * count) if count else np.zeros(0, dtype=int)
    found = np.concatenate(
        [truth[again] + random.integers(-3, 4, (2 * count, 4)), np.tile([[5.0, 5, 30, 30]], (seed % 3, 1))]
    )
    found = np.concatenate([found[:, :2], np.maximum(found[:, 2:], found[:, :2] + 2)], axis=1).clip(0, 200)
    labels = np.concatenate([truth_labels[again], np.full(seed % 3, 3 - seed % 2)]).astype(int)
    labels = np.where(random.random(len(labels)) < 0.1, 1, labels)
    return {
        "truth": truth,
        "truth_labels": truth_labels,
        "crowd": random.random(count) < 0.2,
        "found": found,
        "labels": labels,
        "scores": (random.random(len(labels)) * 20).round() / 20,  # with ties
    }


def reference(images: list[dict], kind: str) -> tuple[np.ndarray, dict[int, float]]:
    """pycocotools' twelve numbers and the average precision of each label."""

    def shape(box: np.ndarray) -> dict:
        box = box.round() if kind == "mask" else box
        row = {"bbox": [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()]}
        if kind == "mask":
            row["segmentation"] = coco_mask.encode(np.asfortranarray(box_mask(box).astype(np.uint8)))
        return row

    annotations, results = [], []
    for number, one in enumerate(images):
        for box, label, crowd in zip(one["truth"], one["truth_labels"], one["crowd"], strict=True):
            area = float((box[2:] - box[:2]).prod())
            row = {"id": len(annotations) + 1, "image_id": number, "category_id": int(label), "iscrowd": int(crowd)}
            annotations.append({**row, "area": area, **shape(box)})
        for box, label, score in zip(one["found"], one["labels"], one["scores"], strict=True):
            row = {"image_id": number, "category_id": int(label), "score": float(score), **shape(box)}
            if kind == "mask":
                del row["bbox"]
            results.append(row)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": [{"id": i, "height": 200, "width": 200} for i in range(len(images))],
            "categories": [{"id": i} for i in range(4)],
            "annotations": annotations,
        }
        truth.createIndex()
        evaluator = COCOeval(truth, truth.loadRes(results), "segm" if kind == "mask" else "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    precision = evaluator.eval["precision"][:, :, :, 0, -1]  # [T, R, K]
    per_label = {k: precision[:, :, k][precision[:, :, k] > -1] for k in range(4)}
    return evaluator.stats, {k: v.mean() for k, v in per_label.items() if v.size}


def ours(images: list[dict], kind: str) -> MeanAveragePrecision:
    total, part = MeanAveragePrecision(kind), MeanAveragePrecision(kind)
    for number, one in enumerate(images):
        shapes = {name: one[name] for name in ("found", "truth")}
        if kind == "mask":
            shapes = {
                k: torch.tensor(np.array([box_mask(b) for b in v])).reshape(-1, 200, 200) for k, v in shapes.items()
            }
        areas = (one["truth"][:, 2:] - one["truth"][:, :2]).prod(-1)
        (total if number < 10 else part).update(
            shapes["found"],
            torch.from_numpy(one["scores"]),
            one["labels"].tolist(),
            shapes["truth"],
            one["truth_labels"],
            crowd=one["crowd"],
            target_areas=None if number % 2 else areas,
        )
    total.merge(part)
    return total


@pytest.mark.parametrize("kind", ["box", "mask"])
def test_numbers_are_those_of_pycocotools(kind: str) -> None:
    images = [random_image(seed) for seed in range(25)]
    expected, per_label = reference(images, kind)
    scores = ours(images, kind).compute()
    found = np.array([getattr(scores, name) for name in NAMES])
    assert (expected > 0).all(), "each of the numbers must be put to the test"
    assert found == pytest.approx(expected, abs=1e-9)
    assert {k: v for k, v in scores.per_label.items() if not np.isnan(v)} == pytest.approx(per_label)


def test_only_the_first_hundred_of_a_label_count() -> None:
    random = np.random.default_rng(0)
    one = random_image(1)
    one["found"] = np.concatenate([np.tile([[0.0, 0, 3, 3]], (120, 1)), one["truth"]])
    one["labels"] = np.concatenate([np.zeros(120, dtype=int), one["truth_labels"]])
    one["scores"] = np.concatenate([random.uniform(0.5, 1, 120), random.uniform(0, 0.4, len(one["truth"]))])
    assert 0 in one["truth_labels"]
    expected, _ = reference([one], "box")
    scores = ours([one], "box").compute()
    values = np.array([getattr(scores, name) for name in NAMES])
    assert np.nan_to_num(values, nan=-1) == pytest.approx(expected, abs=1e-9)


def test_nothing_to_find_is_nan_and_nothing_found_is_zero() -> None:
    empty = MeanAveragePrecision("box")
    empty.update(np.zeros((0, 4)), [], [], np.zeros((0, 4)), [])
    assert np.isnan(empty.compute().ap)
    empty.update(np.zeros((0, 4)), [], [], [[0, 0, 50, 50]], [2])
    scores = empty.compute()
    assert (scores.ap, scores.ar_100, scores.ap_medium, scores.per_label) == (0, 0, 0, {2: 0})
    assert np.isnan(scores.ap_large)


def test_perfect_masks_as_rle() -> None:
    from vitruvian.images.rle import encode_rles

    masks = np.stack([box_mask(np.array([0, 0, 40, 40])), box_mask(np.array([50, 50, 150, 150]))])
    quality = MeanAveragePrecision()
    quality.update(encode_rles(masks, compress=True), [0.5, 0.4], [1, 1], list(masks), [1, 1])
    assert quality.compute().ap == pytest.approx(1)


def test_bad_inputs_of_objects() -> None:
    quality = MeanAveragePrecision("box")
    with pytest.raises(InputError, match="kind"):
        MeanAveragePrecision("circle")
    with pytest.raises(InputError, match="xyxy"):
        quality.update([[0, 0, 1]], [1], [1], [], [])
    with pytest.raises(InputError, match="xyxy"):
        quality.update([[5, 5, 1, 1]], [1], [1], [], [])
    with pytest.raises(InputError, match="scores: expected one for each of the 1"):
        quality.update([[0, 0, 1, 1]], [], [1], [], [])
    with pytest.raises(InputError, match="different kind"):
        quality.merge(MeanAveragePrecision("mask"))


def test_by_hand() -> None:
    quality = BoxAP(thresholds=[0.5])
    truth = torch.tensor([[0.0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]])
    found = [[0, 0, 10, 8], [0, 0, 10, 10], [20, 0, 30, 4], [40, 0, 50, 10]]
    quality.update(found, [0.9, 0.8, 0.7, 0.6], truth)  # right, a double, too small, right
    scores = quality.compute()
    assert scores.recall[0.5] == pytest.approx(2 / 3)
    assert scores.precision[0.5] == pytest.approx(0.5)
    # Precision is 1 up to a recall of 1/3 (34 of COCO's 101 places), then 1/2 up to 2/3 (33 of them).
    assert scores.ap[0.5] == pytest.approx((34 + 33 / 2) / 101)
    assert scores.people == 3


def test_average_precision_is_the_one_of_detection() -> None:
    images = [random_image(seed) for seed in range(25)]
    ours, part, theirs = (
        BoxAP(thresholds=IOU_THRESHOLDS),
        BoxAP(thresholds=IOU_THRESHOLDS),
        MeanAveragePrecision("box"),
    )
    for number, one in enumerate(images):
        (ours if number < 10 else part).update(one["found"], one["scores"], one["truth"], crowd=one["crowd"])
        labels, truth_labels = np.zeros(len(one["found"]), dtype=int), np.zeros(len(one["truth"]), dtype=int)
        theirs.update(one["found"], one["scores"], labels, one["truth"], truth_labels, crowd=one["crowd"])
    ours.merge(pickle.loads(pickle.dumps(part)))
    scores, expected = ours.compute(), theirs.compute()
    assert np.mean(list(scores.ap.values())) == pytest.approx(expected.ap)
    assert scores.ap[0.5] == pytest.approx(expected.ap50)
    assert np.mean(list(scores.recall.values())) == pytest.approx(expected.ar_100)


def test_regions_and_people_to_ignore() -> None:
    truth = [[0, 0, 10, 10], [20, 0, 60, 40], [80, 0, 90, 10]]
    found = [[0, 0, 10, 10], [20, 0, 30, 10], [30, 0, 40, 10], [80, 0, 90, 10], [80, 0, 90, 10]]
    quality = BoxAP(thresholds=[0.5])
    quality.update(found, [0.5, 0.9, 0.8, 0.7, 0.6], truth, crowd=[False, True, False], ignored=[False, False, True])
    scores = quality.compute()
    assert (scores.people, scores.recall[0.5]) == (1, 1)
    assert scores.precision[0.5] == pytest.approx(1 / 2)  # both in the crowd are excused, of the double only the first


def test_min_height() -> None:
    quality = BoxAP(thresholds=[0.5], min_height=0.25)
    truth = [[0, 0, 10, 50], [20, 0, 30, 24]]
    found = [[0, 0, 10, 50], [60, 0, 70, 20], [60, 0, 70, 40]]
    quality.update(found, [0.9, 0.8, 0.7], truth, size_hw=(100, 100))
    scores = quality.compute()
    assert (scores.people, scores.recall[0.5]) == (1, 1)
    assert scores.precision[0.5] == 0.5  # the small stranger is excused, the large one is not
    quality.update([], [], truth, size_hw=(60, 100))  # now the second is tall enough
    assert quality.compute().people == 3
    assert quality.compute().recall[0.5] == pytest.approx(1 / 3)


def test_min_score_and_max_detections() -> None:
    truth, found = [[0, 0, 10, 10]], [[50, 0, 60, 10], [70, 0, 80, 10], [0, 0, 10, 10]]
    for settings, recall, precision in [
        ({}, 1, 1 / 3),
        ({"min_score": 0.5}, 0, 0),
        ({"max_detections": 2}, 0, 0),
    ]:
        quality = BoxAP(thresholds=[0.5], **settings)
        quality.update(found, [0.9, 0.8, -0.4], truth)
        scores = quality.compute()
        assert (scores.recall[0.5], scores.precision[0.5]) == pytest.approx((recall, precision))


def test_no_data_is_nan() -> None:
    quality = BoxAP()
    for _ in range(2):
        scores = quality.compute()
        assert np.isnan([*scores.ap.values(), *scores.recall.values(), *scores.precision.values()]).all()
        assert scores.people == 0
        quality.update([], [], [])


def test_bad_inputs_of_boxes() -> None:
    with pytest.raises(InputError, match="thresholds"):
        BoxAP(thresholds=[0])
    with pytest.raises(InputError, match="min_height"):
        BoxAP(min_height=100)
    with pytest.raises(InputError, match="max_detections"):
        BoxAP(max_detections=0)
    with pytest.raises(InputError, match="size_hw"):
        BoxAP(min_height=0.2).update([], [], [])
    with pytest.raises(InputError, match="crowd: expected one for each of the 1"):
        BoxAP().update([], [], [[0, 0, 1, 1]], crowd=[True, False])
    with pytest.raises(InputError, match="different min_score"):
        BoxAP().merge(BoxAP(min_score=0.5))
