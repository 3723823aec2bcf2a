from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from tests.unit.training.evaluation.test_detection import random_image
from vitruvian.errors import InputError
from vitruvian.training.evaluation import BoxAP, MeanAveragePrecision
from vitruvian.training.evaluation.average_precision import IOU_THRESHOLDS


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


def test_people_too_small_to_be_asked_for() -> None:
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


def test_only_good_and_few_enough_boxes_count() -> None:
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


def test_nothing_seen_is_nan() -> None:
    quality = BoxAP()
    for _ in range(2):
        scores = quality.compute()
        assert np.isnan([*scores.ap.values(), *scores.recall.values(), *scores.precision.values()]).all()
        assert scores.people == 0
        quality.update([], [], [])


def test_bad_inputs() -> None:
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
    with pytest.raises(InputError, match="same min_score"):
        BoxAP().merge(BoxAP(min_score=0.5))
