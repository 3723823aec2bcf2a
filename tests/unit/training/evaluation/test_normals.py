from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch

from vitruvian.errors import InputError
from vitruvian.training.evaluation import AngularError


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


def test_a_prediction_without_direction_is_no_good_one() -> None:
    quality = AngularError()
    quality.update(np.zeros((3, 2, 2)), facing(2).repeat(2, axis=1))
    assert quality.compute().mean == 90


def test_nothing_seen_is_nan() -> None:
    quality = AngularError(angles=[10])
    quality.update(facing(2), facing(2), mask=np.zeros((1, 2)))
    scores = quality.compute()
    assert np.isnan([scores.mean, scores.median, scores.rmse, scores.within[10.0]]).all()
    assert scores.pixels == 0


def test_bad_inputs() -> None:
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
    with pytest.raises(InputError, match="finite"):
        quality.update(facing(2) * np.nan, facing(2))
    with pytest.raises(InputError, match="same angles"):
        quality.merge(AngularError(angles=[1]))
