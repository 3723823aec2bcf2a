"""Identities: people who cross, hide, come and go keep or lose their numbers as they should."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.shared_folder import SHARED
from vitruvian.errors import InputError
from vitruvian.pipelines.video.people_tracking import PersonTracker

Floats = NDArray[np.float64]


def box(x: float, y: float = 100.0, w: float = 40.0, h: float = 100.0) -> list[float]:
    """A person whose centre is at x, y."""
    return [x - w / 2, y - h / 2, x + w / 2, y + h / 2]


def follow(tracker: PersonTracker, *people: list[float], scores: list[float] | None = None) -> list[int]:
    found: list[int] = tracker.update(list(people), scores or [0.9] * len(people)).tolist()
    return found


def test_ids_do_not_depend_on_the_order_of_boxes() -> None:
    tracker = PersonTracker()
    assert follow(tracker, box(100), box(300)) == [1, 2]
    assert follow(tracker, box(302), box(101)) == [2, 1]
    assert follow(tracker, box(103), box(303), box(500)) == [1, 2, 3]


def test_ids_of_people_who_cross() -> None:
    """They walk through each other; where they are closest only the one in front is found."""
    tracker = PersonTracker()
    left, right = 100.0, 300.0
    first = follow(tracker, box(left), box(right))
    for step in range(50):
        left, right = left + 4, right - 4
        if abs(left - right) < 24:
            found = follow(tracker, box(left))
            assert found == first[:1], step
        else:
            assert follow(tracker, box(right), box(left)) == first[::-1], step


def test_velocity_is_predicted_through_a_gap() -> None:
    tracker = PersonTracker()
    for step in range(10):
        follow(tracker, box(100 + 10 * step))
    for _ in range(8):
        assert follow(tracker) == []
    assert follow(tracker, box(100 + 10 * 18)) == [1]  # 90 pixels on, over two widths: no overlap with the last box


def test_size_is_constant_through_a_gap() -> None:
    """Someone walks behind a wall: the box shrinks from one side, is gone, and comes back as it was."""
    tracker = PersonTracker()
    for _ in range(5):
        follow(tracker, box(100))
    for cut in range(0, 25, 5):
        follow(tracker, [80 + cut, 50, 120, 150])
    for _ in range(10):
        follow(tracker)
    width = tracker.tracks["box"][0, 2]
    assert 15 < width < 40
    assert follow(tracker, box(118)) == [1]


def test_lost_tracks_expire() -> None:
    for gap, expected in ((5, [1]), (6, [2])):
        tracker = PersonTracker(max_age=5)
        for _ in range(3):
            follow(tracker, box(100))
        for _ in range(gap):
            follow(tracker)
        assert follow(tracker, box(100)) == expected, gap


def test_tentative_tracks_expire_early() -> None:
    for gap, expected in ((2, [1]), (3, [2])):
        tracker = PersonTracker()
        follow(tracker, box(100))
        for _ in range(gap):
            follow(tracker)
        assert follow(tracker, box(100)) == expected, gap


def test_entries_and_exits() -> None:
    tracker = PersonTracker(max_age=3)
    for step in range(30):
        people = {1: box(100), **({2: box(200)} if step < 15 else {}), **({3: box(300)} if step >= 5 else {})}
        assert follow(tracker, *people.values()) == list(people), step


def test_boxes_of_low_confidence_continue_tracks_but_start_none() -> None:
    tracker = PersonTracker()
    follow(tracker, box(100))
    assert follow(tracker, box(102), scores=[0.9]) == [1]
    assert follow(tracker, box(104), box(300), box(106), scores=[0.2, 0.3, 0.05]) == [1, -1, -1]
    assert follow(tracker, box(106), scores=[0.9]) == [1]
    assert follow(PersonTracker(), box(100), scores=[0.3]) == [-1]


def test_boxes_of_high_confidence_are_matched_first() -> None:
    tracker = PersonTracker()
    for _ in range(3):
        follow(tracker, box(100))
    assert follow(tracker, box(100), box(104), scores=[0.4, 0.8]) == [-1, 1]


def test_fast_people_are_matched_without_overlap() -> None:
    tracker = PersonTracker()
    follow(tracker, box(100))
    assert follow(tracker, box(150)) == [1]  # no overlap: 40 wide, moved by 50
    other = PersonTracker()
    follow(other, box(100))
    assert follow(other, box(150, h=300, w=120, y=200)) == [2]  # three times as large: someone else


def test_predictions_between_detections() -> None:
    tracker = PersonTracker()
    for step in range(6):
        follow(tracker, box(100 + 10 * step), box(500))
    ids, boxes, _ = tracker.predict()
    assert ids.tolist() == [1, 2]
    np.testing.assert_allclose(boxes, [box(160), box(500)], atol=4)
    _, boxes, _ = tracker.predict()
    np.testing.assert_allclose(boxes[0], box(170), atol=5)
    assert follow(tracker, box(170), box(500)) == [1, 2]
    follow(tracker, box(180))
    assert tracker.predict()[0].tolist() == [1]  # who was not found is not in sight


def test_memory_is_bounded() -> None:
    tracker = PersonTracker(max_occluded=10, max_age=1000)
    rng = np.random.default_rng(0)
    for _ in range(200):
        place = rng.uniform(0, 50000, 2)
        for _ in range(2):
            follow(tracker, box(*place))
    assert len(tracker.tracks) <= 11
    assert tracker.next_id > 190


def test_reset_drops_tracks_and_does_not_reuse_ids() -> None:
    tracker = PersonTracker()
    for _ in range(3):
        follow(tracker, box(100))
    tracker.reset()
    assert follow(tracker, box(100)) == [2]


def test_a_restored_tracker_continues_identically() -> None:
    whole, first = PersonTracker(), PersonTracker()
    rng = np.random.default_rng(1)
    frames = [[box(100 + 9 * t + rng.normal()), box(600 - 9 * t + rng.normal())][: 1 + (t % 5 > 0)] for t in range(40)]
    for people in frames[:20]:
        follow(whole, *people)
        follow(first, *people)
    second = PersonTracker()
    second.restore(first.state())
    for people in frames[20:]:
        assert follow(second, *people) == follow(whole, *people)


def walk(seed: int) -> tuple[int, int]:
    """Let twelve people walk about and return how often one changed its number, and how many numbers there were."""
    rng = np.random.default_rng(seed)
    places, speeds = rng.uniform(100, 1800, (12, 2)), rng.uniform(-6, 6, (12, 2))
    tracker = PersonTracker()
    history: list[list[int]] = [[] for _ in range(12)]
    for _ in range(100):
        speeds = speeds + rng.normal(0, 0.2, (12, 2))
        speeds = np.where(places < 60, abs(speeds), np.where(places > 1860, -abs(speeds), speeds))
        places = places + speeds
        seen = np.flatnonzero(rng.random(12) > 0.1)
        boxes = [box(*(places[i] + rng.normal(0, 1.5, 2)), 50, 120 + rng.normal(0, 2)) for i in seen]
        for person, number in zip(seen, tracker.update(boxes, rng.uniform(0.5, 1, len(seen))), strict=True):
            history[person].append(int(number))
    return sum(a != b for one in history for a, b in itertools.pairwise(one)), tracker.next_id - 1


def test_many_people_with_noise_and_misses() -> None:
    """A tenth of the noisy boxes is missing; people who walk through each other may be mixed up now and then."""
    switches, numbers = zip(*(walk(seed) for seed in range(6)), strict=True)
    assert sum(switches) <= 6, switches
    assert max(numbers) <= 13


@pytest.mark.parametrize(
    ("boxes", "scores"),
    [
        ([[1, 2, 3]], [1.0]),
        ([box(1)], [1.0, 2.0]),
        ([[5, 5, 5, 9]], [1.0]),
        ([[5, 5, np.nan, 9]], [1.0]),
        ([box(1)], [np.nan]),
    ],
)
def test_invalid_boxes_are_errors(boxes: Any, scores: Any) -> None:
    with pytest.raises(InputError, match="expected"):
        PersonTracker().update(boxes, scores)


FRAMES = SHARED / "photos/video/bedroom"


@pytest.mark.skipif(not FRAMES.is_dir(), reason="the shared video frames are not beside this checkout")
def test_two_children_of_a_real_clip() -> None:
    """Real motion: what moves against the background, in two halves of the image, keeps two numbers."""
    from PIL import Image

    images = [np.asarray(Image.open(path).convert("L"), np.float32) for path in sorted(FRAMES.glob("*.jpg"))]
    background = np.median(np.stack(images), axis=0)
    tracker, numbers = PersonTracker(), set()
    for image in images:
        moving = np.abs(image - background) > 40
        boxes = []
        for left, right in ((0, 480), (480, 960)):
            rows, columns = np.nonzero(moving[:, left:right])
            if len(rows) > 500:
                low, high = np.percentile(columns, [5, 95]) + left
                top, bottom = np.percentile(rows, [5, 95])
                boxes.append([low, top, high, bottom])
        numbers |= set(tracker.update(boxes, np.ones(len(boxes))).tolist())
    assert len(numbers) <= 3
