"""`Parts`: which body part each pixel shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError, near_matches
from vitruvian.human import PART_COLOURS, PART_NAMES
from vitruvian.results.base import Result
from vitruvian.results.checks import check_array
from vitruvian.results.label_maps import class_records, class_summary, count_labels

if TYPE_CHECKING:
    from PIL.Image import Image


def part_colours() -> NDArray[np.uint8]:
    """The usual colours of the 29 parts: uint8 [29, 3]."""
    return np.array(PART_COLOURS, np.uint8)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Parts(Result):
    """The body part of each pixel. Left and right are the person's own.

    Attributes:
        labels: Number of the part, uint8 [H, W]; 0 is the background.
        names: Names of the K parts, by default the 29 of Sapiens2.
        colours: RGB of each, uint8 [K, 3].
        score: How sure the model is of each pixel, float16 [H, W], 0 to 1.
    """

    task: ClassVar[str] = "parts"
    endings: ClassVar[tuple[str, ...]] = (".png", ".npz", ".json")

    labels: NDArray[np.uint8]
    names: tuple[str, ...] = PART_NAMES
    colours: NDArray[np.uint8] = field(default_factory=part_colours)
    score: NDArray[np.float16] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_array("labels", self.labels, dtype=np.uint8, shape=self.size_hw)
        check_array("colours", self.colours, dtype=np.uint8, shape=(len(self.names), 3))
        if self.score is not None:
            check_array("score", self.score, dtype=np.float16, shape=self.size_hw)
        if self.labels.max() >= len(self.names):
            raise InputError(
                f"labels: expected numbers from 0 to {len(self.names) - 1}, got {self.labels.max()}. Add names for all."
            )

    def mask(self, name: str) -> NDArray[np.bool_]:
        """Return where a part is, bool [H, W]."""
        if name not in self.names:
            raise InputError(f"part: expected one of {', '.join(self.names)}, got {name!r}.{self._near(name)}")
        return np.equal(self.labels, self.names.index(name))

    def areas(self) -> dict[str, int]:
        """Return how many pixels each part that occurs has, by name."""
        return {self.names[label]: area for label, area in count_labels(self.labels).items()}

    def present(self) -> tuple[str, ...]:
        """Return the names of the parts that occur, in the order of their numbers, the background too."""
        return tuple(self.areas())

    def plot(self, *, opacity: float = 0.55, legend: bool = True, outline: bool = True) -> Image:
        """Draw the parts in their colours over the picture, with a legend of those that occur beside it."""
        from PIL import Image

        from vitruvian.draw import draw_labels

        drawn = draw_labels(
            self.image,
            self.labels,
            self.colours,
            names=self.names,
            opacity=opacity,
            legend=legend,
            outline=outline,
        )
        return Image.fromarray(drawn)

    def write(self, path: Path, ending: str) -> None:
        """Write the numbers of the parts as a PNG with their colours as palette, or NPZ, or JSON with a mask each."""
        from vitruvian.files.pictures import write_indexed_png

        if ending == ".png":
            write_indexed_png(path, self.labels, self.colours)
        else:
            super().write(path, ending)

    def info(self) -> dict[str, Any]:
        """Return what there is beside arrays."""
        return super().info() | {"names": list(self.names)}

    def to_dict(self) -> dict[str, Any]:
        """Return the parts that occur, each with its area and its mask as COCO RLE."""
        return super().to_dict() | {"parts": class_summary(self.labels, dict(enumerate(self.names)))}

    def to_coco(self, *, image_id: int = 1, first_id: int = 1) -> list[dict[str, Any]]:
        """Return a COCO annotation for each part that occurs, without the background (number 0)."""
        classes = [label for label in count_labels(self.labels) if label > 0]
        return class_records(self.labels, classes, image_id=image_id, first_id=first_id)

    def coco_categories(self) -> list[dict[str, Any]]:
        """Return a category for each part; its number is the label."""
        return [
            {"id": label, "name": name, "supercategory": "person"} for label, name in enumerate(self.names) if label > 0
        ]

    def _near(self, name: str) -> str:
        folded = {known.lower(): known for known in self.names}
        same = folded.get(name.lower().replace(" ", "_").replace("-", "_"))
        return f" Did you mean {same}?" if same else near_matches(name, self.names)
