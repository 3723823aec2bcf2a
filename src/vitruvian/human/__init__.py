"""Tables of the human body: the 308 keypoints, the 29 parts, their flips and skeletons, and layouts of other tools.

Nothing here needs torch.
"""

from vitruvian.human.keypoints import (
    FLIP_PAIRS,
    FLIP_PERMUTATION,
    GROUPS,
    KEYPOINT_INDEX,
    KEYPOINT_NAMES,
    KEYPOINTS,
    SIGMAS,
    SKELETON,
    Bone,
    KeypointInfo,
)
from vitruvian.human.layouts import BODY_25, COCO_17, COCO_WHOLEBODY_133, FACE_LINES, LAYOUTS, SAPIENS_308, Layout
from vitruvian.human.parts import PART_COLORS, PART_FLIP_PERMUTATION, PART_INDEX, PART_NAMES, PARTS, Part

__all__ = [
    "BODY_25",
    "COCO_17",
    "COCO_WHOLEBODY_133",
    "FACE_LINES",
    "FLIP_PAIRS",
    "FLIP_PERMUTATION",
    "GROUPS",
    "KEYPOINTS",
    "KEYPOINT_INDEX",
    "KEYPOINT_NAMES",
    "LAYOUTS",
    "PARTS",
    "PART_COLORS",
    "PART_FLIP_PERMUTATION",
    "PART_INDEX",
    "PART_NAMES",
    "SAPIENS_308",
    "SIGMAS",
    "SKELETON",
    "Bone",
    "KeypointInfo",
    "Layout",
    "Part",
]
