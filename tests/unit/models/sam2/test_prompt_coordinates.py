"""Points, labels and boxes as people write them: omitted levels, padding, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vitruvian.errors import InputError, VitruvianWarning
from vitruvian.models.sam2.prompt_coordinates import read_boxes, read_points

ONE = [(100, 200)]  # height, width
TWO = [(100, 200), (50, 50)]
TARGET = (1000, 1000)


def points(value: Any, labels: Any = None, sizes: Any = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    return read_points(value, labels, sizes or ONE, TARGET)


def test_points_are_scaled_to_the_input() -> None:
    found, labels = points([[[[20, 30]]], [[[5, 50]]]], sizes=TWO)
    assert found.tolist() == [[[[100, 300]]], [[[100, 1000]]]]
    assert found.dtype == torch.float32
    assert labels is None
    tall, _ = read_points([[[[20, 30]]]], None, ONE, (500, 1000))
    assert tall.tolist() == [[[[100, 150]]]]


@pytest.mark.parametrize("value", [[20, 30], [[20, 30]], [[[20, 30]]], [[[[20, 30]]]], (20, 30), [np.array([20, 30])]])
def test_one_point_may_leave_out_any_level(value: Any) -> None:
    for given in (value, np.array(value), torch.tensor(np.array(value))):
        assert points(given)[0].tolist() == [[[[100, 300]]]]


@pytest.mark.parametrize("labels", [1, [1], [[1]], [[[1]]], np.array([1]), torch.tensor([[1]])])
def test_labels_may_leave_out_levels_too(labels: Any) -> None:
    _, found = points([[[[20, 30]]]], labels)
    assert found is not None
    assert found.tolist() == [[[1]]]


def test_labels_decide_between_points_and_objects() -> None:
    pair = [[[20, 30], [40, 50]]]
    assert points(pair, [[1, 0]])[0].shape == (1, 1, 2, 2)  # two points on one object, as SAM has it
    assert points(pair, [[[1, 0]]])[0].shape == (1, 1, 2, 2)
    assert points(pair, [[[1], [1]]])[0].shape == (1, 2, 1, 2)  # two objects
    with pytest.raises(InputError, match=r"can be read as .* or as .*input_labels"):
        points(pair)


def test_with_several_images_the_first_level_is_theirs() -> None:
    assert points([[[20, 30]], [[5, 6]]], sizes=TWO)[0].shape == (2, 1, 1, 2)
    assert points([[20, 30], [5, 6]], sizes=TWO)[0].shape == (2, 1, 1, 2)
    assert points([[[20, 30]], [[5, 6]]], sizes=ONE)[0].shape == (1, 2, 1, 2)  # two objects of one image


def test_different_counts_are_padded_and_labelled() -> None:
    found, labels = points([[[[20, 30]], [[40, 50], [60, 70]]], [[[5, 6]]]], sizes=TWO)
    assert found.shape == (2, 2, 2, 2)
    assert labels is not None
    assert labels.tolist() == [[[1, -10], [1, 1]], [[1, -10], [-10, -10]]]
    assert (found[labels == -10] == -10).all()
    given, kinds = points([[[[20, 30]], [[40, 50], [60, 70]]], [[[5, 6]]]], [[[0], [1, 0]], [[1]]], sizes=TWO)
    assert torch.equal(given, found)
    assert kinds is not None
    assert kinds.tolist() == [[[0, -10], [1, 0]], [[1, -10], [-10, -10]]]


def test_points_that_are_padded_already_stay() -> None:
    found, labels = points(torch.tensor([[[[20.0, 30.0], [-10.0, -10.0]]]]), torch.tensor([[[1, -10]]]))
    assert found.tolist() == [[[[100, 300], [-10, -10]]]]
    assert labels is not None
    assert labels.tolist() == [[[1, -10]]]


@pytest.mark.parametrize("value", [[1, 2, 30, 40], [[1, 2, 30, 40]], [[[1, 2, 30, 40]]]])
def test_boxes_may_leave_out_levels(value: Any) -> None:
    assert read_boxes(value, ONE, TARGET).tolist() == [[[5, 20, 150, 400]]]


def test_boxes_of_several_objects_and_images() -> None:
    box = [1, 2, 30, 40]
    assert read_boxes([box, box, box], ONE, TARGET).shape == (1, 3, 4)
    assert read_boxes([box, box], TWO, TARGET).shape == (2, 1, 4)
    ragged = read_boxes([[box, box], [box]], TWO, TARGET)
    assert ragged.shape == (2, 2, 4)
    assert ragged[1, 1].tolist() == [-10] * 4
    assert ragged[1, 0].tolist() == [20, 40, 600, 800]


@pytest.mark.parametrize(
    ("value", "labels", "match"),
    [
        ([[[[float("nan"), 3]]]], None, "^input_points: .*finite"),
        ([[[[1, 2]]]], [[[7]]], r"input_labels: expected 1 .*got 7"),
        ([[[[1, 2]]]], [[[0.5]]], "got 0.5"),
        ([[[[1, 2], [3, 4]]]], [[[1]]], "one label for each point"),
        ([[[[1, 2, 3]]]], None, "2 numbers in each innermost list"),
        ([[[[1, 2], [3]]]], None, "2 numbers"),
        ([[[[1, 2]], [3, 4]]], None, "nested equally deep"),
        ([], None, "empty"),
        ([[[]]], None, "empty"),
        ([[[[1, 2]], []]], None, "empty"),
        (torch.zeros(1, 0, 1, 2), None, "empty"),
        ([[[[[1, 2]]]]], None, "at most 4 levels, got 5"),
        ([[[[1, 2]]], [[[3, 4]]]], None, "for 1 images"),
        ("click", None, "numbers in nested lists"),
        ([[[[True, 2]]]], None, "expected numbers"),
        (None, [[[1]]], "input_points with them"),
        (5, None, r"\[image\]\[object\]\[point\]\[x, y\]"),
    ],
)
def test_bad_points_are_refused(value: Any, labels: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        points(value, labels)


@pytest.mark.parametrize(
    ("point", "want"), [([250, 30], [1250, 300]), ([20, -3], [100, -30]), ([30, 150], [150, 1500])]
)
def test_points_outside_the_image_give_a_warning(point: list[int], want: list[int]) -> None:
    with pytest.warns(VitruvianWarning, match=rf"x in 0…200 and y in 0…100 .*\({point[0]}, {point[1]}\)"):
        found, _ = points([[[point]]])
    assert found.tolist() == [[[want]]]


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ([[[30, 2, 1, 40]]], "^input_boxes: .*x1 < x2"),
        ([[[1, 40, 30, 40]]], "y1 < y2"),
        ([[[250, 2, 300, 40]]], r"meets image 0 \(200 × 100"),
        ([[[-9, -9, -1, -1]]], "meets image 0"),
        ([[[1, 2, 30]]], "4 numbers"),
        ([[[1, 2, 30, 40]], [[1, 2, 30, 40]]], "for 1 images"),
        ([], "empty"),
        ([[[[1, 2, 30, 40]]]], "at most 3 levels"),
        ([[[1, 2, float("inf"), 40]]], "finite"),
    ],
)
def test_bad_boxes_are_refused(value: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        read_boxes(value, ONE, TARGET)


def test_boxes_may_reach_over_the_edge() -> None:
    assert read_boxes([[[-3, -2, 205, 100.5]]], ONE, TARGET).shape == (1, 1, 4)
