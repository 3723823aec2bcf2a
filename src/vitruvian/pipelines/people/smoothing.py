"""Temporal smoothing: One-Euro filters for keypoints, exponential averages for numbers and maps, and scene cuts.

    keypoints ── KeypointSmoother, a One-Euro filter for each identity ──▶ keypoints
    scale     ── ExponentialAverage ──▶ scale
    map       ── DenseSmoother: averaged in static areas of the image, unchanged in moving ones ──▶ map

All filters use the times of frames in seconds, so smoothing does not depend on the frame rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from vitruvian.errors import InputError
from vitruvian.images.resize import resize
from vitruvian.processor import as_tensor
from vitruvian.results import Albedo, Matte, Normals, Pointmap, Pose, Result
from vitruvian.results.base import Picture

FloatOrArray = TypeVar("FloatOrArray", float, NDArray[np.float64])
Floats = NDArray[np.float64]
State = dict[str, NDArray[np.generic]]
_MIN_CONFIDENCE = 1e-3
_UNTRACKED = -1


class OneEuroFilter:
    """The One-Euro filter of Casiez, Roussel and Vogel (CHI 2012) for vectors along the last axis of an array.

    cutoff = min_cutoff + beta · ‖velocity‖; a step is x̂ ← α x + (1 − α) x̂ with α = 1 / (1 + 1 / (2π · cutoff · Δt)).

    Args:
        min_cutoff: Cutoff in hertz at rest; lower has less jitter.
        beta: Increase of the cutoff in hertz per unit of speed; higher has less lag.
        d_cutoff: Cutoff in hertz of the velocity.
    """

    def __init__(self, *, min_cutoff: float = 1.0, beta: float = 0.0, d_cutoff: float = 1.0) -> None:
        if not (min_cutoff > 0 and d_cutoff > 0 and beta >= 0):
            raise InputError(f"OneEuro: expected positive cutoffs and beta ≥ 0, got {min_cutoff}, {d_cutoff}, {beta}.")
        self._min_cutoff, self._beta, self._d_cutoff = min_cutoff, beta, d_cutoff
        self.time = 0.0
        self.values = self.velocities = self.confidence = self.velocity_confidence = np.zeros(0)

    def restart(self, values: Floats, time: float, confidence: Floats) -> None:
        """Start with values [..., D] at a time in seconds."""
        self.time, self.values, self.velocities = time, values.copy(), np.zeros_like(values)
        self.confidence, self.velocity_confidence = confidence.copy(), confidence.copy()

    def step(self, values: Floats, time: float, confidence: Floats, *, unit: float = 1.0) -> Floats:
        """Return smoothed values [..., D] at a later time.

        Values are weighted by their `confidence`, from 0 to 1; with a constant one this is the published filter. Speeds
        are in `unit`s per second.
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
        alpha = _low_pass_alpha(self._min_cutoff + self._beta * speed / unit, step)
        self.values, self.confidence = _weighted_step(self.values, self.confidence, values, confidence, alpha)
        return self.values.copy()


def _low_pass_alpha(cutoff: FloatOrArray, step: float) -> FloatOrArray:
    """Return α of a low-pass filter with a cutoff in hertz, for a step in seconds."""
    return 1 / (1 + 1 / (2 * math.pi * cutoff * step))


def _weighted_step(
    old: Floats, old_confidence: Floats, new: Floats, confidence: Floats, alpha: float | Floats
) -> tuple[Floats, Floats]:
    """Average an old and a new value by α and the confidence in each; return it and its confidence."""
    old_weight = (1 - alpha) * old_confidence
    total = old_weight + alpha * confidence
    return (old_weight * old + alpha * confidence * new) / total, total


class KeypointSmoother:
    """Smooths the keypoints of each person with a One-Euro filter.

    Speeds are in body sizes per second, so smoothing does not depend on the distance of people or the size of images.
    Keypoints with low scores move little until the score rises. The filter of a person restarts after a gap or a jump.

    Args:
        min_cutoff, beta, d_cutoff: See `OneEuroFilter`.
        full_confidence: Score from which a keypoint has full weight.
        max_gap: Seconds without a person after which their filter is dropped.
        max_jump: Median motion of keypoints in one step, in body sizes, above which it is someone else or a cut.
    """

    def __init__(
        self,
        *,
        min_cutoff: float = 1.5,
        beta: float = 10.0,
        d_cutoff: float = 1.5,
        full_confidence: float = 0.3,
        max_gap: float = 1.0,
        max_jump: float = 0.5,
    ) -> None:
        self._new_filter = partial(OneEuroFilter, min_cutoff=min_cutoff, beta=beta, d_cutoff=d_cutoff)
        if not (full_confidence > 0 and max_gap > 0 and max_jump > 0):
            raise InputError(
                "full_confidence, max_gap, max_jump: expected positive numbers, got "
                f"{full_confidence}, {max_gap}, {max_jump}."
            )
        self._full_confidence, self._max_gap, self._max_jump = full_confidence, max_gap, max_jump
        self._people: dict[int, OneEuroFilter] = {}
        self._sizes: dict[int, float] = {}  # in pixels

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
        if keypoints.ndim != 3 or keypoints.shape[:2] != scores.shape or len(ids) != len(keypoints):
            raise InputError(
                f"keypoints, scores, ids: expected the shapes [P, J, 2], [P, J] and [P], got {list(keypoints.shape)}, "
                f"{list(scores.shape)} and [{len(ids)}]."
            )
        smooth = keypoints.astype(np.float32)
        for row, number in enumerate(int(one) for one in ids):
            if number != _UNTRACKED:
                smooth[row] = self._smooth_person(number, keypoints[row].astype(np.float64), scores[row], time)
        for number in [n for n, one in self._people.items() if not 0 <= time - one.time <= self._max_gap]:
            del self._people[number], self._sizes[number]
        return smooth

    def _smooth_person(self, number: int, points: Floats, scores: NDArray[np.float32], time: float) -> Floats:
        """Smooth the keypoints [J, 2] of one person."""
        known = np.isfinite(points).all(axis=1, keepdims=True)  # [J, 1]
        confidence: Floats = np.clip(np.nan_to_num(scores) / self._full_confidence, _MIN_CONFIDENCE, 1)[:, None]
        confidence = np.where(known, confidence, _MIN_CONFIDENCE)  # [J, 1]
        both_axes = np.broadcast_to(confidence, points.shape)  # [J, 2]
        person = self._people.setdefault(number, self._new_filter())
        if person.values.shape != points.shape or self._is_new(number, points, confidence, time):
            self._sizes[number] = _body_size(points, confidence)
            person.restart(np.where(known, points, 0), time, both_axes)
            return points
        self._sizes[number] += 0.1 * (_body_size(points, confidence) - self._sizes[number])
        smooth = person.step(np.where(known, points, person.values), time, both_axes, unit=self._sizes[number])
        return np.where(known, smooth, np.nan)

    def _is_new(self, number: int, points: Floats, confidence: Floats, time: float) -> bool:
        """Return whether a person's state does not apply to these keypoints, after a gap or a jump."""
        person, size = self._people[number], self._sizes[number]
        if not 0 <= time - person.time <= self._max_gap:
            return True
        reliable = (confidence[:, 0] >= 1) & (person.confidence[:, 0] > 0.5)
        distance = np.linalg.norm(points - person.values, axis=-1)[reliable] / size
        return bool(len(distance)) and float(np.median(distance)) > self._max_jump

    def reset(self) -> None:
        """Restart the filters of all people, as after a scene cut."""
        self._people.clear()
        self._sizes.clear()

    def state(self) -> State:
        """Return the state as arrays, for `restore`."""
        people = list(self._people.values())
        stacked: State = {name: np.array([getattr(one, name) for one in people]) for name in _STATE_ARRAYS}
        return stacked | {
            "ids": np.array(list(self._people), np.int64),
            "times": np.array([one.time for one in people]),
            "sizes": np.array([self._sizes[number] for number in self._people]),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from what `state` returned."""
        self.reset()
        for row, number in enumerate(state["ids"].tolist()):
            person = self._people[number] = self._new_filter()
            person.time = float(state["times"][row])
            for name in _STATE_ARRAYS:
                setattr(person, name, np.array(state[name][row]))
            self._sizes[number] = float(state["sizes"][row])


_STATE_ARRAYS = ("values", "velocities", "confidence", "velocity_confidence")


def _body_size(points: Floats, confidence: Floats) -> float:
    """Return the size of a person in pixels: the longer side of the reliable keypoints [J, 2], of all if few are."""
    reliable = points[(confidence[:, 0] >= 1) & np.isfinite(points).all(-1)]
    chosen = reliable if len(reliable) >= 4 else points[np.isfinite(points).all(-1)]
    return max(1.0, float(np.ptp(chosen, axis=0).max())) if len(chosen) else 1.0


class ExponentialAverage:
    """Exponential moving average of a number or an array; non-finite values have no weight.

    Args:
        time_constant: Seconds after which the weight of an old value is 1 / e.
    """

    def __init__(self, time_constant: float = 0.5) -> None:
        if not time_constant > 0:
            raise InputError(f"time_constant: expected seconds above 0, got {time_constant}.")
        self.time_constant = time_constant
        self.value: Floats | None = None
        self.time = 0.0

    def __call__(self, value: ArrayLike, time: float) -> Floats:
        """Return the average at `time` in seconds. Going back in time, or another shape, resets it."""
        new = np.asarray(value, np.float64)
        if self.value is None or self.value.shape != new.shape or time < self.time:
            self.value = new.copy()
        else:
            mixed = new + math.exp(-(time - self.time) / self.time_constant) * (self.value - new)
            self.value = np.where(np.isfinite(mixed), mixed, np.where(np.isfinite(new), new, self.value))
        self.time = time
        return self.value.copy()

    def reset(self) -> None:
        """Restart with the next value."""
        self.value = None

    def state(self) -> State:
        """Return the state as arrays, for `restore`."""
        return {} if self.value is None else {"value": self.value, "time": np.array(self.time)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from what `state` returned."""
        self.value = np.array(state["value"]) if "value" in state else None
        self.time = float(state["time"]) if "time" in state else 0.0


class DenseSmoother:
    """Averages maps over time in static areas of the image.

    In areas where the image differs from its own average, only the newest map counts.

    Args:
        time_constant: Seconds after which the weight of an old map is 1 / e, in static areas.
        still: Difference of an image from its average due to noise, in grey levels of 255.
        moving: Difference from which on nothing is averaged.
        unit: Whether maps are unit vectors.
    """

    cell = 8  # side in pixels of the cells in which motion is measured

    def __init__(
        self, time_constant: float = 0.2, *, still: float = 3.0, moving: float = 10.0, unit: bool = False
    ) -> None:
        if not time_constant > 0 or not 0 <= still < moving:
            raise InputError(
                f"DenseSmoother: expected time_constant > 0 and 0 ≤ still < moving, got {time_constant}, {still} "
                f"and {moving}."
            )
        self.time_constant, self.still, self.moving, self.unit = time_constant, still, moving, unit
        self.average: NDArray[np.float32] | None = None
        self.grey: NDArray[np.float32] | None = None
        self.time = 0.0

    def __call__(self, values: NDArray[np.floating], image: Picture, time: float) -> NDArray[np.float32]:
        """Return a map [H, W] or [H, W, C] averaged with earlier ones, from its image [H, W, 3] and its time."""
        if values.ndim not in (2, 3) or values.shape[:2] != image.shape[:2]:
            raise InputError(f"values: expected a map of the image's {image.shape[:2]}, got {list(values.shape)}.")
        newest = values.astype(np.float32)
        grey = _small_grey(image, (max(1, image.shape[0] // self.cell), max(1, image.shape[1] // self.cell)))
        if self.average is None or self.grey is None or self.average.shape != newest.shape or time < self.time:
            self.average, self.grey, self.time = newest, grey, time
            return newest.copy()
        decay = math.exp(-(time - self.time) / self.time_constant)
        moved = np.clip((np.abs(grey - self.grey) - self.still) / (self.moving - self.still), 0, 1)  # [h, w]
        old_weight = (decay * (1 - moved)).astype(np.float32)  # [h, w]
        self.grey = grey + old_weight * (self.grey - grey)
        large = resize(torch.from_numpy(old_weight)[None], (values.shape[0], values.shape[1]))[0].numpy()  # [H, W]
        mixed: NDArray[np.float32] = newest + (large if newest.ndim == 2 else large[..., None]) * (
            self.average - newest
        )
        mixed = np.where(np.isfinite(mixed), mixed, newest)
        if self.unit:
            mixed = mixed / np.maximum(np.linalg.norm(mixed, axis=-1, keepdims=True), 1e-12)
        self.average, self.time = mixed, time
        return mixed.copy()

    def reset(self) -> None:
        """Restart with the next map, as after a scene cut."""
        self.average = self.grey = None

    def state(self) -> State:
        """Return the state as arrays, for `restore`."""
        if self.average is None or self.grey is None:
            return {}
        return {"average": self.average, "grey": self.grey, "time": np.array(self.time)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from what `state` returned."""
        self.reset()
        if "average" in state:
            self.average, self.grey = np.array(state["average"]), np.array(state["grey"])
            self.time = float(state["time"])


class SceneCuts:
    """Detects scene cuts: an image that differs from the one before far more than recent ones did.

    Args:
        threshold: Minimum mean difference in grey levels of 255.
        factor: Minimum ratio to the average difference.
    """

    grid_hw = (18, 32)

    def __init__(self, threshold: float = 18.0, factor: float = 3.0) -> None:
        if not (threshold > 0 and factor > 0):
            raise InputError(f"threshold, factor: expected positive numbers, got {threshold} and {factor}.")
        self.threshold, self.factor = threshold, factor
        self.last: NDArray[np.float32] | None = None
        self.average = 0.0

    def __call__(self, image: Picture) -> bool:
        """Return whether an image [H, W, 3] is the first after a cut."""
        grey = _small_grey(image, self.grid_hw)
        difference = 0.0 if self.last is None else float(np.abs(grey - self.last).mean())
        cut = difference > max(self.threshold, self.factor * self.average)
        self.last = grey
        self.average += 0.2 * (difference - self.average)
        return cut

    def state(self) -> State:
        """Return the state as arrays, for `restore`."""
        return {} if self.last is None else {"last": self.last, "average": np.array(self.average)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from what `state` returned."""
        self.last = np.array(state["last"]) if "last" in state else None
        self.average = float(state["average"]) if "average" in state else 0.0


class _Stateful(Protocol):
    def state(self) -> State: ...

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None: ...


class ResultSmoother:
    """Smooths the results of any task, which must come in order and hold their images.

    Keypoints are smoothed for each identity; normals, albedo, mattes and points in static areas of the image; the scale
    of points over half a second. Labels and masks are not smoothed. All filters restart after a scene cut.
    """

    def __init__(self) -> None:
        self._cuts = SceneCuts()
        self._keypoints = KeypointSmoother()
        self._scale = ExponentialAverage(0.5)
        self._maps = DenseSmoother()
        self._vectors = DenseSmoother(unit=True)
        self._parts: dict[str, _Stateful] = {
            "cuts": self._cuts,
            "keypoints": self._keypoints,
            "scale": self._scale,
            "maps": self._maps,
            "vectors": self._vectors,
        }

    def __call__(self, result: Result) -> Result:
        """Return a result smoothed with those before it."""
        if result.image is None or result.time is None:
            raise InputError("smoothing: expected results with their image and time. Use keep_image=True on a video.")
        image, time = result.image, result.time
        if self._cuts(image):
            for part in (self._keypoints, self._scale, self._maps, self._vectors):
                part.reset()
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
                smooth_scale = float(self._scale(scale, time))
                points, scale = points * np.float32(scale / smooth_scale), smooth_scale
            return replace(result, points=self._maps(points, image, time), scale=scale)
        return result

    def state(self) -> State:
        """Return the state as arrays, for `restore`."""
        return {f"{name}_{key}": value for name, part in self._parts.items() for key, value in part.state().items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from what `state` returned."""
        for name, part in self._parts.items():
            part.restore(substate(state, f"{name}_"))


def substate(state: Mapping[str, NDArray[np.generic]], prefix: str) -> State:
    """Return the entries whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _small_grey(image: Picture, size_hw: tuple[int, int]) -> NDArray[np.float32]:
    """Downsample an image [H, W, 3] to grey levels [h, w]."""
    pixels = as_tensor(image).permute(2, 0, 1)  # [3, H, W]
    small: NDArray[np.float32] = resize(pixels, size_hw).float().mean(0).numpy()
    return small
