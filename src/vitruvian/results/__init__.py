"""What a task returns: one frozen, checked dataclass a task, in the pixels of the source picture.

Each has `plot()` (a picture to look at), `save(path)` (the ending says how) and `to_dict()` (ready for JSON).
"""

from vitruvian.results.albedo import Albedo
from vitruvian.results.base import People, Picture, Result
from vitruvian.results.embedding import Embedding
from vitruvian.results.masks import Masks
from vitruvian.results.matte import Matte
from vitruvian.results.normals import Normals
from vitruvian.results.panoptic import Panoptic, Segment
from vitruvian.results.parts import Parts
from vitruvian.results.pointmap import Pointmap
from vitruvian.results.pose import Keypoint, PersonPose, Pose
from vitruvian.results.semantic import Semantic

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
    "Picture",
    "Pointmap",
    "Pose",
    "Result",
    "Segment",
    "Semantic",
]
