"""What the points of a layout are to the pen: body, foot, hand or face, their colours, and the lines of a face.

A layout says which of the 308 points each of its own comes from, so one table serves them all. Faces have no bones;
their lines are given here by the names of their points, for the 308 and for the 68 of COCO-WholeBody.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from vitruvian.draw.canvas import Colour
from vitruvian.draw.palettes import FINGERS, LEFT, MIDDLE, RIGHT
from vitruvian.human import KEYPOINTS, Layout

Kind = Literal["body", "extra", "head", "foot", "hand", "face"]

HEAD: Final = ("nose", "left_eye", "right_eye", "left_ear", "right_ear")
# Landmarks beside a joint or on a limb: shown small, since no bone ends there.
EXTRA: Final = ("olecranon", "cubital_fossa", "acromion", "neck")
SIDES: Final[dict[str, Colour]] = {"left": LEFT, "right": RIGHT, "middle": MIDDLE}

BROW: Final[dict[str, Colour]] = {"left": (120, 205, 255), "right": (255, 180, 90), "middle": (255, 255, 255)}
LID: Final[dict[str, Colour]] = {"left": (150, 230, 255), "right": (255, 214, 140), "middle": (255, 255, 255)}
IRIS: Final[Colour] = (110, 255, 170)
PUPIL: Final[Colour] = (255, 255, 255)
NOSE: Final[Colour] = (255, 246, 200)
OUTER_LIP: Final[Colour] = (255, 96, 140)
INNER_LIP: Final[Colour] = (255, 170, 190)
EAR: Final[dict[str, Colour]] = {"left": (120, 190, 255), "right": (255, 165, 80), "middle": (255, 255, 255)}
PLAIN: Final[Colour] = (244, 244, 250)


@dataclass(frozen=True)
class Line:
    """A line of a face through points of a layout, given by their indices."""

    points: tuple[int, ...]
    colour: Colour


@dataclass(frozen=True)
class Anatomy:
    """What drawing needs to know of a layout with J points.

    Attributes:
        kinds: What each point belongs to.
        sides: The side each point is on.
        colours: Colour of each point.
        bones: For each bone of the layout its kind and its colour.
        lines: Lines of the face.
        clusters: Points of hands and faces that lie close together, in groups of one feature: they share a size.
    """

    kinds: tuple[Kind, ...]
    sides: tuple[str, ...]
    colours: tuple[Colour, ...]
    bones: tuple[tuple[Kind, Colour], ...]
    lines: tuple[Line, ...]
    clusters: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=8)
def anatomy_of(layout: Layout) -> Anatomy:
    """Work out what the points, bones and face lines of a layout are."""
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
    return Anatomy(kinds, sides, colours, bones, lines, _clusters(layout, kinds, sides))


def _kind(layout: Layout, i: int) -> Kind:
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
        if point.name in HEAD:
            return "head"
        return "extra" if point.name.endswith(EXTRA) else "body"
    return "face"


def _side(layout: Layout, i: int) -> str:
    sides = {KEYPOINTS[source].side for source in layout.sources[i]}
    return sides.pop() if len(sides) == 1 else "middle"


def _point_colour(layout: Layout, i: int, kind: Kind, side: str) -> Colour:
    source = KEYPOINTS[layout.sources[i][0]].name if layout.sources[i] else ""
    if kind == "hand":
        return next((colour for finger, colour in FINGERS.items() if finger in source), SIDES[side])
    if kind != "face":
        return SIDES[side]
    features: tuple[tuple[tuple[str, ...], Colour], ...] = (
        (("eyebrow",), BROW[side]),
        (("lash_line", "eyelid_line", "crease_line"), LID[side]),
        (("iris",), IRIS),
        (("pupil",), PUPIL),
        (("nose", "nostril"), NOSE),
        (("outer_lip", "outer_corner_of_mouth", "cupid_bow"), OUTER_LIP),
        (("inner_lip", "inner_corner_of_mouth"), INNER_LIP),
        (("crus", "helix", "tragus", "concha", "lobe", "between_22_15"), EAR[side]),
    )
    return next((colour for words, colour in features if any(word in source for word in words)), PLAIN)


def _bone(name: str, start: Kind, end: Kind, start_side: str, end_side: str) -> tuple[Kind, Colour]:
    kinds = {start, end}
    side = start_side if start_side == end_side else "middle"
    if "hand" in kinds:
        return "hand", next(colour for finger, colour in FINGERS.items() if finger in name)
    if "foot" in kinds:
        return "foot", SIDES[side]
    return ("head" if "head" in kinds else "body"), SIDES[side]


def _clusters(layout: Layout, kinds: tuple[Kind, ...], sides: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Group points of hands by hand, and points of faces by feature, since each feature has its own spacing."""
    found: dict[str, list[int]] = {}
    for i, (name, kind) in enumerate(zip(layout.names, kinds, strict=True)):
        if kind == "hand":
            found.setdefault(f"{sides[i]} hand", []).append(i)
        elif kind == "face":
            found.setdefault(f"{sides[i]} {_feature(name)}", []).append(i)
    return tuple(tuple(points) for points in found.values())


def _feature(name: str) -> str:
    for words in (("pupil",), ("iris",), ("lash_line", "eyelid_line", "crease_line"), ("lip", "mouth", "cupid")):
        if any(word in name for word in words):
            return words[0]
    return "rest"


def _lash(side: str, line: str, *, ends: bool = True) -> tuple[str, ...]:
    """Names along a line of an eye from image left to image right."""
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
    *((_brow(s, edge), BROW[side]) for s, side in _SIDE_NAMES for edge in ("upper", "lower")),
    *((_lash(s, "upper_crease_line", ends=False), LID[side]) for s, side in _SIDE_NAMES),
    *((_lash(s, f"{half}_{line}_line"), LID[side])
      for s, side in _SIDE_NAMES for half in ("upper", "lower") for line in ("eyelid", "lash")),
    *((_ring(s, "iris"), IRIS) for s, _ in _SIDE_NAMES),
    *((_ring(s, "pupil"), PUPIL) for s, _ in _SIDE_NAMES),
    (("center_of_nose_root", "midpoint_2_of_nose_bridge", "midpoint_1_of_nose_bridge", "midpoint_3_of_nose_bridge",
      "tip_of_nose_bridge"), NOSE),
    (("r_outer_corner_of_nose", "outer_corner_of_r_nostril", "inner_corner_of_r_nostril", "bottom_center_of_nose",
      "inner_corner_of_l_nostril", "outer_corner_of_l_nostril", "l_outer_corner_of_nose"), NOSE),
    (_lip("upper", "outer", "center_of_cupid_bow"), OUTER_LIP),
    (_lip("lower", "outer", "center_of_lower_outer_lip"), OUTER_LIP),
    (_lip("upper", "inner", "center_of_upper_inner_lip"), INNER_LIP),
    (_lip("lower", "inner", "center_of_lower_inner_lip"), INNER_LIP),
    (_ibug(0, 16), PLAIN),
    (_ibug(17, 21), BROW["right"]),
    (_ibug(22, 26), BROW["left"]),
    (_ibug(27, 30), NOSE),
    (_ibug(31, 35), NOSE),
    (_ibug(36, 41, closed=True), LID["right"]),
    (_ibug(42, 47, closed=True), LID["left"]),
    (_ibug(48, 59, closed=True), OUTER_LIP),
    (_ibug(60, 67, closed=True), INNER_LIP),
)  # fmt: skip
"""Lines of the face: names of the points in order, and a colour."""
