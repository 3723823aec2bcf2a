"""Results as the objects of the package supervision, which is imported only when asked for."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import MissingExtraError


def import_supervision() -> Any:
    """Return the package supervision, or raise `MissingExtraError`."""
    try:
        import supervision
    except ImportError as error:
        raise MissingExtraError("supervision", "supervision", "to_supervision") from error
    return supervision


def key_points(xy: NDArray[np.float32], scores: NDArray[np.float32]) -> Any:
    """Return supervision's `KeyPoints` of P people: places [P, J, 2] and scores [P, J]."""
    supervision = import_supervision()
    if len(xy) == 0:
        return supervision.KeyPoints.empty()
    names = inspect.signature(supervision.KeyPoints).parameters
    confidence = "keypoint_confidence" if "keypoint_confidence" in names else "confidence"  # renamed in 0.29
    return supervision.KeyPoints(
        xy=xy,
        class_id=np.zeros(len(xy), int),
        data={"class_name": np.array(["person"] * len(xy))},
        **{confidence: scores},
    )


def detections(
    *,
    boxes_xyxy: NDArray[np.float32],
    masks: NDArray[np.bool_] | None,
    scores: NDArray[np.float32] | None,
    label_ids: NDArray[np.int64] | None,
    names: list[str] | None,
) -> Any:
    """Return supervision's `Detections` of N objects; names go where its annotators look for them."""
    supervision = import_supervision()
    if len(boxes_xyxy) == 0:
        return supervision.Detections.empty()
    return supervision.Detections(
        xyxy=boxes_xyxy,
        mask=masks,
        confidence=scores,
        class_id=None if label_ids is None else label_ids.astype(int),
        data={} if names is None else {"class_name": np.array(names)},
    )
