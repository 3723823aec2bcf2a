"""A small result of each task."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitruvian import results

HW = (20, 30)
RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.integers(0, 256, (*HW, 3), dtype=np.uint8)
MIDDLE = np.zeros(HW, bool)
MIDDLE[4:16, 6:24] = True


def people(count: int, *, ids: bool = False) -> results.People:
    boxes = np.tile(np.array([1, 2, 11, 14], np.float32), (count, 1)) + 3 * np.arange(count, dtype=np.float32)[:, None]
    return results.People(
        boxes_xyxy=boxes,
        scores=np.full(count, 0.9, np.float32),
        ids=np.arange(count) if ids else None,
        detector="test",
        note="a note",
    )


def pose_fields(count: int = 2) -> dict[str, Any]:
    keypoints = RANDOM.uniform(0, 20, (count, 308, 2)).astype(np.float32)
    return {"keypoints": keypoints, "scores": RANDOM.uniform(0, 1, (count, 308)).astype(np.float32)}


def flat_points(depth: np.ndarray, focal: float = 25.0) -> np.ndarray:
    """Points of a camera in OpenCV's axes that sees this depth [H, W]: float32 [H, W, 3]."""
    height, width = depth.shape
    x = (np.arange(width) - (width - 1) / 2) / focal * depth
    y = ((np.arange(height) - (height - 1) / 2) / focal)[:, None] * depth
    return np.stack([x, y, depth], axis=-1).astype(np.float32)


def matte_fields() -> dict[str, Any]:
    alpha = np.linspace(0, 1, HW[0] * HW[1], dtype=np.float32).reshape(HW)
    return {"alpha": alpha, "foreground": IMAGE.astype(np.float32) / 255 * alpha[..., None]}


def masks_fields() -> dict[str, Any]:
    masks = np.zeros((3, *HW), bool)
    masks[0, :15, :20], masks[1, 10:, 15:], masks[2, 2:5, 3:7] = True, True, True
    return {
        "kind": "instances",
        "rles": masks,
        "scores": np.array([0.9, 0.8, 0.7], np.float32),
        "boxes_xyxy": np.array([[0, 0, 20, 15], [15, 10, 30, 20], [3, 2, 7, 5]], np.float32),
        "label_ids": np.array([4, 2, 4]),
        "label_names": ("cat", "dog", "cat"),
    }


def panoptic_fields() -> dict[str, Any]:
    segmentation = np.zeros(HW, np.int32)
    segmentation[:10], segmentation[10:, 20:] = 1, 300
    return {
        "segmentation": segmentation,
        "segments": (
            results.Segment(
                id=1, label_id=40, label="sky", score=0.9, area=300, box_xyxy=(0, 0, 30, 10), is_thing=False
            ),
            results.Segment(
                id=300, label_id=0, label="person", score=0.8, area=100, box_xyxy=(20, 10, 30, 20), is_thing=True
            ),
        ),
    }


SAMPLES: dict[str, tuple[type[results.Result], dict[str, Any]]] = {
    "pose": (results.Pose, pose_fields()),
    "parts": (
        results.Parts,
        {"labels": (np.arange(600).reshape(HW) // 25).astype(np.uint8), "score": np.ones(HW, np.float16)},
    ),
    "normals": (
        results.Normals,
        {
            "normals": np.tile(np.array([0.6, 0, -0.8], np.float32), (*HW, 1)),
            "mask": MIDDLE,
            "convention": "opencv",
        },
    ),
    "pointmap": (
        results.Pointmap,
        {
            "points": flat_points(np.full(HW, 2.0)),
            "mask": MIDDLE,
            "intrinsics": np.array([[25, 0, (HW[1] - 1) / 2], [0, 25, (HW[0] - 1) / 2], [0, 0, 1]], np.float32),
            "intrinsics_from": "given",
            "metric": True,
            "scale": 0.5,
        },
    ),
    "matte": (results.Matte, matte_fields()),
    "albedo": (results.Albedo, {"albedo": IMAGE.astype(np.float32) / 255, "mask": MIDDLE}),
    "instances": (results.Masks, masks_fields()),
    "semantic": (results.Semantic, {"labels": np.indices(HW, np.int32)[0], "id2label": {0: "wall"}}),
    "panoptic": (results.Panoptic, panoptic_fields()),
    "embed": (
        results.Embedding,
        {
            "cls": RANDOM.normal(size=8).astype(np.float32),
            "patches": RANDOM.normal(size=(4, 6, 8)).astype(np.float32),
        },
    ),
}  # fmt: skip


def sample(task: str, **change: Any) -> Any:
    """Build a result of a task, with some fields changed."""
    cls, fields = SAMPLES[task]
    rest = {
        "size_hw": HW,
        "image": IMAGE,
        "source": "a.jpg",
        "model": "tiny",
        "people": people(2, ids=True),
        "frame": 4,
        "time": 0.5,
    }
    return cls(**(rest | fields | change))
