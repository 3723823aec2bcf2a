"""The 29 body parts of Sapiens2: names, sides, kinds, flips and colours. The table is ``parts29.json``.

The id of a part is its logit channel and its value in a label map. Left and right are always the person's own. The
colours are our own: one hue for each pair, light on the left and dark on the right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final, Literal

from vitruvian.human.keypoints import Colour, Side

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


_TABLE = json.loads(resources.files(__package__).joinpath("parts29.json").read_text(encoding="utf-8"))

PARTS: Final[tuple[Part, ...]] = tuple(
    Part(i, name, kind, side, swap, (rgb[0], rgb[1], rgb[2])) for i, (name, kind, side, swap, rgb) in enumerate(_TABLE)
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
    "head": tuple(part.id for part in PARTS if part.kind == "mouth" or part.name in ("Eyeglass", "Face_Neck", "Hair")),
}
"""Ids by kind (each part has one), by side, and for limbs and head; "person" is everything but the background."""


def id2label(names: Sequence[str] = PART_NAMES) -> dict[int, str]:
    """Return the ``id2label`` of a model config for these class names (by default the 29 parts)."""
    return dict(enumerate(names))


def label2id(names: Sequence[str] = PART_NAMES) -> dict[str, int]:
    """Return the ``label2id`` of a model config for these class names (by default the 29 parts)."""
    return {name: i for i, name in enumerate(names)}
