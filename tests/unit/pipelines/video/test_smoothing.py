"""Smoothing over time: One-Euro as published, keypoints by identity and confidence, averages that know motion."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.shared_folder import SHARED
from vitruvian.images.types import RgbImage
from vitruvian.pipelines.video.smoothing import (
    DenseSmoother,
    ExponentialAverage,
    KeypointSmoother,
    OneEuroFilter,
    SceneCuts,
)

Points = NDArray[np.float32]


class TestOneEuro:
    def test_values_computed_by_hand(self) -> None:
        """min_cutoff 1, beta 0.5, d_cutoff 1, values 0, 1, 3 at 0, 0.1 and 0.3 seconds (steps of 0.1 and 0.2).

        Step 0.1: α(1) = 1 / (1 + 1 / (2π · 0.1)) = 0.385870; speed 0.385870 · (1 − 0) / 0.1 = 3.858695;
        cutoff 1 + 0.5 · 3.858695 = 2.929348, α = 0.647957, value 0.647957.
        Step 0.2: α(1) = 0.556863; raw speed (3 − 0.647957) / 0.2 = 11.760214;
        speed 0.556863 · 11.760214 + 0.443137 · 3.858695 = 8.258757; cutoff 5.129378, α = 0.865696;
        value 0.865696 · 3 + 0.134304 · 0.647957 = 2.684110.
        """
        one = np.ones(1)
        smoother = OneEuroFilter(min_cutoff=1.0, beta=0.5, d_cutoff=1.0)
        smoother.restart(np.array([0.0]), 0.0, one)
        assert smoother.step(np.array([1.0]), 0.1, one) == pytest.approx(0.647957, abs=2e-6)
        assert smoother.step(np.array([3.0]), 0.3, one) == pytest.approx(2.684110, abs=2e-6)

    def test_equals_the_published_recursion(self) -> None:
        rng = np.random.default_rng(0)
        times, values = np.cumsum(rng.uniform(0.01, 0.1, 50)), rng.normal(size=(50, 3, 1)).cumsum(0)
        smoother, ones = OneEuroFilter(min_cutoff=0.7, beta=0.3, d_cutoff=1.2), np.ones((3, 1))

        def alpha(cutoff: Any, step: float) -> Any:
            return 1.0 / (1.0 + (1.0 / (2 * math.pi * cutoff)) / step)

        smooth, speed = values[0], np.zeros((3, 1))
        smoother.restart(values[0], times[0], ones)
        for before, time, value in zip(times, times[1:], values[1:], strict=False):
            step = time - before
            rate = alpha(1.2, step)
            speed = rate * (value - smooth) / step + (1 - rate) * speed
            rate = alpha(0.7 + 0.3 * abs(speed), step)
            smooth = rate * value + (1 - rate) * smooth
            np.testing.assert_allclose(smoother.step(value, time, ones), smooth, rtol=1e-12)


def body(x: float = 0.0, y: float = 0.0, size: float = 200.0) -> Points:
    """Eight points of someone about `size` tall: [8, 2]."""
    shape = np.array([[0, 0], [0.2, 0.2], [-0.2, 0.2], [0, 0.4], [0.1, 0.7], [-0.1, 0.7], [0.1, 1], [-0.1, 1]])
    return (shape * size + [x, y]).astype(np.float32)


SURE = np.ones((1, 8), np.float32)


class TestKeypoints:
    def test_jitter_shrinks_and_motion_is_followed(self) -> None:
        rng = np.random.default_rng(0)
        smoother = KeypointSmoother()
        still = [smoother((body() + rng.normal(0, 1, (8, 2)))[None], SURE, [1], t / 30) for t in range(120)]
        jitter = np.diff(np.stack(still[30:]), axis=0).std()
        assert jitter < 0.35 * math.sqrt(2)  # of raw differences with a deviation of √2
        walk = [smoother(body(x=4.0 * t)[None], SURE, [2], t / 30) for t in range(60)]  # 0.6 body sizes a second
        assert np.abs(walk[-1][0] - body(x=4.0 * 59)).max() < 4  # a frame behind, at most

    def test_scale_of_the_person_does_not_matter(self) -> None:
        rng = np.random.default_rng(1)
        noise = rng.normal(0, 0.01, (40, 8, 2))
        large, small = KeypointSmoother(), KeypointSmoother()
        for t in range(40):
            one = large((body(size=400) + 400 * noise[t]).astype(np.float32)[None], SURE, [1], t / 25)
            other = small((body(size=100) + 100 * noise[t]).astype(np.float32)[None], SURE, [1], t / 25)
        np.testing.assert_allclose(one / 4, other, atol=1e-3)

    def test_points_of_low_confidence_move_little(self) -> None:
        smoother = KeypointSmoother()
        scores = SURE.copy()
        for t in range(10):
            smoother(body()[None], scores, [1], t / 30)
        wild, scores = body()[None].copy(), scores.copy()
        wild[0, 3] += 90  # one point flies off, and the model says that it guesses
        scores[0, 3] = 0.01
        held = smoother(wild, scores, [1], 10 / 30)
        assert np.abs(held[0, 3] - body()[3]).max() < 5
        fooled = KeypointSmoother()
        for t in range(10):
            fooled(body()[None], SURE, [1], t / 30)
        assert np.abs(fooled(wild, SURE, [1], 10 / 30)[0, 3] - body()[3]).max() > 30
        guessed = KeypointSmoother()
        guessed(wild, scores, [1], 0.0)
        assert np.abs(guessed(body()[None], SURE, [1], 1 / 30)[0, 3] - body()[3]).max() < 5

    def test_missing_points_stay_missing(self) -> None:
        smoother = KeypointSmoother()
        for t in range(5):
            smoother(body()[None], SURE, [1], t / 30)
        gone = body()[None].copy()
        gone[0, 2] = np.nan
        assert np.isnan(smoother(gone, SURE, [1], 5 / 30)[0, 2]).all()
        np.testing.assert_allclose(smoother(body()[None], SURE, [1], 6 / 30)[0], body(), atol=1e-3)

    def test_people_are_smoothed_by_id(self) -> None:
        smoother = KeypointSmoother()
        both, scores = np.stack((body(0), body(500))), np.ones((2, 8), np.float32)
        smoother(both, scores, [1, 2], 0.0)
        swapped = smoother(both[::-1], scores, [2, 1], 1 / 30)
        np.testing.assert_allclose(swapped, both[::-1], atol=1e-3)
        shaken = both + 3
        np.testing.assert_array_equal(smoother(shaken, scores, [-1, -1], 2 / 30), shaken)

    def test_jumps_gaps_and_going_back_reset_the_filter(self) -> None:
        for time, x in ((1 / 30, 300.0), (2.0, 20.0), (-1.0, 20.0)):
            smoother = KeypointSmoother()
            smoother(body()[None], SURE, [1], 0.0)
            np.testing.assert_array_equal(smoother(body(x)[None], SURE, [1], time)[0], body(x))
        smoother = KeypointSmoother()
        smoother(body()[None], SURE, [1], 0.0)
        assert np.abs(smoother(body(20)[None], SURE, [1], 1 / 30)[0] - body(20)).max() > 1

    def test_memory_is_bounded(self) -> None:
        smoother = KeypointSmoother()
        for t in range(300):
            smoother(body()[None], SURE, [t], t / 30)
        assert len(smoother._people) <= 32

    def test_a_restored_smoother_continues_identically(self) -> None:
        rng = np.random.default_rng(2)
        frames = (body() + rng.normal(0, 2, (20, 1, 8, 2))).astype(np.float32)
        whole, first, second = KeypointSmoother(), KeypointSmoother(), KeypointSmoother()
        for t in range(10):
            whole(frames[t], SURE, [4], t / 30)
            first(frames[t], SURE, [4], t / 30)
        second.restore(first.state())
        for t in range(10, 20):
            np.testing.assert_array_equal(second(frames[t], SURE, [4], t / 30), whole(frames[t], SURE, [4], t / 30))
        second.restore(KeypointSmoother().state())
        assert not second._people


class TestExponentialAverage:
    def test_a_third_is_left_after_the_time_constant(self) -> None:
        one, many = ExponentialAverage(0.5), ExponentialAverage(0.5)
        one(1.0, 0.0)
        many(1.0, 0.0)
        for t in range(1, 6):
            last = many(0.0, t / 10)
        assert one(0.0, 0.5) == pytest.approx(1 / math.e)
        assert last == pytest.approx(1 / math.e)  # whatever the rate

    def test_gaps_in_the_values_and_restarts(self) -> None:
        average = ExponentialAverage(0.5)
        average(1.0, 0.0)
        assert average(np.nan, 0.1) == 1
        assert average(5.0, 0.05) == 5
        average.reset()
        assert average(2.0, 0.3) == 2
        other = ExponentialAverage(0.5)
        other.restore(average.state())
        assert other(3.0, 0.4) == average(3.0, 0.4)


def noise(seed: int, size_hw: tuple[int, int] = (64, 96)) -> RgbImage:
    coarse = np.random.default_rng(seed).integers(0, 256, (size_hw[0] // 16, size_hw[1] // 16, 3), dtype=np.uint8)
    return np.kron(coarse, np.ones((16, 16, 1), np.uint8))


class TestDense:
    def test_static_pixels_are_averaged_and_moving_ones_are_not(self) -> None:
        rng = np.random.default_rng(0)
        smoother, image = DenseSmoother(0.2), noise(0)
        for t in range(60):
            moving = image.copy()
            moving[:, 48:] = noise(100 + t)[:, 48:]  # the right half is another one in each frame
            values = rng.normal(0, 1, (64, 96)).astype(np.float32)
            smooth = smoother(values, moving, t / 30)
        assert smooth[:, :40].std() < 0.45
        assert np.abs(smooth - values)[:, 56:].mean() < 0.25 * np.abs(smooth - values)[:, :40].mean()

    def test_slow_motion_is_not_averaged(self) -> None:
        """A brightness that creeps by one level a frame, below the noise, adds up against the average."""
        smoother = DenseSmoother(1.0)
        for t in range(60):
            image = np.full((32, 32, 3), 40 + 2 * t, np.uint8)
            value = smoother(np.full((32, 32), float(t), np.float32), image, t / 30)
        assert value.mean() > 53  # a plain average over one second would be 30 behind

    def test_reset_size_and_time_reset_the_filter(self) -> None:
        smoother, image = DenseSmoother(), noise(0)
        smoother(np.zeros((64, 96, 2)), image, 1.0)
        assert (smoother(np.ones((64, 96, 2)), image, 1.01) < 0.2).all()
        assert (smoother(np.ones((64, 96, 2)), image, 0.5) == 1).all()
        assert (smoother(np.zeros((64, 96)), image, 0.6) == 0).all()
        smoother.reset()
        assert (smoother(np.ones((64, 96)), image, 0.61) == 1).all()

    def test_vectors_stay_unit_length_and_nan_takes_the_newest_value(self) -> None:
        smoother, image = DenseSmoother(unit=True), noise(0)
        smoother(np.broadcast_to(np.float32([1, 0, 0]), (64, 96, 3)), image, 0.0)
        mixed = smoother(np.broadcast_to(np.float32([0, 1, 0]), (64, 96, 3)), image, 0.1)
        np.testing.assert_allclose(np.linalg.norm(mixed, axis=-1), 1, atol=1e-6)
        assert mixed[0, 0, 0] > 0.3
        plain = DenseSmoother()
        plain(np.full((64, 96), np.nan), image, 0.0)
        assert (plain(np.ones((64, 96)), image, 0.1) == 1).all()

    def test_a_restored_smoother_continues_identically(self) -> None:
        one, other = DenseSmoother(), DenseSmoother()
        one(np.ones((64, 96)), noise(0), 0.0)
        other.restore(one.state())
        np.testing.assert_array_equal(other(np.zeros((64, 96)), noise(0), 0.1), one(np.zeros((64, 96)), noise(0), 0.1))
        other.restore(DenseSmoother().state())
        assert other.average is None


class TestCuts:
    def test_another_image_is_a_cut_and_motion_is_not(self) -> None:
        cuts = SceneCuts()
        first, second = noise(0, (144, 256)), noise(1, (144, 256))
        found = [cuts(np.roll(first, 2 * t, axis=1)) for t in range(10)] + [cuts(second), cuts(second)]
        assert found == [False] * 10 + [True, False]
        other = SceneCuts()
        other.restore(cuts.state())
        assert other(first)

    def test_fast_motion_raises_the_threshold(self) -> None:
        cuts = SceneCuts()
        found = [cuts(noise(t, (144, 256))) for t in range(30)]
        assert not any(found[15:])

    @pytest.mark.skipif(not (SHARED / "photos/video/bedroom").is_dir(), reason="the shared frames are not here")
    def test_real_frames(self) -> None:
        from PIL import Image

        paths = sorted((SHARED / "photos/video/bedroom").glob("*.jpg"))[::4]
        other = SHARED / "photos/portraits/astronaut.png"
        cuts = SceneCuts()
        images = [np.asarray(Image.open(path).convert("RGB")) for path in [*paths, other]]
        assert [cuts(image) for image in images] == [False] * len(paths) + [True]
