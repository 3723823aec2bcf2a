"""Results as objects of the package supervision, which is imported only when needed."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import import_extra

if TYPE_CHECKING:
    import supervision


def to_key_points(
    xy: NDArray[np.float32], scores: NDArray[np.float32], *, ids: NDArray[np.int64] | None = None
) -> supervision.KeyPoints:
    """Return supervision's `KeyPoints` of P people: coordinates [P, J, 2] and scores [P, J].

    Identities [P] are in ``data["tracker_id"]``: key points have no field for them.
    """
    module = import_extra("supervision", "supervision", "to_supervision")
    if len(xy) == 0:
        return module.KeyPoints.empty()
    names = inspect.signature(module.KeyPoints).parameters
    confidence = "keypoint_confidence" if "keypoint_confidence" in names else "confidence"  # renamed in 0.29
    return module.KeyPoints(
        xy=xy,
        class_id=np.zeros(len(xy), int),
        data={"class_name": np.array(["person"] * len(xy))} | ({} if ids is None else {"tracker_id": ids}),
        **{confidence: scores},
    )


def to_detections(
    *,
    boxes_xyxy: NDArray[np.float32],
    masks: NDArray[np.bool_],
    scores: NDArray[np.float32],
    label_ids: NDArray[np.int64] | None,
    names: list[str] | None,
    ids: NDArray[np.int64] | None = None,
) -> supervision.Detections:
    """Return supervision's `Detections` of N objects; names are in `data`, where its annotators read them.

    Identities [N] are its `tracker_id`.
    """
    module = import_extra("supervision", "supervision", "to_supervision")
    if len(boxes_xyxy) == 0:
        return module.Detections.empty()
    return module.Detections(
        xyxy=boxes_xyxy,
        mask=masks,
        confidence=scores,
        class_id=None if label_ids is None else label_ids.astype(int),
        tracker_id=None if ids is None else ids.astype(int),
        data={} if names is None else {"class_name": np.array(names)},
    )
