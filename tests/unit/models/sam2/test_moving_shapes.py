"""A very small model, trained by tools/train_moving_shapes.py, follows drawn shapes through crossings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitruvian import Sam2VideoModel, Sam2VideoProcessor, Sam2VideoVideoProcessor, TrackPrompt, pipeline
from vitruvian.training.synthetic.moving_shapes import Clip, draw_clip

FOLDER = Path(__file__).parents[3] / "data" / "moving-shapes"
SIDE = 64


@pytest.fixture(scope="module")
def track() -> Any:
    size = {"height": SIDE, "width": SIDE}
    frames = Sam2VideoVideoProcessor(size=size, image_mean=[0.5] * 3, image_std=[0.25] * 3)
    model = Sam2VideoModel.from_pretrained(FOLDER, dtype=torch.float32)
    return pipeline("track", model, processor=Sam2VideoProcessor(video_processor=frames, target_size=SIDE))


def iou(found: np.ndarray, truth: np.ndarray) -> float:
    return float((found & truth).sum() / max(1, (found | truth).sum()))


def window(seed: int, left: int, top: int) -> Clip:
    """A clip at a place that training leaves out: left + 2 · top is a multiple of 4."""
    assert (left + 2 * top) % 4 == 0
    clip = draw_clip(torch.Generator().manual_seed(seed), size_hw=(80, 80), length=8)
    return Clip(*(part[..., top : top + SIDE, left : left + SIDE] for part in clip))


@pytest.mark.parametrize(("seed", "left", "top"), [(2, 4, 8), (3, 10, 3), (2, 12, 6), (3, 6, 9)])
def test_shapes_are_followed_through_a_crossing(track: Any, seed: int, left: int, top: int) -> None:
    clip = window(seed, left, top)
    images = (clip.frames.permute(0, 2, 3, 1) * 255).round().byte().numpy()
    truth = clip.masks.numpy()  # [T, O, H, W]
    touching = truth[:, 0] & np.roll(truth[:, 1], 1, axis=2)
    assert touching[2:6].any()  # they meet halfway
    assert not touching[[0, -1]].any()
    prompts = [TrackPrompt(object_id=number + 1, mask=mask) for number, mask in enumerate(truth[0])]
    results = list(track(list(images), prompts=prompts))[1:]
    scores = np.array([[iou(one.of(number + 1), truth[one.frame, number]) for number in range(2)] for one in results])
    assert scores.mean() > 0.8
    assert scores[-1].min() > 0.7  # neither object has become the other


def test_the_checkpoint_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000
