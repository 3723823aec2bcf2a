"""A small model, trained by tools/train_moving_shapes.py, tracks shapes that it has never seen through crossings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitruvian import TrackPrompt, pipeline
from vitruvian.training.synthetic.moving_shapes import Clips, draw_clips

FOLDER = Path(__file__).parents[3] / "data" / "moving-shapes"
SEEDS = (100, 101, 102)  # not used in training
COUNT = 4  # clips of each


@pytest.fixture(scope="module")
def track() -> Any:
    return pipeline("track", str(FOLDER), dtype="float32")


@pytest.fixture(scope="module")
def clips() -> Clips:
    """Two shapes that do not have the colors of the background."""
    several = [
        draw_clips(torch.Generator().manual_seed(seed), count=COUNT, size_hw=(128, 128), saturation=(0.6, 0.9))
        for seed in SEEDS
    ]
    return Clips(*(torch.cat(parts) for parts in zip(*several, strict=True)))


def iou(found: np.ndarray, truth: np.ndarray) -> float:
    either = (found | truth).sum()
    return float((found & truth).sum() / either) if either else 1.0


def center(mask: np.ndarray) -> list[float]:
    """The pixel of a mask that is nearest to its center."""
    places = np.argwhere(mask)
    y, x = places[np.linalg.norm(places - places.mean(0), axis=1).argmin()]
    return [x + 0.5, y + 0.5]


def test_shapes_meet_halfway(clips: Clips) -> None:
    visible = clips.masks[:, 2:6].flatten(3).sum(3).amin(1) / clips.masks[:, 0].flatten(2).sum(2)  # [B, O]
    assert (visible[:, 0] < 0.7).float().mean() > 0.7  # the first is hidden by the second


@pytest.mark.parametrize("kind", ["mask", "click"])
def test_shapes_are_tracked_through_a_crossing(track: Any, clips: Clips, kind: str) -> None:
    scores, confused = [], 0  # [B, T - 1, O]; objects that have become the other
    for frames, masks in zip(*clips, strict=True):
        images = (frames.permute(0, 2, 3, 1) * 255).round().byte().numpy()
        truth = masks.numpy()  # [T, O, H, W]
        prompts = [
            TrackPrompt(object_id=number, mask=mask)
            if kind == "mask"
            else TrackPrompt(object_id=number, points=[center(mask)])
            for number, mask in enumerate(truth[0], 1)
        ]
        results = list(track(list(images), prompts=prompts))[1:]
        scores.append([[iou(one.of(number + 1), truth[one.frame, number]) for number in range(2)] for one in results])
        last = [results[-1].of(number + 1) for number in range(2)]
        confused += sum(iou(last[number], truth[-1, 1 - number]) > 0.5 for number in range(2))
    assert confused == 0
    assert np.mean(scores) > 0.8


def test_the_checkpoint_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 2_000_000
