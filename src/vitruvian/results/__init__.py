"""The results of tasks: frozen dataclasses in pixels of the source image, validated on construction.

Each has `plot()` (a visualization), `save(path)` (the extension selects the format) and `to_dict()` (ready for JSON).
"""

from vitruvian.results.albedo import Albedo
from vitruvian.results.base import People, Result
from vitruvian.results.embedding import Embedding
from vitruvian.results.masks import Masks
from vitruvian.results.matte import Matte
from vitruvian.results.normals import Normals
from vitruvian.results.panoptic import Panoptic, Segment
from vitruvian.results.parts import Parts
from vitruvian.results.pointmap import Pointmap
from vitruvian.results.pose import Keypoint, PersonPose, Pose
from vitruvian.results.semantic import Semantic
from vitruvian.results.track import Track

__all__ = [
    "Albedo",
    "Embedding",
    "Keypoint",
    "Masks",
    "Matte",
    "Normals",
    "Panoptic",
    "Parts",
    "People",
    "PersonPose",
    "Pointmap",
    "Pose",
    "Result",
    "Segment",
    "Semantic",
    "Track",
]
