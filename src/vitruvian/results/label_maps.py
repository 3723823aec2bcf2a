"""What maps of class numbers [H, W] have in common: which classes occur, how much of each, as masks and as records."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.files.coco import mask_record
from vitruvian.images.rle import encode_rle

MOST_BINS = 1 << 20


def count_labels(labels: NDArray[Any]) -> dict[int, int]:
    """Return how many pixels [H, W] each number has, in the order of the numbers; no negative ones."""
    if labels.max() < MOST_BINS:  # counting is many times quicker than sorting
        counts = np.bincount(labels.ravel())
        return {int(label): int(counts[label]) for label in np.flatnonzero(counts)}
    found, areas = np.unique(labels, return_counts=True)
    return dict(zip(found.tolist(), areas.tolist(), strict=True))


def class_records(labels: NDArray[Any], classes: list[int], *, image_id: int, first_id: int) -> list[dict[str, Any]]:
    """Return a COCO record for each of these classes of a map [H, W], one mask each."""
    return [
        mask_record(
            encode_rle(labels == label, compress=True),
            image_id=image_id,
            annotation_id=first_id + index,
            category_id=label,
        )
        for index, label in enumerate(classes)
    ]


def class_summary(labels: NDArray[Any], names: dict[int, str]) -> list[dict[str, Any]]:
    """Return number, name, area and mask (RLE) of each class that occurs in a map [H, W]."""
    return [
        {"id": label, "name": names[label], "area": area, "rle": encode_rle(labels == label, compress=True)}
        for label, area in count_labels(labels).items()
    ]
