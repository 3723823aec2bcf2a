"""The 29 body parts of Sapiens2: names, sides, kinds, flips and colours.

The id of a part is its logit channel and its value in a label map. Left and right are always the person's own. The
colours are our own: one hue for each pair, light on the left and dark on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from vitruvian.human.keypoints import Colour, Side, side_of

Kind = Literal["background", "clothing", "skin", "hair", "mouth"]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the 29 classes.

    Attributes:
        id: Logit channel and label value, 0 to 28.
        name: Name in the Sapiens2 convention.
        kind: "clothing" is everything worn (glasses and shoes too), "mouth" lips, teeth and tongue.
        side: The person's own side; "middle" where there is only one.
        swap: Id of its mirror image; its own id for parts in the middle.
        colour: RGB, 0 to 255.
    """

    id: int
    name: str
    kind: Kind
    side: Side
    swap: int
    colour: Colour


_TABLE: Final[tuple[tuple[str, Kind, Colour], ...]] = (
    ("Background", "background", (0, 0, 0)),
    ("Apparel", "clothing", (240, 228, 66)),
    ("Eyeglass", "clothing", (64, 224, 208)),
    ("Face_Neck", "skin", (255, 205, 178)),
    ("Hair", "hair", (122, 72, 40)),
    ("Left_Foot", "skin", (72, 190, 240)),
    ("Left_Hand", "skin", (255, 170, 80)),
    ("Left_Lower_Arm", "skin", (255, 140, 170)),
    ("Left_Lower_Leg", "skin", (110, 150, 254)),
    ("Left_Shoe", "clothing", (200, 200, 214)),
    ("Left_Sock", "clothing", (180, 235, 150)),
    ("Left_Upper_Arm", "skin", (240, 130, 245)),
    ("Left_Upper_Leg", "skin", (180, 160, 255)),
    ("Lower_Clothing", "clothing", (20, 96, 84)),
    ("Right_Foot", "skin", (0, 110, 150)),
    ("Right_Hand", "skin", (200, 105, 0)),
    ("Right_Lower_Arm", "skin", (190, 50, 105)),
    ("Right_Lower_Leg", "skin", (30, 70, 190)),
    ("Right_Shoe", "clothing", (115, 115, 130)),
    ("Right_Sock", "clothing", (100, 160, 60)),
    ("Right_Upper_Arm", "skin", (150, 40, 160)),
    ("Right_Upper_Leg", "skin", (100, 60, 220)),
    ("Torso", "skin", (216, 150, 125)),
    ("Upper_Clothing", "clothing", (40, 185, 110)),
    ("Lower_Lip", "mouth", (200, 30, 45)),
    ("Upper_Lip", "mouth", (250, 90, 80)),
    ("Lower_Teeth", "mouth", (190, 236, 236)),
    ("Upper_Teeth", "mouth", (255, 255, 255)),
    ("Tongue", "mouth", (125, 0, 40)),
)
_IDS: Final[dict[str, int]] = {name: i for i, (name, _, _) in enumerate(_TABLE)}
_SWAPPED = {f"{a}_{name.partition('_')[2]}": name for a, b in (("Left", "Right"), ("Right", "Left"))
            for name in _IDS if name.startswith(f"{b}_")}  # fmt: skip


PARTS: Final[tuple[Part, ...]] = tuple(
    Part(id=i, name=name, kind=kind, side=side_of(name.lower()), swap=_IDS[_SWAPPED.get(name, name)], colour=colour)
    for i, (name, kind, colour) in enumerate(_TABLE)
)
"""All 29 parts in the order of the logits."""

PART_NAMES: Final[tuple[str, ...]] = tuple(part.name for part in PARTS)
"""Names in the order of the logits."""

PART_COLOURS: Final[tuple[Colour, ...]] = tuple(part.colour for part in PARTS)
"""RGB of each part, a palette for label maps."""

PART_FLIP_PERMUTATION: Final[tuple[int, ...]] = tuple(part.swap for part in PARTS)
"""After a horizontal flip of the image, channel (or label) i is what PART_FLIP_PERMUTATION[i] was before."""

PART_GROUPS: Final[dict[str, tuple[int, ...]]] = {
    **{
        kind: tuple(part.id for part in PARTS if part.kind == kind)
        for kind in ("background", "clothing", "skin", "hair", "mouth")
    },
    "person": tuple(part.id for part in PARTS if part.kind != "background"),
    "left": tuple(part.id for part in PARTS if part.side == "left"),
    "right": tuple(part.id for part in PARTS if part.side == "right"),
    "arms": tuple(part.id for part in PARTS if part.name.endswith(("_Arm", "_Hand"))),
    "legs": tuple(part.id for part in PARTS if part.name.endswith(("_Leg", "_Foot"))),
    "head": tuple(_IDS[name] for name in ("Eyeglass", "Face_Neck", "Hair"))
    + tuple(part.id for part in PARTS if part.kind == "mouth"),
}
"""Ids by kind (each part has one), by side, and for limbs and head; "person" is everything but the background."""


def id2label(names: Sequence[str] = PART_NAMES) -> dict[int, str]:
    """Return the ``id2label`` of a model config for these class names (by default the 29 parts)."""
    return dict(enumerate(names))


def label2id(names: Sequence[str] = PART_NAMES) -> dict[str, int]:
    """Return the ``label2id`` of a model config for these class names (by default the 29 parts)."""
    return {name: i for i, name in enumerate(names)}
