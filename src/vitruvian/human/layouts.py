"""Keypoint layouts of other tools, converted from the 308: COCO-17, COCO-WholeBody's 133 and OpenPose BODY_25.

A `Layout` names its points and states which of the 308 each one comes from: one source, two (their midpoint) or none.
It converts NumPy arrays and torch tensors. Left and right are the person's own in every layout.

COCO-17 has points of the same names, in COCO's order. BODY_25 has a neck and a middle of the hips, which are midpoints
of the shoulders and of the hips. Of the 133 points of COCO-WholeBody (17 body, 6 feet, 68 face in iBUG order, 21 left
hand, 21 right hand), 117 have a counterpart: the outline of the jaw has none except for the chin, so `face-0` to
`face-7` and `face-9` to `face-16` become NaN with score 0. Finger joints 1 are the ``*_third_joint`` points: the same
joint, annotated under another rule, so expect a few pixels of difference. The lids, brows and lips of iBUG are
assigned by where its annotations fall along each line of the 308; its chin is a little lower, on the outline. The
tables are in ``layouts.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from vitruvian.errors import InputError
from vitruvian.human.keypoints import (
    FLIP_PERMUTATION,
    KEYPOINT_INDEX,
    KEYPOINT_NAMES,
    KEYPOINTS,
    SKELETON,
    Bone,
    read_table,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    _Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Layout:
    """A set of keypoints that the 308 can be converted to.

    Attributes:
        name: Name of the layout, for instance "coco17".
        names: Names of its J points, in its own order.
        sources: For each point the ids of its sources among the 308: one, two (their midpoint) or none (undefined).
        skeleton: Its bones; `start` and `end` are indices in this layout.
        flip_permutation: Index of each point's mirror image in this layout.
    """

    name: str
    names: tuple[str, ...]
    sources: tuple[tuple[int, ...], ...]
    skeleton: tuple[Bone, ...]
    flip_permutation: tuple[int, ...]

    @property
    def undefined(self) -> tuple[int, ...]:
        """Indices of the points that have no counterpart among the 308."""
        return tuple(i for i, ids in enumerate(self.sources) if not ids)

    @overload
    def convert(self, keypoints: _Floats, scores: _Floats) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
    @overload
    def convert(self, keypoints: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]: ...
    def convert(self, keypoints: Any, scores: Any) -> tuple[Any, Any]:
        """Convert 308 keypoints and their scores to this layout.

        A midpoint has the lower of its two scores. A point without a counterpart (`undefined`) is NaN with score 0.

        Args:
            keypoints: [..., 308, 2] or [..., 308, 3]; floating point, NumPy array or torch tensor. All columns are
                coordinates.
            scores: [..., 308], of the same kind and on the same device.

        Returns:
            keypoints [..., J, 2 or 3] and scores [..., J]: new arrays of the same kind and precision.
        """
        _check_points(keypoints, scores)
        first = [ids[0] if ids else 0 for ids in self.sources]
        last = [ids[-1] if ids else 0 for ids in self.sources]
        missing = list(self.undefined)
        xy = (keypoints[..., first, :] + keypoints[..., last, :]) / 2  # [..., J, 2|3]
        low = scores[..., first].clip(max=scores[..., last])  # [..., J]
        if missing:
            xy[..., missing, :] = float("nan")
            low[..., missing] = 0
        return xy, low


def _check_points(keypoints: Any, scores: Any) -> None:
    """Raise `InputError` unless these are keypoints [..., 308, 2 or 3] and scores [..., 308] of one library."""
    numpy = isinstance(keypoints, np.ndarray) and isinstance(scores, np.ndarray)
    if not numpy and not (hasattr(keypoints, "requires_grad") and hasattr(scores, "requires_grad")):
        raise InputError(
            "keypoints and scores: expected two numpy arrays or two torch tensors, "
            f"got {type(keypoints).__name__} and {type(scores).__name__}. "
            "Convert them first, for instance with numpy.asarray(keypoints, dtype=float)."
        )
    if keypoints.ndim < 2 or keypoints.shape[-2] != len(KEYPOINTS) or keypoints.shape[-1] not in (2, 3):
        raise InputError(f"keypoints: expected shape [..., 308, 2 or 3], got {list(keypoints.shape)}.")
    if scores.shape != keypoints.shape[:-1]:
        raise InputError(f"scores: expected shape {list(keypoints.shape[:-1])}, got {list(scores.shape)}.")
    if not (keypoints.dtype.kind == "f" if numpy else keypoints.is_floating_point()):
        raise InputError(
            f"keypoints: expected floating point, got {keypoints.dtype}. Points without a counterpart become NaN, "
            "and midpoints fall between pixels: convert to float first."
        )


SAPIENS_308: Final[Layout] = Layout(
    name="sapiens308",
    names=KEYPOINT_NAMES,
    sources=tuple((i,) for i in range(len(KEYPOINTS))),
    skeleton=SKELETON,
    flip_permutation=FLIP_PERMUTATION,
)
"""All 308 points."""

_TABLES = read_table("layouts.json")


def _layout(name: str) -> Layout:
    """Return a layout of ``layouts.json``: points with their sources and mirror images, and bones, all by name."""
    points, bones = _TABLES[name]["points"], _TABLES[name]["bones"]
    index = {point: i for i, (point, _, _) in enumerate(points)}
    return Layout(
        name=name,
        names=tuple(index),
        sources=tuple(tuple(KEYPOINT_INDEX[source] for source in sources) for _, sources, _ in points),
        skeleton=tuple(Bone(bone, index[start], index[end], (r, g, b)) for bone, start, end, (r, g, b) in bones),
        flip_permutation=tuple(index[mirror] for _, _, mirror in points),
    )


COCO_17: Final[Layout] = _layout("coco17")
"""The 17 body points of COCO; every one is a point of the 308."""

BODY_25: Final[Layout] = _layout("openpose")
"""The 25 body and foot points of OpenPose; the neck and the middle of the hips are midpoints."""

COCO_WHOLEBODY_133: Final[Layout] = _layout("coco133")
"""The 133 points of COCO-WholeBody. Each hand starts at its root, the wrist."""

LAYOUTS: Final[dict[str, Layout]] = {
    layout.name: layout for layout in (SAPIENS_308, COCO_17, COCO_WHOLEBODY_133, BODY_25)
}
"""Every layout by its name: sapiens308, coco17, coco133, openpose."""

FACE_LINES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = tuple(
    (feature, tuple(names)) for feature, names in _TABLES["face_lines"]
)
"""Lines of the face, from image left to image right: a feature such as ``left_brow``, and points of the 308 or of
COCO-WholeBody."""
