from __future__ import annotations

import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares

from vitruvian.errors import InputError
from vitruvian.training.evaluation import DepthError, PointError


def test_depth_by_hand() -> None:
    quality = DepthError()
    quality.update(np.array([[1.0, 2.4, 3.0, 8.0]]), np.array([[1.0, 2.0, 2.0, 4.0]]))
    scores = quality.compute()
    assert scores.abs_rel == pytest.approx((0 + 0.2 + 0.5 + 1) / 4)
    assert scores.sq_rel == pytest.approx((0 + 0.16 / 2 + 1 / 2 + 16 / 4) / 4)
    assert scores.rmse == pytest.approx(math.sqrt((0.16 + 1 + 16) / 4))
    assert scores.log_rmse == pytest.approx(math.sqrt((math.log(1.2) ** 2 + math.log(1.5) ** 2 + math.log(2) ** 2) / 4))
    assert (scores.delta_1, scores.delta_2, scores.delta_3) == (0.5, 0.75, 0.75)  # ratios 1, 1.2, 1.5, 2
    assert scores.pictures == 1


def test_pictures_count_alike_and_merge() -> None:
    first, second = DepthError(), DepthError()
    first.update(torch.full((1, 2, 2), 1.1), torch.ones(1, 2, 2))
    second.update(torch.full((1, 1, 4, 4), 1.3), torch.ones(1, 1, 4, 4))
    first.merge(pickle.loads(pickle.dumps(second)))
    assert first.compute().abs_rel == pytest.approx(0.2)
    assert first.compute().delta_1 == 0.5
    assert first.compute().pictures == 2


@pytest.mark.parametrize(
    ("alignment", "change"),
    [
        ("median", lambda depth: 3 * depth),
        ("scale", lambda depth: 3 * depth),
        ("scale_and_shift", lambda depth: 0.5 * depth + 7),
    ],
)
def test_alignment_makes_right_what_it_should_and_no_more(alignment: str, change) -> None:
    truth = np.random.default_rng(0).uniform(1, 5, (2, 6, 5))
    guess = np.stack([change(truth[0]), 2 * change(truth[1])])  # each picture has its own
    for name, perfect in (("none", False), (alignment, True)):
        quality = DepthError(alignment=name)
        quality.update(guess, truth)
        assert (quality.compute().abs_rel < 1e-9) is perfect
    twisted = DepthError(alignment=alignment)
    twisted.update(guess**2, truth)
    assert twisted.compute().abs_rel > 0.01


def test_scale_is_the_one_of_least_squares() -> None:
    quality = DepthError(alignment="scale")
    quality.update([[1.0, 2.0]], [[2.0, 2.0]])  # s = (1·2 + 2·2) / (1 + 4)
    assert quality.compute().rmse == pytest.approx(math.sqrt((0.8**2 + 0.4**2) / 2))
    even = DepthError(alignment="median")
    even.update([[1.0, 3.0]], [[4.0, 4.0]])  # the middle of 1 and 3 is 2
    assert even.compute().rmse == pytest.approx(2)


def test_what_does_not_count() -> None:
    quality = DepthError(max_depth=10)
    truth = np.array([[2.0, np.nan, 0.0, -1.0, 50.0, 4.0]])
    quality.update(np.array([[2.0, 9, 9, 9, 9, 40.0]]), truth)  # 40 is moved to 10
    assert quality.compute().rmse == pytest.approx(math.sqrt(36 / 2))
    quality.update(truth, truth, mask=np.zeros((1, 6)))
    assert quality.compute().pictures == 1
    negative = DepthError(min_depth=0.5)
    negative.update([[-3.0]], [[1.0]])
    assert negative.compute().log_rmse == pytest.approx(math.log(2))


@pytest.mark.parametrize("quality", [DepthError(), PointError()])
def test_nothing_seen_is_nan(quality) -> None:
    scores = dataclasses.asdict(quality.compute())
    assert scores.pop("pictures") == 0
    assert np.isnan(list(scores.values())).all()


def points_of(rows: list[list[float]]) -> np.ndarray:
    return np.array(rows, dtype=float).T[:, None]  # [3, 1, W]


def test_points_by_hand() -> None:
    quality = PointError(alignment="none")
    truth = points_of([[0, 0, 2], [1, 0, 2]])
    quality.update(truth + points_of([[3, 4, 0], [0, 0, 1]]), truth, length=[2.0])
    scores = quality.compute()
    assert scores.distance == pytest.approx(3)
    assert scores.rmse == pytest.approx(math.sqrt(13))
    assert scores.relative_distance == pytest.approx(1.5)


def test_points_after_scale_and_shift() -> None:
    random = np.random.default_rng(1)
    truth = random.normal(size=(2, 3, 5, 4)) + np.array([0, 0, 4])[:, None, None]
    shifted = 0.25 * truth + np.array([1, 2, 3])[:, None, None]
    for guess, alignment, perfect in [
        (0.25 * truth, "scale", True),
        (shifted, "scale", False),
        (shifted, "scale_and_shift", True),
    ]:
        quality = PointError(alignment=alignment)
        quality.update(torch.tensor(guess), torch.tensor(truth))
        assert (quality.compute().distance < 1e-9) is perfect
        assert math.isnan(quality.compute().relative_distance)


def test_alignment_of_points_is_the_best_an_optimiser_finds() -> None:
    random = np.random.default_rng(2)
    truth, guess = random.normal(size=(2, 3, 6, 7))
    mask = random.random((6, 7)) < 0.6
    quality = PointError(alignment="scale_and_shift")
    quality.update(guess, truth, mask=mask)
    p, q = guess[:, mask], truth[:, mask]
    found = least_squares(lambda x: (x[0] * p + x[1:, None] - q).ravel(), np.array([1.0, 0, 0, 0]))
    squared = 2 * found.cost / mask.sum()
    assert quality.compute().rmse == pytest.approx(math.sqrt(squared), rel=1e-6)


def test_lengths_are_each_pictures_own_and_merge() -> None:
    truth = np.ones((2, 3, 1, 1))
    guess = truth + np.array([[[[1.0]], [[0]], [[0]]], [[[3.0]], [[0]], [[0]]]])
    together, first, second = (PointError(alignment="none") for _ in range(3))
    together.update(guess, truth, length=torch.tensor([2.0, 1.0]))
    first.update(guess[:1], truth[:1], length=2.0)
    second.update(guess[1:], truth[1:], length=1.0)
    first.merge(second)
    assert first.compute() == together.compute()
    assert together.compute().relative_distance == pytest.approx((0.5 + 3) / 2)


def test_bad_inputs() -> None:
    with pytest.raises(InputError, match="alignment: expected one of none, median"):
        DepthError(alignment="affine")
    with pytest.raises(InputError, match="alignment: expected one of none, scale, "):
        PointError(alignment="median")
    with pytest.raises(InputError, match="min_depth"):
        DepthError(min_depth=0)
    with pytest.raises(InputError, match="finite"):
        DepthError().update([[math.nan]], [[1.0]])
    with pytest.raises(InputError, match="finite"):
        PointError().update(np.full((3, 1, 1), np.inf), np.ones((3, 1, 1)))
    with pytest.raises(InputError, match="length: expected numbers over 0"):
        PointError().update(np.ones((3, 1, 1)), np.ones((3, 1, 1)), length=0)
    with pytest.raises(InputError, match="length: expected one for each of the 1"):
        PointError().update(np.ones((3, 1, 1)), np.ones((3, 1, 1)), length=[1, 2])
    with pytest.raises(InputError, match="same alignment"):
        DepthError().merge(DepthError(alignment="scale"))
