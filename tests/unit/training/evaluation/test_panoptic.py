from __future__ import annotations

import numpy as np
import pytest
import torch

from vitruvian.errors import InputError
from vitruvian.training.evaluation import PanopticQuality


def info(labels: dict[int, int], crowds: tuple[int, ...] = ()) -> list[dict]:
    return [{"id": i, "label_id": label, "iscrowd": int(i in crowds)} for i, label in labels.items()]


def brute_force(found, found_labels, truth, truth_labels, crowds, void=0) -> dict[int, list[float]]:
    """Counts [matched, spurious, missed, overlap] of each label, pixel sets compared pair by pair."""
    counts: dict[int, list[float]] = {}
    matched_found, matched_truth = set(), set()
    for f, label in found_labels.items():
        for t, wanted in truth_labels.items():
            if label != wanted or t in crowds:
                continue
            mine, theirs = (found == f) & (truth != void), truth == t
            overlap = (mine & theirs).sum() / (mine | theirs).sum() if (mine | theirs).any() else 0
            if overlap > 0.5:
                matched_found.add(f)
                matched_truth.add(t)
                row = counts.setdefault(label, [0, 0, 0, 0.0])
                row[0] += 1
                row[3] += overlap
    for t, label in truth_labels.items():
        if t not in matched_truth and t not in crowds:
            counts.setdefault(label, [0, 0, 0, 0.0])[2] += 1
    for f, label in found_labels.items():
        mine = found == f
        excused = truth == void
        for t in crowds:
            excused |= (truth == t) & (truth_labels[t] == label)
        if f not in matched_found and (mine & excused).sum() / mine.sum() <= 0.5:
            counts.setdefault(label, [0, 0, 0, 0.0])[1] += 1
    return counts


def random_pair(seed: int):
    random = np.random.default_rng(seed)
    truth = np.zeros((24, 32), dtype=np.int64)
    for i in range(1, 9):
        y, x, h, w = random.integers((0, 0, 4, 4), (20, 28, 14, 14))
        truth[y : y + h, x : x + w] = i * 11
    found = np.roll(truth, random.integers(-2, 3, 2), (0, 1))
    found = np.where(random.random(found.shape) < 0.03, 0, found)
    found = found * 2  # other ids than the truth has
    truth_labels = {int(i): int(random.integers(0, 3)) for i in np.unique(truth) if i}
    found_labels = {
        int(i): truth_labels[int(i) // 2] if random.random() < 0.8 else int(random.integers(0, 3))
        for i in np.unique(found)
        if i
    }
    crowds = tuple(i for i in truth_labels if random.random() < 0.2)
    return found, found_labels, truth, truth_labels, crowds


def test_random_maps_against_brute_force() -> None:
    quality, other = PanopticQuality(things=[0, 1]), PanopticQuality(things=[0, 1])
    totals: dict[int, np.ndarray] = {}
    for seed in range(12):
        found, found_labels, truth, truth_labels, crowds = random_pair(seed)
        target = quality if seed % 2 else other
        target.update(torch.from_numpy(found), info(found_labels), truth, info(truth_labels, crowds))
        for label, row in brute_force(found, found_labels, truth, truth_labels, crowds).items():
            totals[label] = totals.get(label, np.zeros(4)) + row
    quality.merge(other)
    report = quality.compute()
    scores = {k: (o / m if m else 0, m / (m + s / 2 + x / 2)) for k, (m, s, x, o) in totals.items()}
    assert min(min(row[:3]) for row in totals.values()) > 0, "the images must have matches, misses and spurious ones"
    assert list(report.per_label) == sorted(scores)
    for label, (sq, rq) in scores.items():
        assert report.per_label[label].sq == pytest.approx(sq)
        assert report.per_label[label].rq == pytest.approx(rq)
        assert report.per_label[label].pq == pytest.approx(sq * rq)
    assert report.pq == pytest.approx(np.mean([sq * rq for sq, rq in scores.values()]))
    assert report.things.pq == pytest.approx(np.mean([scores[k][0] * scores[k][1] for k in (0, 1)]))
    assert report.stuff.rq == pytest.approx(scores[2][1])
    assert (report.all.labels, report.things.labels, report.stuff.labels) == (3, 2, 1)


def test_by_hand() -> None:
    truth = np.array([[1, 1, 1, 1, 2, 2, 0, 0]])
    found = np.array([[7, 7, 7, 0, 8, 9, 9, 9]])
    quality = PanopticQuality()
    quality.update(found, info({7: 3, 8: 4, 9: 5}), truth, info({1: 3, 2: 4}))
    report = quality.compute()
    assert report.per_label[3].pq == 0.75  # 3 of 4 pixels
    assert report.per_label[4].pq == 0  # half is not more than half: missed and spurious
    assert report.per_label[4].rq == 0
    assert 5 not in report.per_label  # two of its three pixels lie on void
    assert report.pq == 0.375
    assert report.stuff.labels == 0
    assert np.isnan(report.stuff.pq)


def test_void_pixels_do_not_count_in_a_predicted_segment() -> None:
    truth, found = np.array([[1, 1, 0, 0]]), np.array([[1, 1, 1, 1]])
    quality = PanopticQuality()
    quality.update(found, info({1: 0}), truth, info({1: 0}))
    assert quality.compute().pq == 1


@pytest.mark.parametrize(("label", "spurious"), [(0, False), (1, True)])
def test_a_crowd_excuses_its_own_label_only(label: int, spurious: bool) -> None:
    truth, found = np.array([[1, 1, 1, 1]]), np.array([[5, 5, 0, 0]])
    quality = PanopticQuality()
    quality.update(found, info({5: label}), truth, info({1: 0}, crowds=(1,)))
    assert quality.compute().per_label.keys() == ({label} if spurious else set())


def test_category_id_negative_void_and_perfection() -> None:
    ids = torch.tensor([[-1, 0, 0], [1, 1, 1]])
    rows = [{"id": 0, "category_id": 4}, {"id": 1, "category_id": 4}]
    quality = PanopticQuality(void_id=-1)
    quality.update(ids, rows, ids, rows)
    assert quality.compute().pq == 1


def test_bad_inputs() -> None:
    quality, ids = PanopticQuality(), np.array([[1, 2]])
    with pytest.raises(InputError, match="got 2 too"):
        quality.update(ids, info({1: 0}), ids, info({1: 0, 2: 0}))
    with pytest.raises(InputError, match=r"target_segmentation.*got 2 too"):
        quality.update(ids, info({1: 0, 2: 0}), ids, info({1: 0}))
    with pytest.raises(InputError, match=r"none for the ids \[3\]"):
        quality.update(ids, info({1: 0, 2: 0, 3: 0}), ids, info({1: 0, 2: 0}))
    with pytest.raises(InputError, match="as many pixels"):
        quality.update(ids, info({1: 0, 2: 0}), ids[:, :1], info({1: 0}))
    with pytest.raises(InputError, match=r"\[H, W\]"):
        quality.update(ids[0], info({1: 0, 2: 0}), ids, info({1: 0, 2: 0}))
    with pytest.raises(InputError, match="unique id"):
        quality.update(ids, info({1: 0}) * 2, ids, info({1: 0}))
    with pytest.raises(InputError, match="label_id"):
        quality.update(ids, [{"id": 1}], ids, info({1: 0}))
    with pytest.raises(InputError, match="different void_id"):
        quality.merge(PanopticQuality(void_id=9))
