"""`LabelMap`: what maps of class numbers share, `Parts` and `Semantic`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.draw import draw_labels
from vitruvian.errors import check_choice
from vitruvian.files.coco import mask_record
from vitruvian.files.images import write_label_png
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.images.label_maps import count_labels
from vitruvian.images.rle import Rle, encode_rle
from vitruvian.images.types import RgbImage
from vitruvian.results.base import Result


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LabelMap(Result):
    """Base of `Parts` and `Semantic`: a map of class numbers with names.

    Attributes:
        labels: Class of each pixel [H, W], from 0.
    """

    extensions: ClassVar[tuple[str, ...]] = (".png", ".npz", ".json")
    background: ClassVar[int | None] = None
    classes_key: ClassVar[str] = "classes"  # key of the classes in `to_dict`
    supercategory: ClassVar[str] = "class"  # `supercategory` of COCO categories

    labels: NDArray[np.integer]

    def palette(self) -> RgbImage:
        """Return a color for each class, uint8 [K, 3]."""
        raise NotImplementedError

    def _names(self) -> dict[int, str]:
        raise NotImplementedError

    def name(self, label: int) -> str:
        """Return the name of a class, "class N" for one without a name."""
        return self._names().get(label, f"class {label}")

    def mask(self, name: str) -> NDArray[np.bool_]:
        """Return the mask of a class, bool [H, W]; of all classes where several have this name."""
        names = self._names()
        check_choice("name", name, names.values(), expected=f"one of {len(names)} {self.classes_key}")
        ids = [label for label, known in names.items() if known == name]
        return np.isin(self.labels, ids)

    def areas(self) -> dict[str, int]:
        """Return the number of pixels of each class that occurs, by name."""
        areas: dict[str, int] = {}
        for label, area in count_labels(self.labels).items():
            areas[self.name(label)] = areas.get(self.name(label), 0) + area
        return areas

    def present(self) -> tuple[str, ...]:
        """Return the names of the classes that occur, in the order of their numbers, the background too."""
        return tuple(self.areas())

    def plot(self, *, opacity: float = 0.55, legend: bool = True, outline: bool = True) -> Image.Image:
        """Draw the classes in colors over the image, with a legend of those that occur beside it."""
        drawn = draw_labels(
            self.image,
            self.labels,
            self.palette(),
            names={label: self.name(label) for label in count_labels(self.labels)},
            opacity=opacity,
            legend=legend,
            outline=outline,
            background=self.background,
        )
        return Image.fromarray(drawn)

    def plot_frame(self, **options: Any) -> Image.Image:
        """Draw the result as `plot` does with these options, without the legend."""
        return self.plot(**options | {"legend": False})

    def write(self, path: Path, extension: str) -> None:
        """Write the numbers as PNG (with a palette up to 255, else 16-bit gray), or NPZ, or JSON with a mask each."""
        if extension == ".png":
            write_label_png(path, self.labels, self.palette())
        else:
            super().write(path, extension)

    def to_dict(self) -> JsonObject:
        """Return the classes that occur (as "parts" or "classes"), each with its area and its mask as COCO RLE."""
        classes = [
            {"id": label, "name": self.name(label), "area": area, "rle": self._rle(label)}
            for label, area in count_labels(self.labels).items()
        ]
        return super().to_dict() | {self.classes_key: classes}

    def to_coco(self, *, image_id: int = 1, first_id: int = 1) -> list[JsonObject]:
        """Return a COCO annotation for each class that occurs, without the background."""
        classes = [label for label in count_labels(self.labels) if label != self.background]
        return [
            mask_record(self._rle(label), image_id=image_id, annotation_id=number, category_id=label)
            for number, label in enumerate(classes, first_id)
        ]

    def coco_categories(self) -> list[JsonObject]:
        """Return a category for each class that has a name or occurs, without the background; its id is the label."""
        ids = sorted({*self._names(), *count_labels(self.labels)} - {self.background})
        return [{"id": label, "name": self.name(label), "supercategory": self.supercategory} for label in ids]

    def _rle(self, label: int) -> Rle:
        return encode_rle(self.labels == label, compress=True)
