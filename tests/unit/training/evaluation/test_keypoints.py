from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from vitruvian.errors import InputError
from vitruvian.human import BODY_25, COCO_17, GROUPS, LAYOUTS, SIGMAS
from vitruvian.training.evaluation import box_length, head_length, layout_groups, layout_sigmas, torso_length

COCO_SIGMAS = [26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]  # thousandths


def test_sigmas() -> None:
    assert np.array(layout_sigmas("coco17")) * 1000 == pytest.approx(COCO_SIGMAS)
    assert layout_sigmas("sapiens308") == SIGMAS
    assert layout_sigmas(BODY_25)[1] == pytest.approx(0.079)  # midway between the shoulders
    whole = layout_sigmas("wholebody133")
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
    assert {name: len(ids) for name, ids in layout_groups("wholebody133").items()} == {
        "body": 17, "feet": 6, "face": 68, "left_hand": 21, "right_hand": 21,
    }  # fmt: skip
    assert layout_groups("body25")["feet"] == tuple(range(19, 25))


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


def test_bad_inputs() -> None:
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
