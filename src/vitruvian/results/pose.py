"""`Pose`: the keypoints of each person, by number and by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.draw import draw_pose, enclosing_boxes
from vitruvian.errors import InputError, check_choice
from vitruvian.files.coco import keypoint_category, keypoint_record
from vitruvian.files.labels import yolo_pose_lines
from vitruvian.filesystem.atomic import write_lines
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.human import LAYOUTS, SAPIENS_308, Layout
from vitruvian.results.base import Result, array_of, rounded_list
from vitruvian.results.supervision import to_key_points

if TYPE_CHECKING:
    import supervision


@dataclass(frozen=True, slots=True)
class Keypoint:
    """One keypoint of one person: its coordinates in source pixels and the confidence of the model."""

    x: float
    y: float
    score: float


@dataclass(frozen=True, kw_only=True, eq=False)
class PersonPose:
    """One person of a `Pose`: keypoints [J, 2], scores [J], box and identity; ``person["nose"]`` by name."""

    keypoints: NDArray[np.float32]
    scores: NDArray[np.float32]
    names: tuple[str, ...]
    box_xyxy: NDArray[np.float32]
    id: int | None = None

    def __getitem__(self, name: str) -> Keypoint:
        check_choice("keypoint", name, self.names, expected=f"one of {len(self.names)} names")
        index = self.names.index(name)
        x, y = self.keypoints[index].tolist()
        return Keypoint(x, y, float(self.scores[index]))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Pose(Result):
    """Keypoints of P people, J each. Left and right are the person's own, in names and in order.

    Attributes:
        keypoints: x and y in source pixels, float32 [P, J, 2]; NaN where the layout has a point that the model lacks.
        scores: Confidence, float32 [P, J]: the maximum of the heatmap, about 0 to 1.
        names: Names of the J keypoints; by default those of the layout.
        layout: What the keypoints are and how they are linked; by default the known layout with these `names`, or the
            308 of Sapiens2. Other names make a new layout without bones.
    """

    task = "pose"
    extensions = (".json", ".npz", ".png", ".jpg", ".jpeg", ".webp", ".txt", ".crops.zip")

    keypoints: NDArray[np.float32] = field(metadata=array_of(np.float32, "P", "J", 2))
    scores: NDArray[np.float32] = field(metadata=array_of(np.float32, "P", "J"))
    names: tuple[str, ...] = ()
    layout: Layout = None  # type: ignore[assignment]  # set on construction, so that readers never see None

    def _convert_fields(self) -> None:
        layout = self.layout or _layout_of(self.names)
        names = self.names or layout.names
        if names != layout.names:
            raise InputError(
                f"names: expected the {len(layout.names)} names of the layout {layout.name}, got {len(names)} others. "
                "Leave names out, or leave layout out."
            )
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "names", names)

    def _array_lengths(self) -> dict[str, int]:
        return {"J": len(self.names)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.people is not None and len(self.people) != len(self.keypoints):
            raise InputError(
                f"people: expected a box for each of the {len(self.keypoints)} poses, got {len(self.people)}."
            )

    def __len__(self) -> int:
        return len(self.keypoints)

    def __getitem__(self, index: int) -> PersonPose:
        ids = None if self.people is None else self.people.ids
        return PersonPose(
            keypoints=self.keypoints[index],
            scores=self.scores[index],
            names=self.names,
            box_xyxy=self.boxes_xyxy[index],
            id=None if ids is None else int(ids[index]),
        )

    def __iter__(self) -> Iterator[PersonPose]:
        return (self[index] for index in range(len(self)))

    @property
    def boxes_xyxy(self) -> NDArray[np.float32]:
        """The boxes of the people, float32 [P, 4], or the tight ones around all keypoints."""
        if self.people is not None:
            return self.people.boxes_xyxy
        return np.nan_to_num(enclosing_boxes(self.keypoints)).astype(np.float32)

    def to_layout(self, name: str) -> Pose:
        """Convert to another layout: "coco17", "coco133", "openpose" (BODY_25) or "sapiens308".

        Points that the layout has and the 308 lack are NaN with score 0.
        """
        check_choice("layout", name, LAYOUTS)
        layout = LAYOUTS[name]
        if layout is self.layout:
            return self
        if self.layout is not SAPIENS_308:
            raise InputError(
                f"layout: expected the 308 keypoints of Sapiens2 to convert from, got {self.layout.name}. "
                "Convert the original result instead."
            )
        keypoints, scores = layout.convert(self.keypoints, self.scores)
        return replace(self, keypoints=keypoints, scores=scores, names=layout.names, layout=layout)

    def plot(self, *, threshold: float = 0.3, boxes: bool = False, line_width: float | None = None) -> Image.Image:
        """Draw the skeletons over the image.

        Args:
            threshold: Keypoints with a lower score are left out.
            boxes: Whether to draw the boxes as well.
            line_width: In pixels; by default it follows the size of each person.
        """
        ids = None if self.people is None or self.people.ids is None else self.people.ids.tolist()
        drawn = draw_pose(
            self.canvas(),
            self.keypoints,
            self.scores,
            layout=self.layout,
            threshold=threshold,
            boxes_xyxy=self.boxes_xyxy if boxes else None,
            ids=ids,
            line_width=line_width,
        )
        return Image.fromarray(drawn)

    def info(self) -> JsonObject:
        """Return everything but the arrays."""
        return super().info() | {"layout": self.layout.name, "names": list(self.names)}

    def to_dict(self) -> JsonObject:
        """Return everything: a list of people with box, identity, keypoints [[x, y], …] and scores."""
        people = [
            {
                "id": person.id,
                "box_xyxy": rounded_list(person.box_xyxy, digits=2),
                "keypoints": rounded_list(person.keypoints, digits=2),
                "scores": rounded_list(person.scores),
            }
            for person in self
        ]
        return super().to_dict() | {"poses": people}

    def write(self, path: Path, extension: str) -> None:
        """Write what any result can be, or as TXT the pose labels of YOLO in the layout of this result."""
        if extension == ".txt":
            write_lines(path, yolo_pose_lines(self.keypoints, self.scores, self.boxes_xyxy, self.size_hw))
        else:
            super().write(path, extension)

    def to_coco(self, *, image_id: int = 1, first_id: int = 1, threshold: float = 0.3) -> list[JsonObject]:
        """Return a COCO annotation for each person; see `vitruvian.files.coco` for how points are stored.

        The score of a person is that of the detector, times the mean score of the keypoints that reach the threshold.
        """
        return [
            keypoint_record(
                person.keypoints,
                person.scores,
                layout=self.layout,
                box_xyxy=person.box_xyxy,
                image_id=image_id,
                annotation_id=first_id + index,
                score=self._score(index, threshold),
                threshold=threshold,
            )
            | ({} if person.id is None else {"track_id": person.id})
            for index, person in enumerate(self)
        ]

    def coco_categories(self) -> list[JsonObject]:
        """Return COCO's category of people, with the names and bones of the layout."""
        return [keypoint_category(self.layout)]

    def to_supervision(self) -> supervision.KeyPoints:
        """Return `supervision.KeyPoints`; NaN becomes (0, 0), which it takes for missing."""
        ids = None if self.people is None else self.people.ids
        return to_key_points(np.nan_to_num(self.keypoints), self.scores, ids=ids)

    def _score(self, index: int, threshold: float) -> float:
        visible = self.scores[index][self.scores[index] >= threshold]
        box_score = 1.0 if self.people is None else float(self.people.scores[index])
        return box_score * float(visible.mean()) if len(visible) else 0.0


def _layout_of(names: tuple[str, ...]) -> Layout:
    """Return the layout with these names: the 308 for none, a new one without bones for unknown names."""
    if not names:
        return SAPIENS_308
    for layout in LAYOUTS.values():
        if layout.names == names:
            return layout
    count = len(names)
    return Layout(name="own", names=names, sources=((),) * count, skeleton=(), flip_permutation=tuple(range(count)))
