"""Steady results over time: One-Euro for keypoints, exponential averages for numbers and maps, and cuts of the scene.

    keypoints ── KeypointSmoother, a One-Euro filter for each identity ──▶ keypoints
    scale     ── ExponentialAverage ──▶ scale
    map       ── DenseSmoother: averaged where the picture stands still, as it is where it moves ──▶ map

All steps use the frames' own times in seconds, so clips of any rate, and of a varying one, are smoothed alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from vitruvian.errors import InputError
from vitruvian.images.resize import resize
from vitruvian.processor import as_tensor
from vitruvian.results.base import Picture

Floats = NDArray[np.float64]
State = dict[str, NDArray[Any]]
LEAST_TRUST = 1e-3
NOBODY = -1


@dataclass
class Filtered:
    """What a One-Euro filter remembers: time, smoothed values and speeds, and how much is behind each of them."""

    time: float
    values: Floats
    speeds: Floats
    trust: Floats
    speed_trust: Floats


@dataclass(frozen=True, kw_only=True)
class OneEuroSettings:
    """How a One-Euro filter weighs steadiness against delay.

    Args:
        min_cutoff: Cutoff in hertz for what stands still; lower is steadier.
        beta: Hertz of cutoff for each unit of speed; higher follows quick motion with less delay.
        d_cutoff: Cutoff in hertz for the speed itself.
    """

    min_cutoff: float = 1.0
    beta: float = 0.0
    d_cutoff: float = 1.0

    def __post_init__(self) -> None:
        if not (self.min_cutoff > 0 and self.d_cutoff > 0 and self.beta >= 0):
            raise InputError(
                f"OneEuro: expected positive cutoffs and beta ≥ 0, got {self.min_cutoff}, {self.d_cutoff}, {self.beta}."
            )


class OneEuro:
    """The One-Euro filter of Casiez, Roussel and Vogel (CHI 2012), on arrays of any shape, each number on its own.

    cutoff = min_cutoff + beta · |speed|; a step is x̂ ← α x + (1 − α) x̂ with α = 1 / (1 + 1 / (2π · cutoff · Δt)).

    Args:
        min_cutoff: See `OneEuroSettings`.
        beta: See `OneEuroSettings`.
        d_cutoff: See `OneEuroSettings`.
    """

    def __init__(self, *, min_cutoff: float = 1.0, beta: float = 0.0, d_cutoff: float = 1.0) -> None:
        self.settings = OneEuroSettings(min_cutoff=min_cutoff, beta=beta, d_cutoff=d_cutoff)
        self.memory: Filtered | None = None

    def __call__(self, values: ArrayLike, time: float) -> Floats:
        """Return the smoothed values of a moment; `time` is in seconds. Going back in time starts anew."""
        given = np.asarray(values, np.float64)
        trust = np.ones_like(given)
        if self.memory is None or time < self.memory.time or self.memory.values.shape != given.shape:
            self.memory = first_step(given, trust, time)
        else:
            self.memory = next_step(self.memory, given, trust, time, settings=self.settings)
        return self.memory.values.copy()

    def reset(self) -> None:
        """Start anew with the next values."""
        self.memory = None


def first_step(values: Floats, trust: Floats, time: float) -> Filtered:
    """Start a filter."""
    return Filtered(time, values.copy(), np.zeros_like(values), trust.copy(), trust.copy())


def next_step(
    memory: Filtered,
    values: Floats,
    trust: Floats,
    time: float,
    *,
    settings: OneEuroSettings,
    vectors: bool = False,
    unit: float = 1.0,
) -> Filtered:
    """Go on with a filter.

    `trust`, from 0 to 1, weighs values: the average is that of the published filter where all are trusted alike. With
    `vectors` the last axis is one moving thing, whose cutoff follows the length of its speed. Speeds count in `unit`s.
    """
    step = max(time - memory.time, 1e-6)
    speeds, speed_trust = weighted_step(
        memory.speeds, memory.speed_trust, (values - memory.values) / step, trust, share(settings.d_cutoff, step)
    )
    pace = np.linalg.norm(speeds, axis=-1, keepdims=True) if vectors else np.abs(speeds)
    alpha = share(settings.min_cutoff + settings.beta * pace / unit, step)
    smooth, total = weighted_step(memory.values, memory.trust, values, trust, alpha)
    return Filtered(time, smooth, speeds, total, speed_trust)


def share(cutoff: Any, step: float) -> Any:
    """Return how much a new value counts: α of a low-pass filter with a cutoff in hertz, for a step in seconds."""
    return 1 / (1 + 1 / (2 * math.pi * cutoff * step))


def weighted_step(old: Floats, old_trust: Floats, new: Floats, trust: Floats, alpha: Any) -> tuple[Floats, Floats]:
    """Average an old and a new value by α and by how far each is trusted; return it and the trust in it."""
    kept = (1 - alpha) * old_trust
    total = kept + alpha * trust
    return (kept * old + alpha * trust * new) / total, total


class KeypointSmoother:
    """Smooths the keypoints of each person on their own.

    Speeds count in body sizes a second, so near and far people, and pictures of any size, are smoothed alike. Points
    that the model is unsure of move little until it is sure again. A person starts anew after a gap or a jump.

    Args:
        min_cutoff: See `OneEuroSettings`.
        beta: See `OneEuroSettings`.
        d_cutoff: See `OneEuroSettings`.
        sure: Score from which a point is fully trusted.
        max_gap: Seconds after which a person who was away starts anew, and is forgotten.
        max_jump: Body sizes by which half of the points may move in one step; beyond, it is someone else or a cut.
    """

    def __init__(
        self,
        *,
        min_cutoff: float = 1.5,
        beta: float = 10.0,
        d_cutoff: float = 1.5,
        sure: float = 0.3,
        max_gap: float = 1.0,
        max_jump: float = 0.5,
    ) -> None:
        self.settings = OneEuroSettings(min_cutoff=min_cutoff, beta=beta, d_cutoff=d_cutoff)
        if not (sure > 0 and max_gap > 0 and max_jump > 0):
            raise InputError(f"sure, max_gap, max_jump: expected positive numbers, got {sure}, {max_gap}, {max_jump}.")
        self.sure, self.max_gap, self.max_jump = sure, max_gap, max_jump
        self.people: dict[int, Filtered] = {}
        self.sizes: dict[int, float] = {}  # in pixels

    def __call__(
        self,
        keypoints: NDArray[np.float32],
        scores: NDArray[np.float32],
        ids: Sequence[int] | NDArray[np.int64],
        time: float,
    ) -> NDArray[np.float32]:
        """Return keypoints [P, J, 2] smoothed, given their scores [P, J], whose they are [P], and the time in seconds.

        People with the identity -1 are returned as they are.
        """
        if keypoints.ndim != 3 or keypoints.shape[:2] != scores.shape or len(ids) != len(keypoints):
            raise InputError(
                f"keypoints, scores, ids: expected the shapes [P, J, 2], [P, J] and [P], got {list(keypoints.shape)}, "
                f"{list(scores.shape)} and [{len(ids)}]."
            )
        smooth = keypoints.astype(np.float32)
        for row, number in enumerate(int(one) for one in ids):
            if number != NOBODY:
                smooth[row] = self.person(number, keypoints[row].astype(np.float64), scores[row], time)
        late = [number for number, memory in self.people.items() if not 0 <= time - memory.time <= self.max_gap]
        for number in late:
            self.forget(number)
        return smooth

    def person(self, number: int, points: Floats, scores: NDArray[np.float32], time: float) -> Floats:
        """Smooth one person's points [J, 2]."""
        known = np.isfinite(points).all(axis=1, keepdims=True)  # [J, 1]
        trust: Floats = np.clip(np.nan_to_num(scores) / self.sure, LEAST_TRUST, 1)[:, None]  # [J, 1]
        trust = np.where(known, trust, LEAST_TRUST)
        wide = np.broadcast_to(trust, points.shape)
        memory = self.people.get(number)
        if memory is None or memory.values.shape != points.shape or self.starts_anew(number, points, trust, time):
            self.sizes[number] = body_size(points, trust)
            self.people[number] = first_step(np.where(known, points, 0), wide, time)
            return points
        self.sizes[number] += 0.1 * (body_size(points, trust) - self.sizes[number])
        given = np.where(known, points, memory.values)  # who is not there is taken to be where they were
        self.people[number] = next_step(
            memory, given, wide, time, settings=self.settings, vectors=True, unit=self.sizes[number]
        )
        found: Floats = np.where(known, self.people[number].values, np.nan)
        return found

    def starts_anew(self, number: int, points: Floats, trust: Floats, time: float) -> bool:
        """Whether a person's past tells nothing about these points."""
        memory, size = self.people[number], self.sizes[number]
        if not 0 <= time - memory.time <= self.max_gap:
            return True
        sure = (trust[:, 0] >= 1) & (memory.trust[:, 0] > 0.5)
        distance = np.linalg.norm(points - memory.values, axis=-1)[sure] / size
        return bool(len(distance)) and float(np.median(distance)) > self.max_jump

    def forget(self, number: int) -> None:
        """Start this person anew."""
        self.people.pop(number, None)
        self.sizes.pop(number, None)

    def reset(self) -> None:
        """Start everyone anew, as after a cut."""
        self.people.clear()
        self.sizes.clear()

    def state(self) -> State:
        """Return all memory as arrays, for `restore`."""
        people = list(self.people.values())
        arrays = {name: [getattr(p, name) for p in people] for name in ("values", "speeds", "trust", "speed_trust")}
        stacked: State = {name: np.array(one) for name, one in arrays.items()}
        times = np.array([p.time for p in people])
        sizes = np.array([self.sizes[number] for number in self.people])
        return stacked | {"ids": np.array(list(self.people), np.int64), "times": times, "sizes": sizes}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        self.reset()
        for row, number in enumerate(state["ids"].tolist()):
            arrays = [np.array(state[name][row]) for name in ("values", "speeds", "trust", "speed_trust")]
            self.people[number] = Filtered(float(state["times"][row]), *arrays)
            self.sizes[number] = float(state["sizes"][row])


def body_size(points: Floats, trust: Floats) -> float:
    """Return about how large a person is in pixels: the longer side of their sure points [J, 2], all where few are."""
    sure = points[(trust[:, 0] >= 1) & np.isfinite(points).all(-1)]
    chosen = sure if len(sure) >= 4 else points[np.isfinite(points).all(-1)]
    return max(1.0, float(np.ptp(chosen, axis=0).max())) if len(chosen) else 1.0


class ExponentialAverage:
    """Averages a number or an array over about `time_constant` seconds; what is not finite does not count.

    Args:
        time_constant: Seconds after which an old value counts for a third (1 / e).
    """

    def __init__(self, time_constant: float = 0.5) -> None:
        if not time_constant > 0:
            raise InputError(f"time_constant: expected seconds above 0, got {time_constant}.")
        self.time_constant = time_constant
        self.value: Floats | None = None
        self.time = 0.0

    def __call__(self, value: ArrayLike, time: float) -> Floats:
        """Return the average with the value of a moment; going back in time, or another shape, starts anew."""
        given = np.asarray(value, np.float64)
        if self.value is None or self.value.shape != given.shape or time < self.time:
            self.value = given.copy()
        else:
            mixed = given + math.exp(-(time - self.time) / self.time_constant) * (self.value - given)
            self.value = np.where(np.isfinite(mixed), mixed, np.where(np.isfinite(given), given, self.value))
        self.time = time
        return self.value.copy()

    def reset(self) -> None:
        """Start anew with the next value."""
        self.value = None

    def state(self) -> State:
        """Return all memory as arrays, for `restore`."""
        return {} if self.value is None else {"value": self.value, "time": np.array(self.time)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        self.value = np.array(state["value"]) if "value" in state else None
        self.time = float(state["time"]) if "time" in state else 0.0


class DenseSmoother:
    """Averages maps over time where the picture stands still.

    Where the picture differs from its own average, something moves or has moved: there the newest map counts alone.

    Args:
        time_constant: Seconds after which an old map counts for a third (1 / e), where nothing moves.
        still: Grey levels, of 255, by which a picture differs from its average through noise alone.
        moving: Grey levels from which on nothing is averaged.
        unit: Whether maps are vectors of length one.
    """

    cell = 8  # motion is judged on a grid of such pixels

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

    def __call__(self, values: NDArray[Any], picture: Picture, time: float) -> NDArray[np.float32]:
        """Return a map [H, W] or [H, W, C] averaged with those before, given its picture [H, W, 3] and its time."""
        if values.ndim not in (2, 3) or values.shape[:2] != picture.shape[:2]:
            raise InputError(f"values: expected a map of the picture's {picture.shape[:2]}, got {list(values.shape)}.")
        newest = values.astype(np.float32)
        grey = small_grey(picture, (max(1, picture.shape[0] // self.cell), max(1, picture.shape[1] // self.cell)))
        if self.average is None or self.grey is None or self.average.shape != newest.shape or time < self.time:
            self.average, self.grey, self.time = newest, grey, time
            return newest.copy()
        kept = math.exp(-(time - self.time) / self.time_constant)
        moved = np.clip((np.abs(grey - self.grey) - self.still) / (self.moving - self.still), 0, 1)  # [h, w]
        keep = (kept * (1 - moved)).astype(np.float32)  # [h, w]
        self.grey = grey + keep * (self.grey - grey)
        large = resize(torch.from_numpy(keep)[None], (values.shape[0], values.shape[1]))[0].numpy()  # [H, W]
        mixed: NDArray[np.float32] = newest + (large if newest.ndim == 2 else large[..., None]) * (
            self.average - newest
        )
        mixed = np.where(np.isfinite(mixed), mixed, newest)
        if self.unit:
            mixed = mixed / np.maximum(np.linalg.norm(mixed, axis=-1, keepdims=True), 1e-12)
        self.average, self.time = mixed, time
        return mixed.copy()

    def reset(self) -> None:
        """Start anew with the next map, as after a cut."""
        self.average = self.grey = None

    def state(self) -> State:
        """Return all memory as arrays, for `restore`."""
        if self.average is None or self.grey is None:
            return {}
        return {"average": self.average, "grey": self.grey, "time": np.array(self.time)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        self.reset()
        if "average" in state:
            self.average, self.grey = np.array(state["average"]), np.array(state["grey"])
            self.time = float(state["time"])


class SceneCuts:
    """Tells the first picture after a cut: it differs from the one before far more than pictures did lately.

    Args:
        threshold: Mean difference in grey levels, of 255, from which on a cut is possible.
        factor: How many times larger than usual the difference must be.
    """

    grid_hw = (18, 32)

    def __init__(self, threshold: float = 18.0, factor: float = 3.0) -> None:
        if not (threshold > 0 and factor > 0):
            raise InputError(f"threshold, factor: expected positive numbers, got {threshold} and {factor}.")
        self.threshold, self.factor = threshold, factor
        self.last: NDArray[np.float32] | None = None
        self.usual = 0.0

    def __call__(self, picture: Picture) -> bool:
        """Whether a picture [H, W, 3] is the first after a cut."""
        grey = small_grey(picture, self.grid_hw)
        difference = 0.0 if self.last is None else float(np.abs(grey - self.last).mean())
        cut = difference > max(self.threshold, self.factor * self.usual)
        self.last = grey
        self.usual += 0.2 * (difference - self.usual)
        return cut

    def state(self) -> State:
        """Return all memory as arrays, for `restore`."""
        return {} if self.last is None else {"last": self.last, "usual": np.array(self.usual)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        self.last = np.array(state["last"]) if "last" in state else None
        self.usual = float(state["usual"]) if "usual" in state else 0.0


def small_grey(picture: Picture, size_hw: tuple[int, int]) -> NDArray[np.float32]:
    """Shrink a picture [H, W, 3] to grey levels [h, w], averaging."""
    pixels = as_tensor(picture).permute(2, 0, 1)  # [3, H, W]
    small: NDArray[np.float32] = resize(pixels, size_hw).float().mean(0).numpy()
    return small
