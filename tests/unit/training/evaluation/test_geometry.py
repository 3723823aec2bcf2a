from __future__ import annotations

import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares

from vitruvian.errors import InputError
from vitruvian.training.evaluation import AngularError, DepthError, PointError


def tilted(degrees: list[float]) -> np.ndarray:
    """One row of normals [3, 1, W], turned away from the camera's axis by these angles."""
    angle = np.radians(degrees)
    return np.stack([np.sin(angle), np.zeros_like(angle), -np.cos(angle)])[:, None]


def facing(count: int) -> np.ndarray:
    return tilted([0.0] * count)


def test_by_hand() -> None:
    quality = AngularError()
    quality.update(2.5 * tilted([0, 6, 10, 20, 25, 90]), facing(6))  # length must not matter
    scores = quality.compute()
    assert scores.mean == pytest.approx(151 / 6)
    assert scores.median == pytest.approx(15)
    assert scores.rmse == pytest.approx(math.sqrt((36 + 100 + 400 + 625 + 8100) / 6))
    assert scores.within == pytest.approx({5.0: 1 / 6, 7.5: 2 / 6, 11.25: 3 / 6, 22.5: 4 / 6, 30.0: 5 / 6})
    assert scores.pixels == 6


def test_perfect_is_exactly_zero_and_opposite_is_180() -> None:
    quality = AngularError()
    quality.update(tilted([33, 77, 11]), tilted([33, 77, 11]))
    scores = quality.compute()
    assert (scores.mean, scores.median, scores.rmse) == pytest.approx((0, 0, 0), abs=1e-9)
    opposite = AngularError()
    opposite.update(-facing(2), facing(2))
    assert opposite.compute().mean == pytest.approx(180)


def test_random_batches_against_arc_cosine_and_merged_halves() -> None:
    random = np.random.default_rng(0)
    truth, guess = random.normal(size=(2, 4, 3, 16, 12))
    mask = random.random((4, 1, 16, 12)) < 0.7
    truth[0, :, 0, 0] = np.nan
    truth[1, :, 0, 0] = 0
    quality, other = AngularError(), AngularError()
    quality.update(guess[:1], truth[:1], mask=mask[:1])
    other.update(torch.tensor(guess[1:]), torch.tensor(truth[1:]), mask=torch.tensor(mask[1:, 0]))
    quality.merge(pickle.loads(pickle.dumps(other)))
    counts = mask[:, 0] & np.isfinite(truth).all(1) & (truth != 0).any(1)
    cosine = (
        (truth * guess).sum(1)[counts] / np.linalg.norm(truth, axis=1)[counts] / np.linalg.norm(guess, axis=1)[counts]
    )
    angles = np.degrees(np.arccos(cosine))
    scores = quality.compute()
    assert scores.pixels == counts.sum() < mask.sum()
    assert scores.mean == pytest.approx(angles.mean())
    assert scores.median == pytest.approx(np.median(angles), abs=0.01)
    assert scores.rmse == pytest.approx(np.sqrt((angles**2).mean()))
    assert scores.within[30.0] == pytest.approx((angles < 30).mean())


def test_zero_predictions_are_90_degrees_off() -> None:
    quality = AngularError()
    quality.update(np.zeros((3, 2, 2)), facing(2).repeat(2, axis=1))
    assert quality.compute().mean == 90


def test_no_normals_is_nan() -> None:
    quality = AngularError(angles=[10])
    quality.update(facing(2), facing(2), mask=np.zeros((1, 2)))
    scores = quality.compute()
    assert np.isnan([scores.mean, scores.median, scores.rmse, scores.within[10.0]]).all()
    assert scores.pixels == 0


def test_bad_inputs_of_normals() -> None:
    quality = AngularError()
    with pytest.raises(InputError, match="angles"):
        AngularError(angles=[0])
    with pytest.raises(InputError, match=r"target: expected the shape \[..., 3, H, W\]"):
        quality.update(np.zeros((2, 2, 3)), np.zeros((2, 2, 3)))
    with pytest.raises(InputError, match="prediction: expected the shape of the target"):
        quality.update(np.zeros((3, 2, 2)), np.zeros((3, 2, 3)))
    with pytest.raises(InputError, match="Channels come before rows"):
        quality.update(np.zeros((3, 1, 3, 3)), np.zeros((1, 3, 3, 3)))
    with pytest.raises(InputError, match="mask: expected the shape"):
        quality.update(facing(2), facing(2), mask=np.ones((2, 1)))
    with pytest.raises(InputError, match="NaN or infinity"):
        quality.update(facing(2) * np.nan, facing(2))
    with pytest.raises(InputError, match="different angles"):
        quality.merge(AngularError(angles=[1]))


def test_depth_by_hand() -> None:
    quality = DepthError()
    quality.update(np.array([[1.0, 2.4, 3.0, 8.0]]), np.array([[1.0, 2.0, 2.0, 4.0]]))
    scores = quality.compute()
    assert scores.abs_rel == pytest.approx((0 + 0.2 + 0.5 + 1) / 4)
    assert scores.sq_rel == pytest.approx((0 + 0.16 / 2 + 1 / 2 + 16 / 4) / 4)
    assert scores.rmse == pytest.approx(math.sqrt((0.16 + 1 + 16) / 4))
    assert scores.log_rmse == pytest.approx(math.sqrt((math.log(1.2) ** 2 + math.log(1.5) ** 2 + math.log(2) ** 2) / 4))
    assert (scores.delta_1, scores.delta_2, scores.delta_3) == (0.5, 0.75, 0.75)  # ratios 1, 1.2, 1.5, 2
    assert scores.images == 1


def test_images_have_equal_weight_and_merge() -> None:
    first, second = DepthError(), DepthError()
    first.update(torch.full((1, 2, 2), 1.1), torch.ones(1, 2, 2))
    second.update(torch.full((1, 1, 4, 4), 1.3), torch.ones(1, 1, 4, 4))
    first.merge(pickle.loads(pickle.dumps(second)))
    assert first.compute().abs_rel == pytest.approx(0.2)
    assert first.compute().delta_1 == 0.5
    assert first.compute().images == 2


@pytest.mark.parametrize(
    ("alignment", "change"),
    [
        ("median", lambda depth: 3 * depth),
        ("scale", lambda depth: 3 * depth),
        ("scale_and_shift", lambda depth: 0.5 * depth + 7),
    ],
)
def test_alignments_of_depth(alignment: str, change) -> None:
    truth = np.random.default_rng(0).uniform(1, 5, (2, 6, 5))
    guess = np.stack([change(truth[0]), 2 * change(truth[1])])  # each image has its own
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


def test_ignored_pixels() -> None:
    quality = DepthError(max_depth=10)
    truth = np.array([[2.0, np.nan, 0.0, -1.0, 50.0, 4.0]])
    quality.update(np.array([[2.0, 9, 9, 9, 9, 40.0]]), truth)  # 40 is moved to 10
    assert quality.compute().rmse == pytest.approx(math.sqrt(36 / 2))
    quality.update(truth, truth, mask=np.zeros((1, 6)))
    assert quality.compute().images == 1
    negative = DepthError(min_depth=0.5)
    negative.update([[-3.0]], [[1.0]])
    assert negative.compute().log_rmse == pytest.approx(math.log(2))


@pytest.mark.parametrize("quality", [DepthError(), PointError()])
def test_no_depth_is_nan(quality) -> None:
    scores = dataclasses.asdict(quality.compute())
    assert scores.pop("images") == 0
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


def test_lengths_of_each_image_and_merge() -> None:
    truth = np.ones((2, 3, 1, 1))
    guess = truth + np.array([[[[1.0]], [[0]], [[0]]], [[[3.0]], [[0]], [[0]]]])
    together, first, second = (PointError(alignment="none") for _ in range(3))
    together.update(guess, truth, length=torch.tensor([2.0, 1.0]))
    first.update(guess[:1], truth[:1], length=2.0)
    second.update(guess[1:], truth[1:], length=1.0)
    first.merge(second)
    assert first.compute() == together.compute()
    assert together.compute().relative_distance == pytest.approx((0.5 + 3) / 2)


def test_bad_inputs_of_depth() -> None:
    with pytest.raises(InputError, match="alignment: expected one of none, median"):
        DepthError(alignment="affine")
    with pytest.raises(InputError, match="alignment: expected one of none, scale, "):
        PointError(alignment="median")
    with pytest.raises(InputError, match="min_depth"):
        DepthError(min_depth=0)
    with pytest.raises(InputError, match="NaN or infinity"):
        DepthError().update([[math.nan]], [[1.0]])
    with pytest.raises(InputError, match="NaN or infinity"):
        PointError().update(np.full((3, 1, 1), np.inf), np.ones((3, 1, 1)))
    with pytest.raises(InputError, match="length: expected numbers over 0"):
        PointError().update(np.ones((3, 1, 1)), np.ones((3, 1, 1)), length=0)
    with pytest.raises(InputError, match="length: expected one for each of the 1"):
        PointError().update(np.ones((3, 1, 1)), np.ones((3, 1, 1)), length=[1, 2])
    with pytest.raises(InputError, match="different alignment"):
        DepthError().merge(DepthError(alignment="scale"))
