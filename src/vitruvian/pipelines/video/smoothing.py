"""Temporal smoothing: One-Euro filters for keypoints, exponential averages for numbers and maps, and scene cuts.

    keypoints ── KeypointSmoother, a One-Euro filter for each identity ──▶ keypoints
    scale     ── ExponentialAverage ──▶ scale
    map       ── DenseSmoother: averaged in static areas of the image, unchanged in moving ones ──▶ map

All filters use the times of frames in seconds, so smoothing does not depend on the frame rate.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.images.data_format import pixels_of
from vitruvian.images.resize import resize
from vitruvian.images.types import Float64Array, RgbImage
from vitruvian.pipelines.video.state import State, Stateful, prefixed, substate
from vitruvian.results import Albedo, Matte, Normals, Pointmap, Pose, Result

FloatOrArray = TypeVar("FloatOrArray", float, NDArray[np.float64])
UNTRACKED = -1  # identity of boxes whose score is too low
_MIN_CONFIDENCE = 1e-3
# Of keypoints: cutoffs in hertz, and the increase of the cutoff per body size a second.
_MIN_CUTOFF, _BETA, _VELOCITY_CUTOFF = 1.5, 10.0, 1.5
_FULL_CONFIDENCE = 0.3  # score from which a keypoint has full weight
_MAX_GAP = 1.0  # seconds without a person after which their filter is dropped
_MAX_JUMP = 0.5  # median motion in a step, in body sizes, above which it is someone else or a cut
# Of maps: differences of an image from its average in gray levels, due to noise, and from which nothing is averaged.
_STILL, _MOVING = 3.0, 10.0
_CELL = 8  # side in pixels of the cells in which motion is measured
# Of scene cuts: the minimum mean difference in gray levels, and its minimum ratio to the average difference.
_CUT_DIFFERENCE, _CUT_RATIO = 18.0, 3.0
_CUT_GRID_HW = (18, 32)


class OneEuroFilter(Stateful):
    """The One-Euro filter of Casiez, Roussel and Vogel (CHI 2012) for vectors along the last axis of an array.

    cutoff = min_cutoff + beta · ‖velocity‖; a step is x̂ ← α x + (1 − α) x̂ with α = 1 / (1 + 1 / (2π · cutoff · Δt)).

    Args:
        min_cutoff: Cutoff in hertz at rest; lower has less jitter.
        beta: Increase of the cutoff in hertz per unit of speed; higher has less lag.
        d_cutoff: Cutoff in hertz of the velocity.

    Attributes:
        unit: Unit of length; speeds are in units per second.
    """

    state_fields = ("unit", "time", "values", "velocities", "confidence", "velocity_confidence")

    def __init__(self, *, min_cutoff: float = 1.0, beta: float = 0.0, d_cutoff: float = 1.0) -> None:
        self._min_cutoff, self._beta, self._d_cutoff = min_cutoff, beta, d_cutoff
        self.unit, self.time = 1.0, 0.0
        self.values = self.velocities = self.confidence = self.velocity_confidence = np.zeros(0)

    def restart(self, values: Float64Array, time: float, confidence: Float64Array) -> None:
        """Start with values [..., D] at a time in seconds."""
        self.time, self.values, self.velocities = time, values.copy(), np.zeros_like(values)
        self.confidence, self.velocity_confidence = confidence.copy(), confidence.copy()

    def step(self, values: Float64Array, time: float, confidence: Float64Array) -> Float64Array:
        """Return smoothed values [..., D] at a later time.

        Values are weighted by their `confidence`, from 0 to 1; with a constant one this is the published filter.
        """
        step = max(time - self.time, 1e-6)
        self.time = time
        self.velocities, self.velocity_confidence = _weighted_step(
            self.velocities,
            self.velocity_confidence,
            (values - self.values) / step,
            confidence,
            _low_pass_alpha(self._d_cutoff, step),
        )
        speed = np.linalg.norm(self.velocities, axis=-1, keepdims=True)
        alpha = _low_pass_alpha(self._min_cutoff + self._beta * speed / self.unit, step)
        self.values, self.confidence = _weighted_step(self.values, self.confidence, values, confidence, alpha)
        return self.values.copy()


def _low_pass_alpha(cutoff: FloatOrArray, step: float) -> FloatOrArray:
    """Return α of a low-pass filter with a cutoff in hertz, for a step in seconds."""
    return 1 / (1 + 1 / (2 * math.pi * cutoff * step))


def _weighted_step(
    old: Float64Array,
    old_confidence: Float64Array,
    new: Float64Array,
    confidence: Float64Array,
    alpha: float | Float64Array,
) -> tuple[Float64Array, Float64Array]:
    """Average an old and a new value by α and the confidence in each; return it and its confidence."""
    old_weight = (1 - alpha) * old_confidence
    total = old_weight + alpha * confidence
    return (old_weight * old + alpha * confidence * new) / total, total


class KeypointSmoother(Stateful):
    """Smooths the keypoints of each person with a One-Euro filter.

    Speeds are in body sizes per second, so smoothing does not depend on the distance of people or the size of images.
    Keypoints with low scores move little until the score rises. The filter of a person restarts after a gap or a jump.
    """

    def __init__(self) -> None:
        self._new_filter = partial(OneEuroFilter, min_cutoff=_MIN_CUTOFF, beta=_BETA, d_cutoff=_VELOCITY_CUTOFF)
        self._people: dict[int, OneEuroFilter] = {}  # their unit is the size of the body in pixels

    def __call__(
        self,
        keypoints: NDArray[np.float32],
        scores: NDArray[np.float32],
        ids: Sequence[int] | NDArray[np.int64],
        time: float,
    ) -> NDArray[np.float32]:
        """Return smoothed keypoints [P, J, 2], from their scores [P, J], identities [P] and the time in seconds.

        People with the identity -1 are not smoothed.
        """
        smooth = keypoints.astype(np.float32)
        for row, number in enumerate(int(person) for person in ids):
            if number != UNTRACKED:
                smooth[row] = self._smooth_person(number, keypoints[row].astype(np.float64), scores[row], time)
        for number in [n for n, person in self._people.items() if not 0 <= time - person.time <= _MAX_GAP]:
            del self._people[number]
        return smooth

    def _smooth_person(
        self, number: int, points: Float64Array, scores: NDArray[np.float32], time: float
    ) -> Float64Array:
        """Smooth the keypoints [J, 2] of one person."""
        known = np.isfinite(points).all(axis=1, keepdims=True)  # [J, 1]
        confidence: Float64Array = np.clip(np.nan_to_num(scores) / _FULL_CONFIDENCE, _MIN_CONFIDENCE, 1)[:, None]
        confidence = np.where(known, confidence, _MIN_CONFIDENCE)  # [J, 1]
        both_axes = np.broadcast_to(confidence, points.shape)  # [J, 2]
        person = self._people.setdefault(number, self._new_filter())
        size = _body_size(points, confidence)
        if person.values.shape != points.shape or _is_new(person, points, confidence, time):
            person.unit = size
            person.restart(np.where(known, points, 0), time, both_axes)
            return points
        person.unit += 0.1 * (size - person.unit)
        return np.where(known, person.step(np.where(known, points, person.values), time, both_axes), np.nan)

    def reset(self) -> None:
        """Restart the filters of all people, as after a scene cut."""
        self._people.clear()

    def state(self) -> State:
        """Return the state, for `restore`."""
        states = (prefixed(f"{number}.", person.state()) for number, person in self._people.items())
        return dict(ChainMap(*states))

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        self.reset()
        for number in dict.fromkeys(name.partition(".")[0] for name in state):
            self._people[int(number)] = self._new_filter()
            self._people[int(number)].restore(substate(f"{number}.", state))


def _is_new(person: OneEuroFilter, points: Float64Array, confidence: Float64Array, time: float) -> bool:
    """Return whether a person's filter does not apply to keypoints [J, 2], after a gap or a jump."""
    if not 0 <= time - person.time <= _MAX_GAP:
        return True
    reliable = (confidence[:, 0] >= 1) & (person.confidence[:, 0] > 0.5)
    distance = np.linalg.norm(points - person.values, axis=-1)[reliable] / person.unit
    return bool(len(distance)) and float(np.median(distance)) > _MAX_JUMP


def _body_size(points: Float64Array, confidence: Float64Array) -> float:
    """Return the size of a person in pixels: the longer side of the reliable keypoints [J, 2], of all if few are."""
    reliable = points[(confidence[:, 0] >= 1) & np.isfinite(points).all(-1)]
    chosen = reliable if len(reliable) >= 4 else points[np.isfinite(points).all(-1)]
    return max(1.0, float(np.ptp(chosen, axis=0).max())) if len(chosen) else 1.0


class ExponentialAverage(Stateful):
    """Exponential moving average of a number; non-finite values have no weight.

    Args:
        time_constant: Seconds after which the weight of an old value is 1 / e.
    """

    state_fields = ("value", "time")

    def __init__(self, time_constant: float = 0.5) -> None:
        self.time_constant = time_constant
        self.value: float | None = None
        self.time = 0.0

    def __call__(self, value: float, time: float) -> float:
        """Return the average at `time` in seconds. Going back in time resets it."""
        if self.value is not None and time >= self.time:
            mixed = value + math.exp(-(time - self.time) / self.time_constant) * (self.value - value)
            value = next((candidate for candidate in (mixed, value) if math.isfinite(candidate)), self.value)
        self.value, self.time = value, time
        return value

    def reset(self) -> None:
        """Restart with the next value, as after a scene cut."""
        self.value = None


class DenseSmoother(Stateful):
    """Averages maps over time in static areas of the image.

    In areas where the image differs from its average, only the newest map counts.

    Args:
        time_constant: Seconds after which the weight of an old map is 1 / e, in static areas.
        unit: Whether maps are unit vectors.
    """

    state_fields = ("average", "gray", "time")

    def __init__(self, time_constant: float = 0.2, *, unit: bool = False) -> None:
        self.time_constant, self.unit = time_constant, unit
        self.average: NDArray[np.float32] | None = None
        self.gray: NDArray[np.float32] = np.zeros((0, 0), np.float32)  # average of the image
        self.time = 0.0

    def __call__(self, values: NDArray[np.floating], image: RgbImage, time: float) -> NDArray[np.float32]:
        """Return a map [H, W] or [H, W, C] averaged with earlier ones, from its image [H, W, 3] and its time."""
        newest = values.astype(np.float32)
        gray = _small_gray(image, (max(1, image.shape[0] // _CELL), max(1, image.shape[1] // _CELL)))
        if self.average is None or self.average.shape != newest.shape or time < self.time:
            self.average, self.gray, self.time = newest, gray, time
            return newest.copy()
        decay = math.exp(-(time - self.time) / self.time_constant)
        moved = np.clip((np.abs(gray - self.gray) - _STILL) / (_MOVING - _STILL), 0, 1)  # [h, w]
        old_weight = (decay * (1 - moved)).astype(np.float32)  # [h, w]
        self.gray = gray + old_weight * (self.gray - gray)
        large = resize(torch.from_numpy(old_weight)[None], (values.shape[0], values.shape[1]))[0].numpy()  # [H, W]
        large = large.reshape(*large.shape, *[1] * (newest.ndim - 2))  # [H, W] or [H, W, 1]
        mixed: NDArray[np.float32] = newest + large * (self.average - newest)
        mixed = np.where(np.isfinite(mixed), mixed, newest)
        if self.unit:
            mixed = mixed / np.maximum(np.linalg.norm(mixed, axis=-1, keepdims=True), 1e-12)
        self.average, self.time = mixed, time
        return mixed.copy()

    def reset(self) -> None:
        """Restart with the next map, as after a scene cut."""
        self.average = None


class SceneCuts(Stateful):
    """Detects scene cuts: an image that differs from the one before far more than recent ones did."""

    state_fields = ("last", "average")

    def __init__(self) -> None:
        self.last: NDArray[np.float32] | None = None
        self.average = 0.0

    def __call__(self, image: RgbImage) -> bool:
        """Return whether an image [H, W, 3] is the first after a cut."""
        gray = _small_gray(image, _CUT_GRID_HW)
        difference = 0.0 if self.last is None else float(np.abs(gray - self.last).mean())
        cut = difference > max(_CUT_DIFFERENCE, _CUT_RATIO * self.average)
        self.last = gray
        self.average += 0.2 * (difference - self.average)
        return cut


class ResultSmoother(Stateful):
    """Smooths the results of any task, which must come in order and hold their images.

    Keypoints are smoothed for each identity; normals, albedo, mattes and points in static areas of the image; the scale
    of points over half a second. Labels and masks are not smoothed. All filters restart after a scene cut.
    """

    state_fields = ("_cuts", "_keypoints", "_scale", "_maps", "_vectors")

    def __init__(self) -> None:
        self._cuts, self._keypoints, self._scale = SceneCuts(), KeypointSmoother(), ExponentialAverage(0.5)
        self._maps, self._vectors = DenseSmoother(), DenseSmoother(unit=True)

    def __call__(self, result: Result) -> Result:
        """Return a result smoothed with those before it."""
        if result.image is None or result.time is None:
            raise InputError("smoothing: expected results with their image and time. Use keep_image=True on a video.")
        image, time = result.image, result.time
        if self._cuts(image):
            for smoother in (self._keypoints, self._scale, self._maps, self._vectors):
                smoother.reset()
        if isinstance(result, Pose):
            ids = None if result.people is None else result.people.ids
            numbers = np.arange(len(result.keypoints)) if ids is None else ids
            return replace(result, keypoints=self._keypoints(result.keypoints, result.scores, numbers, time))
        if isinstance(result, Normals):
            return replace(result, normals=self._vectors(result.normals, image, time))
        if isinstance(result, Albedo):
            return replace(result, albedo=self._maps(result.albedo, image, time))
        if isinstance(result, Matte):
            both = self._maps(np.dstack((result.foreground, result.alpha)), image, time)  # [H, W, 4]
            return replace(result, foreground=both[..., :3].copy(), alpha=both[..., 3].copy())
        if isinstance(result, Pointmap):
            points, scale = result.points, result.scale
            if scale is not None:
                smooth_scale = self._scale(float(scale), time)
                points, scale = points * np.float32(scale / smooth_scale), smooth_scale
            return replace(result, points=self._maps(points, image, time), scale=scale)
        return result


def _small_gray(image: RgbImage, size_hw: tuple[int, int]) -> NDArray[np.float32]:
    """Downsample an image [H, W, 3] to gray levels [h, w]."""
    pixels = pixels_of(image)  # [3, H, W]
    small: NDArray[np.float32] = resize(pixels, size_hw).float().mean(0).numpy()
    return small
