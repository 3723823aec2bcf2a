"""Poses: skeletons whose lines follow the size of the person, hands by finger, faces as fine lines and dots.

Line widths follow from the size of the person (its box, or the extent of its points) and of the image. In hands and
faces a dot never fills more than a part of the gap to its neighbours, so that the 238 points of a face stay apart. They
are painted from large to small: bones, joints, feet, fingers, face.

A layout states which of the 308 points each of its points comes from, so one table of colours serves all layouts. Faces
have no bones: their lines are `vitruvian.human.FACE_LINES`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw.boxes import draw_boxes, enclosing_boxes
from vitruvian.draw.canvas import BLACK, WHITE, Colour, RgbImage, size_of
from vitruvian.draw.palettes import FINGERS, LEFT, MIDDLE, RIGHT
from vitruvian.draw.rasterize import Strokes
from vitruvian.errors import InputError
from vitruvian.human import FACE_LINES, KEYPOINTS, Layout

_Kind = Literal["body", "extra", "head", "foot", "hand", "face"]

_HEAD: Final = ("nose", "left_eye", "right_eye", "left_ear", "right_ear")
# Landmarks without a bone, drawn small.
_EXTRA: Final = ("olecranon", "cubital_fossa", "acromion", "neck")
_SIDES: Final[dict[str, Colour]] = {"left": LEFT, "right": RIGHT, "middle": MIDDLE}

_FACE: Final[dict[str, Colour]] = {
    "left_brow": (120, 205, 255), "right_brow": (255, 180, 90),
    "left_lid": (150, 230, 255), "right_lid": (255, 214, 140),
    "left_ear": (120, 190, 255), "right_ear": (255, 165, 80),
    "iris": (110, 255, 170), "pupil": WHITE, "nose": (255, 246, 200),
    "outer_lip": (255, 96, 140), "inner_lip": (255, 170, 190), "plain": (244, 244, 250),
}  # fmt: skip
# Words in the names of points of a face, and the feature that they belong to.
_FEATURES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("brow", ("eyebrow",)),
    ("lid", ("lash_line", "eyelid_line", "crease_line")),
    ("iris", ("iris",)),
    ("pupil", ("pupil",)),
    ("nose", ("nose", "nostril")),
    ("outer_lip", ("outer_lip", "outer_corner_of_mouth", "cupid_bow")),
    ("inner_lip", ("inner_lip", "inner_corner_of_mouth")),
    ("ear", ("crus", "helix", "tragus", "concha", "lobe", "between_22_15")),
)


@dataclass(frozen=True)
class _Anatomy:
    """The colours and lines of a layout with J points.

    Attributes:
        kinds: The body part of each point.
        colours: Colour of each point.
        bones: Kind and colour of each bone.
        lines: Lines of the face: the indices of their points, and their colour.
        clusters: Groups of close points of hands and faces, which share a size.
    """

    kinds: tuple[_Kind, ...]
    colours: tuple[Colour, ...]
    bones: tuple[tuple[_Kind, Colour], ...]
    lines: tuple[tuple[tuple[int, ...], Colour], ...]
    clusters: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=8)
def _anatomy_of(layout: Layout) -> _Anatomy:
    """Return the colours and lines of a layout."""
    count = range(len(layout.names))
    kinds = tuple(_kind(layout, i) for i in count)
    sides = tuple(_side(layout, i) for i in count)
    colours = tuple(_point_colour(layout, i, kinds[i], sides[i]) for i in count)
    bones = tuple(_bone(bone.name, kinds[bone.start], kinds[bone.end], sides[bone.start], sides[bone.end])
                  for bone in layout.skeleton)  # fmt: skip
    index = {name: i for i, name in enumerate(layout.names)}
    lines = tuple(
        (tuple(index[name] for name in names), _FACE[feature])
        for feature, names in FACE_LINES
        if all(name in index for name in names)
    )
    return _Anatomy(kinds, colours, bones, lines, _clusters(layout, kinds, sides))


def _kind(layout: Layout, i: int) -> _Kind:
    name, sources = layout.names[i], layout.sources[i]
    if name.startswith("face-") or not sources:
        return "face"
    if "_hand_" in name:
        return "hand"
    point = KEYPOINTS[sources[0]]
    if point.group in ("left_hand", "right_hand"):
        return "hand"
    if point.group == "feet":
        return "foot"
    if point.group == "body":
        if point.name in _HEAD:
            return "head"
        return "extra" if point.name.endswith(_EXTRA) else "body"
    return "face"


def _side(layout: Layout, i: int) -> str:
    sides = {KEYPOINTS[source].side for source in layout.sources[i]}
    return sides.pop() if len(sides) == 1 else "middle"


def _point_colour(layout: Layout, i: int, kind: _Kind, side: str) -> Colour:
    source = KEYPOINTS[layout.sources[i][0]].name if layout.sources[i] else ""
    if kind == "hand":
        return next((colour for finger, colour in FINGERS.items() if finger in source), _SIDES[side])
    if kind != "face":
        return _SIDES[side]
    feature = next((feature for feature, words in _FEATURES if any(word in source for word in words)), "plain")
    return _FACE.get(feature) or _FACE.get(f"{side}_{feature}", WHITE)


def _bone(name: str, start: _Kind, end: _Kind, start_side: str, end_side: str) -> tuple[_Kind, Colour]:
    kinds = {start, end}
    side = start_side if start_side == end_side else "middle"
    if "hand" in kinds:
        return "hand", next(colour for finger, colour in FINGERS.items() if finger in name)
    if "foot" in kinds:
        return "foot", _SIDES[side]
    return ("head" if "head" in kinds else "body"), _SIDES[side]


def _clusters(layout: Layout, kinds: tuple[_Kind, ...], sides: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Group the points of hands by hand and those of faces by feature, since the spacing of each differs."""
    groups: dict[str, list[int]] = {}
    for i, (name, kind) in enumerate(zip(layout.names, kinds, strict=True)):
        if kind == "hand":
            groups.setdefault(f"{sides[i]} hand", []).append(i)
        elif kind == "face":
            groups.setdefault(f"{sides[i]} {_feature(name)}", []).append(i)
    return tuple(tuple(points) for points in groups.values())


def _feature(name: str) -> str:
    for words in (("pupil",), ("iris",), ("lash_line", "eyelid_line", "crease_line"), ("lip", "mouth", "cupid")):
        if any(word in name for word in words):
            return words[0]
    return "rest"


_Points = NDArray[np.float64]

_LINE = 0.0135  # width of a bone relative to the size of the person
_HALO = 0.45  # opacity of the dark rim around lines
# Width of bones and radius of joints by kind, relative to a bone of the body.
_BONE: dict[_Kind, float] = {"body": 1.0, "head": 0.7, "foot": 0.8, "hand": 0.5, "face": 0.3, "extra": 1.0}
_JOINT: dict[_Kind, float] = {"body": 0.95, "head": 0.7, "foot": 0.65, "hand": 0.42, "face": 0.4, "extra": 0.5}


@dataclass(frozen=True)
class _Pen:
    """The points of one person, and sizes in pixels."""

    points: _Points  # [J, 2]
    visible: NDArray[np.bool_]  # [J]
    width: float  # of a bone of the body
    radii: NDArray[np.float64]  # [J] of the joints
    head: frozenset[int]  # indices of nose, eyes and ears
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
    """Draw the skeletons of people over an image: left blue, right orange, fingers and face in other colours.

    Args:
        image: uint8 [H, W, 3].
        keypoints: [P, J, 2] x, y in pixels; the point (0, 0) is the centre of the first pixel. Points that are not
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
    anatomy, points = _anatomy_of(layout), keypoints.astype(np.float64)
    visible = np.isfinite(points).all(-1) & (scores >= threshold)  # [P, J]
    canvas = np.array(image, order="C")
    for i in range(len(points)):
        box = None if boxes_xyxy is None else boxes_xyxy[i]
        pen = _pen(points[i], visible[i], anatomy, size_hw=size_of(image), box=box, line_width=line_width)
        _draw_person(canvas, pen, anatomy, layout)
    if boxes_xyxy is not None:
        return draw_boxes(canvas, boxes_xyxy, ids=ids)
    if ids is not None:
        return draw_boxes(canvas, enclosing_boxes(np.where(visible[..., None], points, np.nan)), ids=ids, outline=False)
    return canvas


def _pen(
    points: _Points,
    visible: NDArray[np.bool_],
    anatomy: _Anatomy,
    *,
    size_hw: tuple[int, int],
    box: NDArray[np.floating] | None,
    line_width: float | None,
) -> _Pen:
    sides = np.zeros(2)
    if box is not None and np.isfinite(box).all():
        sides = np.abs(box[2:] - box[:2])
    elif visible.any():
        sides = np.ptp(np.clip(points[visible], 0, size_hw[::-1]), axis=0)
    shortest, longest = sorted(sides.tolist())
    person = math.sqrt(longest * max(shortest, longest / 3))  # a side view is not thinner
    across = math.hypot(*size_hw)
    width = line_width or float(np.clip(person * _LINE, max(1.4, across * 0.001), max(1.6, across * 0.007)))
    radii = np.array([_JOINT[kind] for kind in anatomy.kinds]) * width
    for cluster in anatomy.clusters:
        members = [i for i in cluster if visible[i]]
        gap = _gap(points[members])
        share = 0.2 if anatomy.kinds[cluster[0]] == "hand" else 0.25
        radii[list(cluster)] = np.minimum(radii[list(cluster)], max(0.12, share * gap))
    faces = sum(bool(visible[i]) for i, kind in enumerate(anatomy.kinds) if kind == "face")
    head = frozenset(i for i, kind in enumerate(anatomy.kinds) if kind == "head")
    return _Pen(points=points, visible=visible, width=width, radii=radii, head=head, detailed=faces >= 12)


def _gap(points: _Points) -> float:
    """Return the median distance of points [N, 2] to their nearest neighbours; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    distance = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))  # [N, N]
    np.fill_diagonal(distance, np.inf)
    return float(np.median(distance.min(1)))


def _draw_person(canvas: RgbImage, pen: _Pen, anatomy: _Anatomy, layout: Layout) -> None:
    strokes = Strokes()
    bones = [
        (kind, colour, bone.start, bone.end)
        for bone, (kind, colour) in zip(layout.skeleton, anatomy.bones, strict=True)
        if pen.visible[bone.start] and pen.visible[bone.end]
    ]
    _add_bones(strokes, pen, [bone for bone in bones if bone[0] != "hand"])
    _add_joints(strokes, pen, anatomy, ("body", "extra", "foot", "head"))
    _add_bones(strokes, pen, [bone for bone in bones if bone[0] == "hand"])
    _add_joints(strokes, pen, anatomy, ("hand",))
    for line, colour in anatomy.lines:
        for start, end in itertools.pairwise(line):
            if pen.visible[start] and pen.visible[end]:
                radius = 0.42 * min(pen.radii[start], pen.radii[end])
                strokes.line(pen.points[start], pen.points[end], radius=radius, colour=colour, opacity=0.9)
    _add_joints(strokes, pen, anatomy, ("face",))
    strokes.paint(canvas)


def _add_bones(strokes: Strokes, pen: _Pen, bones: list[tuple[_Kind, Sequence[int], int, int]]) -> None:
    """Add bones: first the dark rims of all, then the colours, so that no rim crosses a neighbour."""
    for rim in (True, False):
        for kind, colour, start, end in bones:
            width, opacity = pen.width * _BONE[kind], 1.0
            if kind == "hand":
                thin, thick = sorted((pen.radii[start], pen.radii[end]))
                width = min(width, 1.3 * thick, 1.9 * thin)
            if pen.detailed and start in pen.head and end in pen.head:
                width, opacity = width * 0.5, 0.6
            ends = pen.points[start], pen.points[end]
            if rim:
                strokes.line(*ends, radius=width / 2 + _rim(width), colour=BLACK, opacity=_HALO * opacity)
            else:
                strokes.line(*ends, radius=width / 2, colour=colour, opacity=opacity)


def _rim(width: float) -> float:
    return max(0.5, 0.16 * width) if width >= 1 else 0.25


def _add_joints(strokes: Strokes, pen: _Pen, anatomy: _Anatomy, kinds: tuple[_Kind, ...]) -> None:
    for i, kind in enumerate(anatomy.kinds):
        if kind not in kinds or not pen.visible[i]:
            continue
        radius, point = float(pen.radii[i]), pen.points[i]
        if kind == "head" and pen.detailed:
            radius *= 0.35
        if kind == "face":
            strokes.dot(point, radius=radius, colour=anatomy.colours[i])
            continue
        strokes.dot(point, radius=radius + _rim(2 * radius) * 0.8, colour=BLACK, opacity=_HALO)
        if radius >= 2.2:  # large enough for a white ring
            strokes.dot(point, radius=radius, colour=WHITE)
            strokes.dot(point, radius=radius * 0.68, colour=anatomy.colours[i])
        else:
            strokes.dot(point, radius=radius, colour=anatomy.colours[i])
