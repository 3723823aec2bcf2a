"""`Semantic`: the class of each pixel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError, near_matches
from vitruvian.results.base import Picture, Result
from vitruvian.results.checks import check_array
from vitruvian.results.label_maps import class_records, class_summary, count_labels

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Semantic(Result):
    """The class of each pixel.

    Attributes:
        labels: Number of the class, int32 [H, W], from 0.
        id2label: Names by number. Numbers without a name are called "class N".
    """

    task: ClassVar[str] = "semantic"
    endings: ClassVar[tuple[str, ...]] = (".png", ".npz", ".json")

    labels: NDArray[np.int32]
    id2label: dict[int, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_array("labels", self.labels, dtype=np.int32, shape=self.size_hw)
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high > 65535:
            raise InputError(f"labels: expected numbers from 0 to 65535, got {low} to {high}.")

    def name(self, label: int) -> str:
        """Return the name of a class."""
        return self.id2label.get(label, f"class {label}")

    def mask(self, name: str) -> NDArray[np.bool_]:
        """Return where a class is, bool [H, W]; names that stand for several numbers give all of them."""
        ids = [label for label, known in self.id2label.items() if known == name]
        if not ids:
            known = self.id2label.values()
            raise InputError(f"class: expected one of {len(known)} names, got {name!r}.{near_matches(name, known)}")
        return np.isin(self.labels, ids)

    def areas(self) -> dict[str, int]:
        """Return how many pixels each class that occurs has, by name."""
        areas: dict[str, int] = {}
        for label, area in count_labels(self.labels).items():
            areas[self.name(label)] = areas.get(self.name(label), 0) + area
        return areas

    def present(self) -> tuple[str, ...]:
        """Return the names of the classes that occur, in the order of their numbers."""
        return tuple(self.areas())

    def colours(self) -> Picture:
        """Return a colour for each number up to the largest that is named or occurs, uint8 [K, 3]."""
        from vitruvian.draw import class_colours

        return class_colours(max(int(self.labels.max()), *self.id2label, 0) + 1)

    def plot(self, *, opacity: float = 0.55, legend: bool = True, outline: bool = True) -> Image:
        """Draw the classes in colours over the picture, with a legend of those that occur beside it."""
        from PIL import Image

        from vitruvian.draw import draw_labels

        names = {label: self.name(label) for label in count_labels(self.labels)}
        drawn = draw_labels(
            self.image,
            self.labels,
            self.colours(),
            names=names,
            opacity=opacity,
            legend=legend,
            outline=outline,
            background=None,
        )
        return Image.fromarray(drawn)

    def write(self, path: Path, ending: str) -> None:
        """Write the numbers as PNG (with a palette up to 255, else 16-bit gray), or NPZ, or JSON with a mask each."""
        from vitruvian.files.pictures import write_indexed_png, write_png16

        if ending != ".png":
            super().write(path, ending)
        elif self.labels.max() < 256:
            write_indexed_png(path, self.labels.astype(np.uint8), self.colours()[:256])
        else:
            write_png16(path, self.labels.astype(np.uint16))

    def info(self) -> dict[str, Any]:
        """Return what there is beside arrays."""
        return super().info() | {"id2label": {str(label): name for label, name in self.id2label.items()}}

    def to_dict(self) -> dict[str, Any]:
        """Return the classes that occur, each with its area and its mask as COCO RLE."""
        names = {label: self.name(label) for label in count_labels(self.labels)}
        return super().to_dict() | {"classes": class_summary(self.labels, names)}

    def to_coco(self, *, image_id: int = 1, first_id: int = 1) -> list[dict[str, Any]]:
        """Return a COCO annotation for each class that occurs."""
        return class_records(self.labels, list(count_labels(self.labels)), image_id=image_id, first_id=first_id)

    def coco_categories(self) -> list[dict[str, Any]]:
        """Return a category for each class that has a name or occurs; its number is the label."""
        ids = sorted({*self.id2label, *count_labels(self.labels)})
        return [{"id": label, "name": self.name(label), "supercategory": "class"} for label in ids]
