from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from scipy import ndimage

from vitruvian.errors import InputError
from vitruvian.training.evaluation import MattingError, unknown_band
from vitruvian.training.evaluation.matting import _connected_levels, _gradient_strength


def plain_gradient(opacity: np.ndarray) -> np.ndarray:
    """The gradient by full two-dimensional kernels of 9 × 9, as the literature has them."""
    y, x = np.mgrid[-4:5, -4:5].astype(float)
    bell = np.exp(-(x**2 + y**2) / (2 * 1.4**2))
    across = x * bell / np.sqrt(((x * bell) ** 2).sum())
    return np.hypot(*(ndimage.correlate(opacity, kernel, mode="nearest") for kernel in (across, across.T)))


def plain_connectivity(prediction: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The error of connectivity, pixel by pixel."""
    level = np.full(target.shape, -1.0)
    for step in range(1, 11):
        labels, count = ndimage.label((prediction >= step / 10) & (target >= step / 10))  # 4 neighbours
        sizes = [(labels == number).sum() for number in range(1, count + 1)]
        largest = labels == 1 + int(np.argmax(sizes)) if count else np.zeros(target.shape, dtype=bool)
        level[(level == -1) & ~largest] = (step - 1) / 10
    level[level == -1] = 1
    phi = []
    for opacity in (prediction, target):
        apart = opacity - level
        phi.append(np.where(apart >= 0.15, 1 - apart, 1.0))
    return np.abs(phi[0] - phi[1])


def blobs(seed: int, shape: tuple[int, int] = (40, 31)) -> np.ndarray:
    """Soft islands of all opacities."""
    noise = ndimage.gaussian_filter(np.random.default_rng(seed).normal(size=shape), 2.5)
    return np.clip(0.5 + noise * 5, 0, 1)


def test_by_hand() -> None:
    quality = MattingError()
    truth = np.zeros((4, 5))
    guess = truth.copy()
    guess[1, 1], guess[2, 3] = 0.5, 0.1
    quality.update(guess, truth)
    scores = quality.compute()
    assert scores.sad == pytest.approx(0.6 / 1000)
    assert scores.mad == pytest.approx(0.6 / 20)
    assert scores.mse == pytest.approx((0.25 + 0.01) / 20)
    # Nothing hangs together in both, so that all levels are 0: 0.5 floats, 0.1 is too faint to count.
    assert scores.conn == pytest.approx(0.5 / 1000)
    assert scores.images == 1


def test_gradient_of_a_ramp_by_hand() -> None:
    ramp = np.tile(np.arange(30) / 100, (30, 1))
    x = np.arange(-4, 5)
    bell = np.exp(-(x**2) / (2 * 1.4**2))
    expected = (
        0.01 * (x * x * bell).sum() / math.sqrt(((x * bell) ** 2).sum()) * bell.sum() / math.sqrt((bell**2).sum())
    )
    assert _gradient_strength(torch.from_numpy(ramp))[10:20, 10:20].numpy() == pytest.approx(expected)
    quality = MattingError()
    inner = np.zeros((30, 30))
    inner[10:20, 10:20] = 1
    quality.update(ramp, np.zeros((30, 30)), mask=inner)
    assert quality.compute().grad == pytest.approx(100 * expected**2 / 1000)


def test_levels_by_hand() -> None:
    row = np.array([[1.0, 0.85, 0.3, 0.9, 0.0, 0.2]])
    # At 0.4 the row falls apart: the left end is larger. At 0.9 only the first pixel is left on that side.
    assert _connected_levels(row).tolist() == pytest.approx(np.array([[1.0, 0.8, 0.3, 0.3, 0.0, 0.0]]))
    diagonal = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert _connected_levels(diagonal).tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_random_mattes_against_plain_code_and_merged_halves() -> None:
    truth = np.stack([blobs(seed) for seed in range(4)])
    guess = np.stack([0.6 * blobs(seed) + 0.4 * blobs(seed + 10) for seed in range(4)])
    trimap = np.where((truth > 0) & (truth < 1), 128, 255)
    region = trimap == 128
    quality, other = MattingError(), MattingError()
    quality.update(guess[:1], truth[:1], mask=region[:1])
    other.update(torch.tensor(guess[1:, None]), torch.tensor(truth[1:, None]), mask=torch.tensor(region[1:]))
    quality.merge(pickle.loads(pickle.dumps(other)))
    scores = quality.compute()
    pairs = list(zip(guess, truth, region, strict=True))
    assert 0 < region.mean() < 0.95
    assert scores.sad == pytest.approx(np.mean([np.abs(p - t)[r].sum() for p, t, r in pairs]) / 1000)
    assert scores.mad == pytest.approx(np.mean([np.abs(p - t)[r].mean() for p, t, r in pairs]))
    assert scores.mse == pytest.approx(np.mean([((p - t) ** 2)[r].mean() for p, t, r in pairs]))
    gradients = [((plain_gradient(p) - plain_gradient(t)) ** 2)[r].sum() for p, t, r in pairs]
    assert scores.grad == pytest.approx(np.mean(gradients) / 1000)
    assert scores.conn == pytest.approx(np.mean([plain_connectivity(p, t)[r].sum() for p, t, r in pairs]) / 1000)
    assert scores.conn > 0


def test_perfect_is_zero_and_no_region_does_not_count() -> None:
    quality = MattingError()
    quality.update(blobs(0), blobs(0))
    quality.update(blobs(1), blobs(2), mask=np.zeros((40, 31)))
    scores = quality.compute()
    assert (scores.sad, scores.mad, scores.mse, scores.grad, scores.conn, scores.images) == (0, 0, 0, 0, 0, 1)
    assert math.isnan(MattingError().compute().conn)


def test_unknown_band() -> None:
    alpha = torch.tensor([[0.0, 0, 0, 0, 0.5, 1, 1, 1, 1]])
    assert unknown_band(alpha, radius=1).int().tolist() == [[0, 0, 0, 1, 1, 1, 0, 0, 0]]
    edge = torch.tensor([[[0.0, 0, 0, 1, 1, 1]]])
    assert unknown_band(edge, radius=2).int().tolist() == [[[0, 1, 1, 1, 1, 0]]]


def test_bad_inputs() -> None:
    quality = MattingError()
    with pytest.raises(InputError, match="prediction: expected 0 to 1, got 0 to 255"):
        quality.update(np.array([[0, 255]], dtype=np.uint8), np.array([[0.0, 1.0]]))
    with pytest.raises(InputError, match="target: expected 0 to 1"):
        quality.update(np.zeros((1, 1)), np.full((1, 1), -1.0))
    with pytest.raises(InputError, match="NaN or infinity"):
        quality.update(np.full((1, 1), np.nan), np.zeros((1, 1)))
    with pytest.raises(InputError, match="Resize"):
        quality.update(np.zeros((1, 2)), np.zeros((2, 2)))
