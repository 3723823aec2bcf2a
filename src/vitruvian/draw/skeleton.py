"""Poses: skeletons whose lines fit the person and the picture, hands by finger, faces as fine lines and dots.

How thick things are follows from the person's size (its box, or the extent of its points), within what the picture can
show. Hands and faces have sizes of their own: a dot never fills more than a part of the gap to its neighbours, so that
a face of 238 points stays a face. Painted from large to small: bones, joints, feet, fingers, face.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw.anatomy import Anatomy, Kind, anatomy_of
from vitruvian.draw.boxes import checked_boxes, draw_boxes
from vitruvian.draw.canvas import BLACK, WHITE, Picture, checked_picture, diagonal, size_of
from vitruvian.draw.palettes import class_colours, colours_of
from vitruvian.draw.strokes import Strokes
from vitruvian.errors import InputError
from vitruvian.human import Layout

Points = NDArray[np.float64]
PoseColours = Literal["sides", "layout", "people"]

_LINE = 0.0135  # width of a bone in person sizes
_HALO = 0.45  # opacity of the dark rim that keeps lines readable on any ground
# Width of bones and radius of joints by kind, in widths of a bone of the body.
_BONE: dict[Kind, float] = {"body": 1.0, "head": 0.7, "foot": 0.8, "hand": 0.5, "face": 0.3, "extra": 1.0}
_JOINT: dict[Kind, float] = {"body": 0.95, "head": 0.7, "foot": 0.65, "hand": 0.42, "face": 0.4, "extra": 0.5}


@dataclass(frozen=True)
class _Pen:
    """One person's points, those worth drawing, and sizes in pixels."""

    points: Points  # [J, 2]
    seen: NDArray[np.bool_]  # [J]
    width: float  # of a bone of the body
    radii: NDArray[np.float64]  # [J] of the joints
    head: frozenset[int]  # indices of nose, eyes and ears
    detailed: bool  # the face shows so many points that the bones of the head would hide them


def draw_pose(
    picture: Picture,
    keypoints: Any,
    scores: Any = None,
    *,
    layout: Layout,
    threshold: float = 0.3,
    boxes_xyxy: Any = None,
    ids: Sequence[int] | None = None,
    line_width: float | None = None,
    colours: PoseColours = "sides",
) -> Picture:
    """Draw people's skeletons over a picture.

    Args:
        picture: uint8 [H, W, 3].
        keypoints: [P, J, 2] x, y in pixels; the point (0, 0) is the centre of the first pixel. Points that are not
            finite are left out.
        scores: [P, J]; None: every point counts.
        layout: What the J points are, for instance `vitruvian.human.SAPIENS_308`.
        threshold: Points that score less are left out, and so are their bones.
        boxes_xyxy: [P, 4] boxes to draw and to take people's sizes from; without them the points give the size.
        ids: [P] identities, written at each person's box or highest point.
        line_width: Width of the body's bones in pixels; None: fits the person and the picture.
        colours: "sides": left blue, right orange, fingers and features of the face in their own colours; "layout":
            the bones' colours in the layout; "people": one colour a person (by identity where there is one).
    """
    picture = checked_picture(picture)
    points, weights = _checked_points(keypoints, scores, joints=len(layout.names))
    boxes = None if boxes_xyxy is None else checked_boxes(boxes_xyxy, count=len(points))
    if ids is not None and len(ids) != len(points):
        raise InputError(f"ids: expected one a person, {len(points)}, got {len(ids)}. Pass ids in the order of people.")
    if line_width is not None and not (math.isfinite(line_width) and line_width > 0):
        raise InputError(f"line_width: expected a number of pixels over 0, got {line_width}. Leave it out to fit.")
    if colours not in ("sides", "layout", "people"):
        raise InputError(f"colours: expected sides, layout or people, got {colours!r}. Choose one of these.")
    anatomy = anatomy_of(layout)
    tones = class_colours(len(points)) if ids is None else colours_of(ids)
    canvas = np.array(picture, order="C")
    for i, (person, weight) in enumerate(zip(points, weights, strict=True)):
        seen = np.isfinite(person).all(1) & (weight >= threshold)
        box = None if boxes is None else boxes[i]
        pen = _pen(person, seen, anatomy, size_hw=size_of(picture), box=box, line_width=line_width)
        tone = tuple(int(value) for value in tones[i]) if colours == "people" else None
        _draw_person(canvas, pen, anatomy, layout, tone=tone, plain=colours == "layout")
    if boxes is not None or ids is not None:
        around = _extents(points, weights >= threshold) if boxes is None else boxes
        canvas = draw_boxes(canvas, around, ids=ids, colours=tones, outline=boxes is not None)
    return canvas


def _checked_points(keypoints: Any, scores: Any, *, joints: int) -> tuple[Points, Points]:
    points = np.asarray(keypoints, dtype=np.float64)
    if points.size == 0 and points.ndim < 3:
        points = points.reshape(0, joints, 2)
    if points.ndim != 3 or points.shape[1:] != (joints, 2):
        raise InputError(
            f"keypoints: expected the shape [P, {joints}, 2], got {list(points.shape)}. "
            "Give one row a person, and the layout that these points are in."
        )
    weights = np.ones(points.shape[:2]) if scores is None else np.asarray(scores, dtype=np.float64)
    if weights.size == 0:
        weights = weights.reshape(points.shape[:2])
    if weights.shape != points.shape[:2]:
        raise InputError(
            f"scores: expected the shape {list(points.shape[:2])}, got {list(weights.shape)}. One score a keypoint."
        )
    return points, weights


def _extents(points: Points, seen: NDArray[np.bool_]) -> Points:
    """Boxes around the points seen, [P, J, 2] -> [P, 4]; not a number where there are none."""
    boxes = np.full((len(points), 4), np.nan)
    for i, (person, some) in enumerate(zip(points, seen & np.isfinite(points).all(-1), strict=True)):
        if some.any():
            boxes[i] = [*person[some].min(0), *person[some].max(0)]
    return boxes


def _pen(
    points: Points,
    seen: NDArray[np.bool_],
    anatomy: Anatomy,
    *,
    size_hw: tuple[int, int],
    box: Points | None,
    line_width: float | None,
) -> _Pen:
    longest, shortest = _extent(points[seen], box, size_hw)
    person = math.sqrt(longest * max(shortest, longest / 3))  # a person seen edge-on is not thinner
    across = diagonal(size_hw)
    width = line_width or float(np.clip(person * _LINE, max(1.4, across * 0.001), max(1.6, across * 0.007)))
    radii = np.array([_JOINT[kind] for kind in anatomy.kinds]) * width
    for cluster in anatomy.clusters:
        members = [i for i in cluster if seen[i]]
        gap = _gap(points[members])
        share = 0.2 if anatomy.kinds[cluster[0]] == "hand" else 0.25
        radii[list(cluster)] = np.minimum(radii[list(cluster)], max(0.12, share * gap))
    faces = sum(bool(seen[i]) for i, kind in enumerate(anatomy.kinds) if kind == "face")
    head = frozenset(i for i, kind in enumerate(anatomy.kinds) if kind == "head")
    return _Pen(points=points, seen=seen, width=width, radii=radii, head=head, detailed=faces >= 12)


def _extent(points: Points, box: Points | None, size_hw: tuple[int, int]) -> tuple[float, float]:
    """Longer and shorter side of a person: of its box, or around its points [N, 2], as far as the picture goes."""
    sides = np.zeros(2)
    if box is not None and np.isfinite(box).all():
        sides = np.abs(box[2:] - box[:2])
    elif len(points):
        limits = np.array(size_hw[::-1])
        sides = np.ptp(np.clip(points, 0, limits), axis=0)
    return float(sides.max()), float(sides.min())


def _gap(points: Points) -> float:
    """Typical distance from a point to its nearest neighbour, [N, 2]; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    apart = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))  # [N, N]
    np.fill_diagonal(apart, np.inf)
    return float(np.median(apart.min(1)))


def _draw_person(
    canvas: Picture, pen: _Pen, anatomy: Anatomy, layout: Layout, *, tone: tuple[int, ...] | None, plain: bool
) -> None:
    strokes = Strokes()
    bones = [
        (kind, tone or (bone.colour if plain else colour), bone.start, bone.end)
        for bone, (kind, colour) in zip(layout.skeleton, anatomy.bones, strict=True)
        if pen.seen[bone.start] and pen.seen[bone.end]
    ]
    _add_bones(strokes, pen, [bone for bone in bones if bone[0] != "hand"])
    joint_colours = _joint_colours(anatomy, layout, tone=tone, plain=plain)
    _add_joints(strokes, pen, anatomy, joint_colours, ("body", "extra", "foot", "head"))
    _add_bones(strokes, pen, [bone for bone in bones if bone[0] == "hand"])
    _add_joints(strokes, pen, anatomy, joint_colours, ("hand",))
    for line in anatomy.lines:
        for start, end in itertools.pairwise(line.points):
            if pen.seen[start] and pen.seen[end]:
                radius = 0.42 * min(pen.radii[start], pen.radii[end])
                strokes.line(pen.points[start], pen.points[end], radius=radius, colour=tone or line.colour, opacity=0.9)
    _add_joints(strokes, pen, anatomy, joint_colours, ("face",))
    strokes.paint(canvas)


def _joint_colours(
    anatomy: Anatomy, layout: Layout, *, tone: tuple[int, ...] | None, plain: bool
) -> Sequence[Sequence[int]]:
    if tone is not None:
        return [tone] * len(anatomy.kinds)
    if not plain:
        return anatomy.colours
    ends = {end: bone.colour for bone in layout.skeleton for end in (bone.start, bone.end)}
    return [ends.get(i, colour) for i, colour in enumerate(anatomy.colours)]


def _add_bones(strokes: Strokes, pen: _Pen, bones: list[tuple[Kind, Sequence[int], int, int]]) -> None:
    """Add bones: first a dark rim around all of them, then their colours, so that rims never cross a neighbour."""
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


def _add_joints(
    strokes: Strokes, pen: _Pen, anatomy: Anatomy, colours: Sequence[Sequence[int]], kinds: tuple[Kind, ...]
) -> None:
    for i, kind in enumerate(anatomy.kinds):
        if kind not in kinds or not pen.seen[i]:
            continue
        radius, point = float(pen.radii[i]), pen.points[i]
        if kind == "head" and pen.detailed:
            radius *= 0.35
        if kind == "face":
            strokes.dot(point, radius=radius, colour=colours[i])
            continue
        strokes.dot(point, radius=radius + _rim(2 * radius) * 0.8, colour=BLACK, opacity=_HALO)
        if radius >= 2.2:  # room for a white ring
            strokes.dot(point, radius=radius, colour=WHITE)
            strokes.dot(point, radius=radius * 0.68, colour=colours[i])
        else:
            strokes.dot(point, radius=radius, colour=colours[i])
