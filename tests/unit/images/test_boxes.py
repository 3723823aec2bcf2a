"""Areas and overlaps of boxes."""

from __future__ import annotations

import numpy as np

from vitruvian.images.boxes import box_areas, box_iou

BOXES = np.array([[0.0, 0.0, 4.0, 2.0], [2.0, 0.0, 6.0, 2.0], [9.0, 9.0, 9.0, 9.0]])


def test_areas() -> None:
    assert box_areas(BOXES).tolist() == [8, 8, 0]


def test_iou_of_every_two_boxes() -> None:
    np.testing.assert_allclose(box_iou(BOXES, BOXES[:2]), [[1, 1 / 3], [1 / 3, 1], [0, 0]])
    assert box_iou(BOXES, BOXES[2:]).tolist() == [[0], [0], [0]]  # also of an empty box with itself
    assert box_iou(BOXES[:0], BOXES).shape == (0, 3)


def test_crowds_count_the_area_of_the_box_alone() -> None:
    crowd = np.array([False, True, False])
    np.testing.assert_allclose(box_iou(BOXES[:1], BOXES, crowd=crowd), [[1, 0.5, 0]])
