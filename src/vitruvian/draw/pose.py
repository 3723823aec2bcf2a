"""Poses: skeletons whose lines follow the size of the person, hands by finger, faces as fine lines and dots.

Line widths follow from the size of the person (its box, or the extent of its points) and of the image. In hands and
faces a dot never fills more than a part of the gap to its neighbors, so that the 238 points of a face stay apart. They
are painted from large to small: bones, joints, feet, fingers, face.

A layout states which of the 308 points each of its points comes from, so one table of colors serves all layouts. Faces
have no bones: their lines are `vitruvian.human.FACE_LINES`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw.boxes import draw_boxes, enclosing_boxes
from vitruvian.draw.canvas import BLACK, WHITE, Color, image_hw
from vitruvian.draw.palettes import FINGERS, LEFT, MIDDLE, RIGHT
from vitruvian.draw.rasterize import Strokes
from vitruvian.errors import InputError
from vitruvian.human import FACE_LINES, KEYPOINTS, Layout
from vitruvian.images.types import RgbImage, SizeHW

_Kind = Literal["body", "extra", "head", "foot", "hand", "face"]
_DrawnBone = tuple[_Kind, Color, int, int]

_HEAD_POINTS: Final = ("nose", "left_eye", "right_eye", "left_ear", "right_ear")
# Landmarks without a bone, drawn small.
_LANDMARKS: Final = ("olecranon", "cubital_fossa", "acromion", "neck")
_SIDE_COLORS: Final[dict[str, Color]] = {"left": LEFT, "right": RIGHT, "middle": MIDDLE}

_FACE_COLORS: Final[dict[str, Color]] = {
    "left_brow": (120, 205, 255), "right_brow": (255, 180, 90),
    "left_lid": (150, 230, 255), "right_lid": (255, 214, 140),
    "left_ear": (120, 190, 255), "right_ear": (255, 165, 80),
    "iris": (110, 255, 170), "pupil": WHITE, "nose": (255, 246, 200),
    "outer_lip": (255, 96, 140), "inner_lip": (255, 170, 190), "plain": (244, 244, 250),
}  # fmt: skip
# Words in the names of points of a face, and the feature that they belong to.
_FACE_FEATURES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("brow", ("eyebrow",)),
    ("lid", ("lash_line", "eyelid_line", "crease_line")),
    ("iris", ("iris",)),
    ("pupil", ("pupil",)),
    ("nose", ("nose", "nostril")),
    ("outer_lip", ("outer_lip", "outer_corner_of_mouth", "cupid_bow")),
    ("inner_lip", ("inner_lip", "inner_corner_of_mouth")),
    ("ear", ("crus", "helix", "tragus", "concha", "lobe", "between_22_15")),
)
# Words in the names of points of a face that are spaced alike.
_FACE_SPACINGS: Final = (("pupil",), ("iris",), ("lash_line", "eyelid_line", "crease_line"), ("lip", "mouth", "cupid"))


class _Point(NamedTuple):
    """What a point of a layout is, and how it is drawn."""

    kind: _Kind
    side: str
    color: Color
    cluster: str | None = None  # close points of a hand or a face, which share a size


@dataclass(frozen=True)
class _Anatomy:
    """The points and lines of a layout.

    Attributes:
        points: Its J points.
        bones: Kind, color, start and end of each bone.
        lines: Lines of the face: the indices of their points, and their color.
        clusters: Indices of the points of each cluster.
    """

    points: tuple[_Point, ...]
    bones: tuple[_DrawnBone, ...]
    lines: tuple[tuple[tuple[int, ...], Color], ...]
    clusters: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=8)
def _layout_anatomy(layout: Layout) -> _Anatomy:
    """Return the points and lines of a layout."""
    points = tuple(_describe_point(name, sources) for name, sources in zip(layout.names, layout.sources, strict=True))
    bones: list[_DrawnBone] = []
    for bone in layout.skeleton:
        start, end = points[bone.start], points[bone.end]
        kind = next(kind for kind in _BONE_WIDTHS if kind in (start.kind, end.kind))
        side = start.side if start.side == end.side else "middle"
        color = _finger_color(bone.name, side) if kind == "hand" else _SIDE_COLORS[side]
        bones.append((kind, color, bone.start, bone.end))
    index = {name: i for i, name in enumerate(layout.names)}
    lines = tuple(
        (tuple(index[name] for name in names), _FACE_COLORS[feature])
        for feature, names in FACE_LINES
        if all(name in index for name in names)
    )
    clusters: dict[str, list[int]] = {}
    for i, point in enumerate(points):
        if point.cluster is not None:
            clusters.setdefault(point.cluster, []).append(i)
    return _Anatomy(points, tuple(bones), lines, tuple(map(tuple, clusters.values())))


def _describe_point(name: str, sources: tuple[int, ...]) -> _Point:
    """Return what a point is, by its name and its sources among the 308."""
    sides = {KEYPOINTS[source].side for source in sources}
    side = sides.pop() if len(sides) == 1 else "middle"
    source, group = (KEYPOINTS[sources[0]].name, KEYPOINTS[sources[0]].group) if sources else ("", "face")
    if not name.startswith("face-"):
        if "_hand_" in name or group in ("left_hand", "right_hand"):
            return _Point("hand", side, _finger_color(source, side), f"{side} hand")
        if group == "feet":
            return _Point("foot", side, _SIDE_COLORS[side])
        if group == "body":
            extra: _Kind = "extra" if source.endswith(_LANDMARKS) else "body"
            return _Point("head" if source in _HEAD_POINTS else extra, side, _SIDE_COLORS[side])
    feature = next((feature for feature, words in _FACE_FEATURES if any(word in source for word in words)), "plain")
    color = _FACE_COLORS.get(feature) or _FACE_COLORS.get(f"{side}_{feature}", WHITE)
    near = next((words for words in _FACE_SPACINGS if any(word in name for word in words)), ())
    return _Point("face", side, color, f"{side} {near}")


def _finger_color(name: str, side: str) -> Color:
    return next((color for finger, color in FINGERS.items() if finger in name), _SIDE_COLORS[side])


_Points = NDArray[np.float64]

_BODY_BONE_WIDTH = 0.0135  # relative to the size of the person
_RIM_OPACITY = 0.45  # opacity of the dark rim around lines
# Width of bones and radius of joints by kind, relative to a bone of the body. A bone has the first kind of its ends.
_BONE_WIDTHS: dict[_Kind, float] = {"hand": 0.5, "foot": 0.8, "head": 0.7, "body": 1.0}
_JOINT_RADII: dict[_Kind, float] = {"body": 0.95, "head": 0.7, "foot": 0.65, "hand": 0.42, "face": 0.4, "extra": 0.5}


@dataclass(frozen=True)
class _PersonGeometry:
    """The points of one person, and the sizes in pixels that they are drawn in."""

    points: _Points  # [J, 2]
    visible: NDArray[np.bool_]  # [J]
    width: float  # width of a bone of the body
    radii: NDArray[np.float64]  # [J], radii of the joints
    detailed: bool  # whether the face has so many points that the bones of the head would cover them


def draw_pose(
    image: RgbImage,
    keypoints: NDArray[np.floating],
    scores: NDArray[np.floating],
    *,
    layout: Layout,
    threshold: float = 0.3,
    boxes_xyxy: NDArray[np.floating] | None = None,
    ids: Sequence[int] | None = None,
    line_width: float | None = None,
) -> RgbImage:
    """Draw the skeletons of people over an image: left blue, right orange, fingers and face in other colors.

    Args:
        image: uint8 [H, W, 3].
        keypoints: [P, J, 2] x, y in pixels; the point (0, 0) is the center of the first pixel. Points that are not
            finite are left out.
        scores: [P, J].
        layout: What the J points are, for instance `vitruvian.human.SAPIENS_308`.
        threshold: Points that score less are left out, and so are their bones.
        boxes_xyxy: [P, 4] boxes to draw, which also are the sizes of people; by default the extent of the points.
        ids: [P] identities, written at the box or the highest point.
        line_width: Width of the bones of the body in pixels; by default it follows the sizes of person and image.
    """
    if line_width is not None and not 0 < line_width < math.inf:
        raise InputError(
            f"line_width: expected a number of pixels over 0, got {line_width}. Leave it out for the default."
        )
    anatomy, points = _layout_anatomy(layout), keypoints.astype(np.float64)
    visible = np.isfinite(points).all(-1) & (scores >= threshold)  # [P, J]
    canvas = np.array(image, order="C")
    for i in range(len(points)):
        box = None if boxes_xyxy is None else boxes_xyxy[i]
        person = _person_geometry(
            points[i], visible[i], anatomy, size_hw=image_hw(image), box=box, line_width=line_width
        )
        _draw_person(canvas, person, anatomy)
    if boxes_xyxy is not None:
        return draw_boxes(canvas, boxes_xyxy, ids=ids)
    if ids is not None:
        return draw_boxes(canvas, enclosing_boxes(np.where(visible[..., None], points, np.nan)), ids=ids, outline=False)
    return canvas


def _person_geometry(
    points: _Points,
    visible: NDArray[np.bool_],
    anatomy: _Anatomy,
    *,
    size_hw: SizeHW,
    box: NDArray[np.floating] | None,
    line_width: float | None,
) -> _PersonGeometry:
    """Choose the width of bones and the radii of joints for one person: points [J, 2], visible [J]."""
    sides = np.zeros(2)
    if box is not None and np.isfinite(box).all():
        sides = np.abs(box[2:] - box[:2])
    elif visible.any():
        sides = np.ptp(np.clip(points[visible], 0, size_hw[::-1]), axis=0)
    shortest, longest = sorted(sides.tolist())
    extent = math.sqrt(longest * max(shortest, longest / 3))  # a side view is not thinner
    across = math.hypot(*size_hw)
    width = line_width or float(np.clip(extent * _BODY_BONE_WIDTH, max(1.4, across * 0.001), max(1.6, across * 0.007)))
    radii = np.array([_JOINT_RADII[point.kind] for point in anatomy.points]) * width
    for cluster in anatomy.clusters:
        members = [i for i in cluster if visible[i]]
        gap = _median_neighbor_distance(points[members])
        share = 0.2 if anatomy.points[cluster[0]].kind == "hand" else 0.25
        radii[list(cluster)] = np.minimum(radii[list(cluster)], max(0.12, share * gap))
    faces = sum(bool(visible[i]) for i, point in enumerate(anatomy.points) if point.kind == "face")
    return _PersonGeometry(points=points, visible=visible, width=width, radii=radii, detailed=faces >= 12)


def _median_neighbor_distance(points: _Points) -> float:
    """Return the median distance of points [N, 2] to their nearest neighbors; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    distance = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))  # [N, N]
    np.fill_diagonal(distance, np.inf)
    return float(np.median(distance.min(1)))


def _draw_person(canvas: RgbImage, person: _PersonGeometry, anatomy: _Anatomy) -> None:
    """Draw bones, joints, hands and face of one person onto `canvas`, in place."""
    strokes = Strokes()
    bones = [bone for bone in anatomy.bones if person.visible[bone[2]] and person.visible[bone[3]]]
    _add_bones(strokes, person, anatomy, [bone for bone in bones if bone[0] != "hand"])
    _add_joints(strokes, person, anatomy, ("body", "extra", "foot", "head"))
    _add_bones(strokes, person, anatomy, [bone for bone in bones if bone[0] == "hand"])
    _add_joints(strokes, person, anatomy, ("hand",))
    for line, color in anatomy.lines:
        for start, end in itertools.pairwise(line):
            if person.visible[start] and person.visible[end]:
                radius = 0.42 * min(person.radii[start], person.radii[end])
                strokes.line(person.points[start], person.points[end], radius=radius, color=color, opacity=0.9)
    _add_joints(strokes, person, anatomy, ("face",))
    strokes.paint(canvas)


def _add_bones(strokes: Strokes, person: _PersonGeometry, anatomy: _Anatomy, bones: list[_DrawnBone]) -> None:
    """Add bones: first the dark rims of all, then the colors, so that no rim crosses a neighbor."""
    for rim in (True, False):
        for kind, color, start, end in bones:
            width, opacity = person.width * _BONE_WIDTHS[kind], 1.0
            if kind == "hand":
                thin, thick = sorted((person.radii[start], person.radii[end]))
                width = min(width, 1.3 * thick, 1.9 * thin)
            if person.detailed and anatomy.points[start].kind == anatomy.points[end].kind == "head":
                width, opacity = width * 0.5, 0.6
            ends = person.points[start], person.points[end]
            if rim:
                strokes.line(*ends, radius=width / 2 + _rim(width), color=BLACK, opacity=_RIM_OPACITY * opacity)
            else:
                strokes.line(*ends, radius=width / 2, color=color, opacity=opacity)


def _rim(width: float) -> float:
    return max(0.5, 0.16 * width) if width >= 1 else 0.25


def _add_joints(strokes: Strokes, person: _PersonGeometry, anatomy: _Anatomy, kinds: tuple[_Kind, ...]) -> None:
    for i, part in enumerate(anatomy.points):
        if part.kind not in kinds or not person.visible[i]:
            continue
        radius, point = float(person.radii[i]), person.points[i]
        if part.kind == "head" and person.detailed:
            radius *= 0.35
        if part.kind != "face":
            strokes.dot(point, radius=radius + _rim(2 * radius) * 0.8, color=BLACK, opacity=_RIM_OPACITY)
            if radius >= 2.2:  # large enough for a white ring
                strokes.dot(point, radius=radius, color=WHITE)
                radius *= 0.68
        strokes.dot(point, radius=radius, color=part.color)
