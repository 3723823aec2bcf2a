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
    Keypoint,
)
from vitruvian.human.layouts import BODY_25, COCO_17, COCO_WHOLEBODY_133, LAYOUTS, SAPIENS_308, Layout
from vitruvian.human.parts import (
    PART_COLOURS,
    PART_FLIP_PERMUTATION,
    PART_GROUPS,
    PART_NAMES,
    PARTS,
    Part,
    id2label,
    label2id,
)

__all__ = [
    "BODY_25",
    "COCO_17",
    "COCO_WHOLEBODY_133",
    "FLIP_PAIRS",
    "FLIP_PERMUTATION",
    "GROUPS",
    "KEYPOINTS",
    "KEYPOINT_INDEX",
    "KEYPOINT_NAMES",
    "LAYOUTS",
    "PARTS",
    "PART_COLOURS",
    "PART_FLIP_PERMUTATION",
    "PART_GROUPS",
    "PART_NAMES",
    "SAPIENS_308",
    "SIGMAS",
    "SKELETON",
    "Bone",
    "Keypoint",
    "Layout",
    "Part",
    "id2label",
    "label2id",
]
