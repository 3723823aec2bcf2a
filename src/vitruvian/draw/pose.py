"""Poses: skeletons whose lines follow the size of the person, hands by finger, faces as fine lines and dots.

Line widths follow from the size of the person (its box, or the extent of its points) and of the image. In hands and
faces a dot never fills more than a part of the gap to its neighbours, so that the 238 points of a face stay apart. They
are painted from large to small: bones, joints, feet, fingers, face.

A layout states which of the 308 points each of its points comes from, so one table of colours serves all layouts. Faces
have no bones: their lines are listed by the names of points, of the 308 and of the 68 of COCO-WholeBody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitruvian.draw.boxes import checked_boxes, draw_boxes
from vitruvian.draw.canvas import BLACK, WHITE, Colour, RgbImage, checked_image, diagonal, size_of
from vitruvian.draw.palettes import FINGERS, LEFT, MIDDLE, RIGHT, class_colours, colours_of
from vitruvian.draw.rasterize import Strokes
from vitruvian.errors import InputError
from vitruvian.human import KEYPOINTS, Layout

_Kind = Literal["body", "extra", "head", "foot", "hand", "face"]

_HEAD: Final = ("nose", "left_eye", "right_eye", "left_ear", "right_ear")
# Landmarks without a bone, drawn small.
_EXTRA: Final = ("olecranon", "cubital_fossa", "acromion", "neck")
_SIDES: Final[dict[str, Colour]] = {"left": LEFT, "right": RIGHT, "middle": MIDDLE}

_BROW: Final[dict[str, Colour]] = {"left": (120, 205, 255), "right": (255, 180, 90), "middle": (255, 255, 255)}
_LID: Final[dict[str, Colour]] = {"left": (150, 230, 255), "right": (255, 214, 140), "middle": (255, 255, 255)}
_IRIS: Final[Colour] = (110, 255, 170)
_PUPIL: Final[Colour] = (255, 255, 255)
_NOSE: Final[Colour] = (255, 246, 200)
_OUTER_LIP: Final[Colour] = (255, 96, 140)
_INNER_LIP: Final[Colour] = (255, 170, 190)
_EAR: Final[dict[str, Colour]] = {"left": (120, 190, 255), "right": (255, 165, 80), "middle": (255, 255, 255)}
_PLAIN: Final[Colour] = (244, 244, 250)


@dataclass(frozen=True)
class Line:
    """A line of a face through points of a layout, by index."""

    points: tuple[int, ...]
    colour: Colour


@dataclass(frozen=True)
class _Anatomy:
    """The colours and lines of a layout with J points.

    Attributes:
        kinds: The body part of each point.
        colours: Colour of each point.
        bones: Kind and colour of each bone.
        lines: Lines of the face.
        clusters: Groups of close points of hands and faces, which share a size.
    """

    kinds: tuple[_Kind, ...]
    colours: tuple[Colour, ...]
    bones: tuple[tuple[_Kind, Colour], ...]
    lines: tuple[Line, ...]
    clusters: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=8)
def anatomy_of(layout: Layout) -> _Anatomy:
    """Return the colours and lines of a layout."""
    count = range(len(layout.names))
    kinds = tuple(_kind(layout, i) for i in count)
    sides = tuple(_side(layout, i) for i in count)
    colours = tuple(_point_colour(layout, i, kinds[i], sides[i]) for i in count)
    bones = tuple(_bone(bone.name, kinds[bone.start], kinds[bone.end], sides[bone.start], sides[bone.end])
                  for bone in layout.skeleton)  # fmt: skip
    index = {name: i for i, name in enumerate(layout.names)}
    lines = tuple(
        Line(points=tuple(index[name] for name in names), colour=colour)
        for names, colour in FACE_LINES
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
    features: tuple[tuple[tuple[str, ...], Colour], ...] = (
        (("eyebrow",), _BROW[side]),
        (("lash_line", "eyelid_line", "crease_line"), _LID[side]),
        (("iris",), _IRIS),
        (("pupil",), _PUPIL),
        (("nose", "nostril"), _NOSE),
        (("outer_lip", "outer_corner_of_mouth", "cupid_bow"), _OUTER_LIP),
        (("inner_lip", "inner_corner_of_mouth"), _INNER_LIP),
        (("crus", "helix", "tragus", "concha", "lobe", "between_22_15"), _EAR[side]),
    )
    return next((colour for words, colour in features if any(word in source for word in words)), _PLAIN)


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


def _lash(side: str, line: str, *, ends: bool = True) -> tuple[str, ...]:
    """Return the names along a line of an eye from image left to image right."""
    inner, outer = (f"{side}_{end}_end_of_{line}" for end in ("inner", "outer"))
    if line.endswith("eyelid_line"):
        inner = f"{side}_inner_end_of_{line.replace('eyelid', 'lash')}"  # both start at the inner corner
    middle = [f"{side}_midpoint_{n}_of_{line}" for n in (3, 1, 4, 5, 2, 6)]
    middle.insert(3, f"{side}_centerpoint_of_{line}")
    if not ends:
        return tuple(middle)
    return (outer, *middle, inner) if side == "r" else (inner, *middle, outer)


def _brow(side: str, edge: str) -> tuple[str, ...]:
    start, end = f"{edge}_startpoint_of_{side}_eyebrow", f"end_of_{side}_eyebrow"
    middle = tuple(f"{edge}_midpoint_{n}_of_{side}_eyebrow" for n in (2, 1, 3))
    return (end, *middle, start) if side == "r" else (start, *middle, end)


def _lip(half: str, edge: str, centre: str) -> tuple[str, ...]:
    middle = [f"midpoint_{n}_of_{half}_{edge}_lip" for n in (3, 1, 4, 5, 2, 6)]
    middle.insert(3, centre)
    return (f"r_{edge}_corner_of_mouth", *middle, f"l_{edge}_corner_of_mouth")


def _ring(side: str, what: str) -> tuple[str, ...]:
    hours = ("3", "midpoint_1", "12", "midpoint_4", "9", "midpoint_3", "6", "midpoint_2", "3")
    return tuple(f"{side}_border_of_{what}_{hour}" for hour in hours)


def _ibug(first: int, last: int, *, closed: bool = False) -> tuple[str, ...]:
    names = tuple(f"face-{i}" for i in range(first, last + 1))
    return (*names, names[0]) if closed else names


_SIDE_NAMES: Final = (("l", "left"), ("r", "right"))
FACE_LINES: Final[tuple[tuple[tuple[str, ...], Colour], ...]] = (
    *((_brow(s, edge), _BROW[side]) for s, side in _SIDE_NAMES for edge in ("upper", "lower")),
    *((_lash(s, "upper_crease_line", ends=False), _LID[side]) for s, side in _SIDE_NAMES),
    *((_lash(s, f"{half}_{line}_line"), _LID[side])
      for s, side in _SIDE_NAMES for half in ("upper", "lower") for line in ("eyelid", "lash")),
    *((_ring(s, "iris"), _IRIS) for s, _ in _SIDE_NAMES),
    *((_ring(s, "pupil"), _PUPIL) for s, _ in _SIDE_NAMES),
    (("center_of_nose_root", "midpoint_2_of_nose_bridge", "midpoint_1_of_nose_bridge", "midpoint_3_of_nose_bridge",
      "tip_of_nose_bridge"), _NOSE),
    (("r_outer_corner_of_nose", "outer_corner_of_r_nostril", "inner_corner_of_r_nostril", "bottom_center_of_nose",
      "inner_corner_of_l_nostril", "outer_corner_of_l_nostril", "l_outer_corner_of_nose"), _NOSE),
    (_lip("upper", "outer", "center_of_cupid_bow"), _OUTER_LIP),
    (_lip("lower", "outer", "center_of_lower_outer_lip"), _OUTER_LIP),
    (_lip("upper", "inner", "center_of_upper_inner_lip"), _INNER_LIP),
    (_lip("lower", "inner", "center_of_lower_inner_lip"), _INNER_LIP),
    (_ibug(0, 16), _PLAIN),
    (_ibug(17, 21), _BROW["right"]),
    (_ibug(22, 26), _BROW["left"]),
    (_ibug(27, 30), _NOSE),
    (_ibug(31, 35), _NOSE),
    (_ibug(36, 41, closed=True), _LID["right"]),
    (_ibug(42, 47, closed=True), _LID["left"]),
    (_ibug(48, 59, closed=True), _OUTER_LIP),
    (_ibug(60, 67, closed=True), _INNER_LIP),
)  # fmt: skip
"""Lines of the face: names of points in order, and a colour."""


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
    keypoints: ArrayLike,
    scores: ArrayLike | None = None,
    *,
    layout: Layout,
    threshold: float = 0.3,
    boxes_xyxy: ArrayLike | None = None,
    ids: Sequence[int] | None = None,
    line_width: float | None = None,
) -> RgbImage:
    """Draw the skeletons of people over an image: left blue, right orange, fingers and face in other colours.

    Args:
        image: uint8 [H, W, 3].
        keypoints: [P, J, 2] x, y in pixels; the point (0, 0) is the centre of the first pixel. Points that are not
            finite are left out.
        scores: [P, J]; by default all points are drawn.
        layout: What the J points are, for instance `vitruvian.human.SAPIENS_308`.
        threshold: Points that score less are left out, and so are their bones.
        boxes_xyxy: [P, 4] boxes to draw, which also are the sizes of people; by default the extent of the points.
        ids: [P] identities, written at the box or the highest point.
        line_width: Width of the bones of the body in pixels; by default it follows the sizes of person and image.
    """
    image = checked_image(image)
    points, weights = _checked_points(keypoints, scores, joints=len(layout.names))
    boxes = None if boxes_xyxy is None else checked_boxes(boxes_xyxy, count=len(points))
    if ids is not None and len(ids) != len(points):
        raise InputError(
            f"ids: expected one for each of {len(points)} people, got {len(ids)}. Pass ids in the order of people."
        )
    if line_width is not None and not (math.isfinite(line_width) and line_width > 0):
        raise InputError(
            f"line_width: expected a number of pixels over 0, got {line_width}. Leave it out for the default."
        )
    anatomy = anatomy_of(layout)
    tones = class_colours(len(points)) if ids is None else colours_of(ids)
    canvas = np.array(image, order="C")
    for i, (person, weight) in enumerate(zip(points, weights, strict=True)):
        visible = np.isfinite(person).all(1) & (weight >= threshold)
        box = None if boxes is None else boxes[i]
        pen = _pen(person, visible, anatomy, size_hw=size_of(image), box=box, line_width=line_width)
        _draw_person(canvas, pen, anatomy, layout)
    if boxes is not None or ids is not None:
        around = _extents(points, weights >= threshold) if boxes is None else boxes
        canvas = draw_boxes(canvas, around, ids=ids, colours=tones, outline=boxes is not None)
    return canvas


def _checked_points(keypoints: ArrayLike, scores: ArrayLike | None, *, joints: int) -> tuple[_Points, _Points]:
    points = np.asarray(keypoints, dtype=np.float64)
    if points.size == 0 and points.ndim < 3:
        points = points.reshape(0, joints, 2)
    if points.ndim != 3 or points.shape[1:] != (joints, 2):
        raise InputError(
            f"keypoints: expected the shape [P, {joints}, 2], got {list(points.shape)}. "
            "Pass one row for each person, and the layout of these points."
        )
    weights = np.ones(points.shape[:2]) if scores is None else np.asarray(scores, dtype=np.float64)
    if weights.size == 0:
        weights = weights.reshape(points.shape[:2])
    if weights.shape != points.shape[:2]:
        raise InputError(
            f"scores: expected the shape {list(points.shape[:2])}, got {list(weights.shape)}. Pass one for each."
        )
    return points, weights


def _extents(points: _Points, visible: NDArray[np.bool_]) -> _Points:
    """Return boxes around the visible points: [P, J, 2] -> [P, 4], NaN where there are none."""
    boxes = np.full((len(points), 4), np.nan)
    for i, (person, some) in enumerate(zip(points, visible & np.isfinite(points).all(-1), strict=True)):
        if some.any():
            boxes[i] = [*person[some].min(0), *person[some].max(0)]
    return boxes


def _pen(
    points: _Points,
    visible: NDArray[np.bool_],
    anatomy: _Anatomy,
    *,
    size_hw: tuple[int, int],
    box: _Points | None,
    line_width: float | None,
) -> _Pen:
    longest, shortest = _extent(points[visible], box, size_hw)
    person = math.sqrt(longest * max(shortest, longest / 3))  # a side view is not thinner
    across = diagonal(size_hw)
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


def _extent(points: _Points, box: _Points | None, size_hw: tuple[int, int]) -> tuple[float, float]:
    """Return the longer and shorter side of a person: of its box, or of its points [N, 2] inside of the image."""
    sides = np.zeros(2)
    if box is not None and np.isfinite(box).all():
        sides = np.abs(box[2:] - box[:2])
    elif len(points):
        limits = np.array(size_hw[::-1])
        sides = np.ptp(np.clip(points, 0, limits), axis=0)
    return float(sides.max()), float(sides.min())


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
    for line in anatomy.lines:
        for start, end in itertools.pairwise(line.points):
            if pen.visible[start] and pen.visible[end]:
                radius = 0.42 * min(pen.radii[start], pen.radii[end])
                strokes.line(pen.points[start], pen.points[end], radius=radius, colour=line.colour, opacity=0.9)
    _add_joints(strokes, pen, anatomy, ("face",))
    strokes.paint(canvas)


def _add_bones(strokes: Strokes, pen: _Pen, bones: list[tuple[_Kind, Sequence[int], int, int]]) -> None:
    """Add bones: first the dark rims of all, then the colours, so that no rim crosses a neighbour."""
    for rim in (True, False):
        for kind, colour, start, end in bones:
            width, opacity = pen.width * _BONE[kind], 1.0
            if kind == "hand":
                width = min(
                    width, 1.3 * max(pen.radii[start], pen.radii[end]), 1.9 * min(pen.radii[start], pen.radii[end])
                )
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
