"""The 29 body parts of Sapiens2: names, sides, kinds, flips and colors. The table is ``parts29.json``.

The id of a part is its logit channel and its value in a label map. Left and right are always the person's own. The
colors are our own: one hue for each pair, light on the left and dark on the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from vitruvian.human.keypoints import Color, Side, read_table

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
        color: RGB, 0 to 255.
    """

    id: int
    name: str
    kind: Kind
    side: Side
    swap: int
    color: Color


PARTS: Final[tuple[Part, ...]] = tuple(
    Part(i, name, kind, side, swap, (r, g, b))
    for i, (name, kind, side, swap, (r, g, b)) in enumerate(read_table("parts29.json"))
)
"""All 29 parts in the order of the logits."""

PART_NAMES: Final[tuple[str, ...]] = tuple(part.name for part in PARTS)
"""Names in the order of the logits."""

PART_INDEX: Final[dict[str, int]] = {part.name: part.id for part in PARTS}
"""Name to id."""

PART_COLORS: Final[tuple[Color, ...]] = tuple(part.color for part in PARTS)
"""RGB of each part, a palette for label maps."""

PART_FLIP_PERMUTATION: Final[tuple[int, ...]] = tuple(part.swap for part in PARTS)
"""After a horizontal flip of the image, channel (or label) i is what PART_FLIP_PERMUTATION[i] was before."""
