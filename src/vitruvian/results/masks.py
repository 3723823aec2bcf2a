"""`Masks`: one mask for each object, by prompt, automatically or by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vitruvian.draw import class_colors, draw_boxes, draw_masks, draw_points
from vitruvian.errors import InputError, check_choice
from vitruvian.files.coco import mask_record
from vitruvian.files.images import write_label_png
from vitruvian.files.labels import yolo_segment_lines
from vitruvian.filesystem.atomic import write_lines
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.images.polygons import Polygon, mask_polygons
from vitruvian.images.rle import Rle, compress_counts, decode_rle, encode_rles, read_rle, rle_area
from vitruvian.images.types import RgbImage, SizeHW
from vitruvian.results.base import Result, array_of, box_window, check_array, rounded_list
from vitruvian.results.supervision import to_detections

if TYPE_CHECKING:
    import supervision

MasksKind = Literal["segment", "masks", "instances", "track"]
# name in the mask-generation pipeline of transformers -> attribute
_TRANSFORMERS_NAMES = {"masks": "masks", "scores": "scores", "rle_mask": "rles", "bounding_boxes": "boxes_xyxy"}
_OBJECT_CATEGORY = 1  # COCO category of masks without classes


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Masks(Result):
    """Masks of N objects; they may overlap.

    Attributes:
        kind: The task: "segment" (by prompts), "masks" (everything), "instances" (by class) or "track".
        rles: The masks as COCO RLE, N of them, counts as strings. The constructor also takes RLE of any form or an
            array bool [N, H, W]; `masks` decodes them.
        scores: Confidence of the model, float32 [N].
        boxes_xyxy: Corners, float32 [N, 4].
        label_ids: Class of each, int64 [N], where there are classes.
        label_names: Name of each class, N of them.
    """

    task = "segment"
    extensions = (".json", ".npz", ".png", ".txt", ".crops.zip")
    info_fields = ("label_names",)

    kind: MasksKind
    rles: Sequence[Rle] | NDArray[np.bool_]
    scores: NDArray[np.float32] = field(metadata=array_of(np.float32, "N"))
    boxes_xyxy: NDArray[np.float32] = field(metadata=array_of(np.float32, "N", 4))
    label_ids: NDArray[np.int64] | None = field(default=None, metadata=array_of(np.int64, "N"))
    label_names: tuple[str, ...] | None = None

    def _convert_fields(self) -> None:
        check_choice("kind", self.kind, get_args(MasksKind))
        object.__setattr__(self, "task", self.kind)  # several tasks share this class
        object.__setattr__(self, "rles", _as_rles(self.rles, self.size_hw))

    def _array_lengths(self) -> dict[str, int]:
        return {"N": len(self.rles)}

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.rles)
        if self.label_names is not None and (self.label_ids is None or len(self.label_names) != count):
            raise InputError(
                f"label_names: expected {count} names (one per mask) and label_ids, "
                f"got {len(self.label_names)}{'' if self.label_ids is not None else ' and no label_ids'}."
            )

    def __len__(self) -> int:
        return len(self.rles)

    def __iter__(self) -> Iterator[NDArray[np.bool_]]:
        return (self.mask(index) for index in range(len(self)))

    def __getitem__(self, key: int | str) -> Any:
        """Return a mask by its index, or a value by its name in the mask-generation pipeline of transformers."""
        if isinstance(key, str):
            if key not in _TRANSFORMERS_NAMES:
                raise KeyError(f"{key}: expected one of {', '.join(_TRANSFORMERS_NAMES)}.")
            value = getattr(self, _TRANSFORMERS_NAMES[key])
            return list(value) if key in ("masks", "rle_mask") else value
        return self.mask(range(len(self))[key])

    def mask(self, index: int) -> NDArray[np.bool_]:
        """Return one mask, bool [H, W]."""
        return decode_rle(self.rles[index]).numpy()

    @property
    def masks(self) -> NDArray[np.bool_]:
        """All masks, bool [N, H, W], decoded on each access."""
        return np.stack(list(self)) if len(self) else np.zeros((0, *self.size_hw), bool)

    @property
    def areas(self) -> NDArray[np.int64]:
        """Pixels of each mask, int64 [N]."""
        return np.array([rle_area(rle) for rle in self.rles], np.int64)

    def polygons(self, index: int, *, tolerance: float = 1.0) -> list[Polygon]:
        """Return the outlines of one mask's parts, the largest first: float32 [N, 2] in pixels, without holes."""
        return mask_polygons(self.mask(index), tolerance=tolerance)

    def crops(self) -> list[NDArray[np.uint8]]:
        """Return the bounding box of each object with the object cut out: RGBA, uint8 [h, w, 4]."""
        cut = []
        for mask, box in zip(self, self.boxes_xyxy, strict=True):
            window = box_window(box, self.size_hw)
            alpha = mask[window][..., None].astype(np.uint8) * np.uint8(255)
            cut.append(np.concatenate([self.canvas()[window], alpha], axis=-1))
        return cut

    def index_map(self) -> NDArray[np.uint16]:
        """Return 1 + index of each pixel's mask, the smallest where they overlap, 0 for none: uint16 [H, W]."""
        if len(self) > 65535:
            raise InputError(f"masks: expected at most 65535 for one map of mask numbers, got {len(self)}.")
        numbers = np.zeros(self.size_hw, np.uint16)
        for index in np.argsort(-self.areas, kind="stable"):
            numbers[self.mask(int(index))] = index + 1
        return numbers

    def plot(
        self,
        *,
        opacity: float = 0.5,
        outline: bool = True,
        boxes: bool = False,
        points: ArrayLike | None = None,
        labels: Sequence[int] | None = None,
    ) -> Image.Image:
        """Draw the masks over the image, large ones below, with class, score and identity where there are some.

        Args:
            opacity: Of the colors.
            outline: Whether to draw outlines.
            boxes: Whether to draw the bounding boxes.
            points: Points [N, 2] to mark, such as those that were clicked.
            labels: 1 for points on an object, the default, and 0 for points off it.
        """
        ids = self._ids()
        numbers = None if ids is None else ids.tolist()
        drawn = draw_masks(
            self.canvas(),
            iter(self),
            labels=self.label_names,
            scores=None if self.label_ids is None else self.scores.tolist(),
            ids=numbers,
            opacity=opacity,
            outline=outline,
        )
        if boxes:
            drawn = draw_boxes(drawn, self.boxes_xyxy, ids=numbers)
        if points is not None:
            table = np.asarray(points, np.float64).reshape(-1, 2)  # [N, 2]
            drawn = draw_points(drawn, table, [1] * len(table) if labels is None else labels)
        return Image.fromarray(drawn)

    def write(self, path: Path, extension: str) -> None:
        """Write everything as JSON (masks as COCO RLE) or NPZ (masks bool [N, H, W]), `index_map` as PNG, or labels.

        TXT is YOLO's segment labels: the class (0 without classes) and the largest outline of each object.
        """
        if extension == ".txt":
            outlines = (next(iter(self.polygons(index)), None) for index in range(len(self)))
            classes = [0] * len(self) if self.label_ids is None else self.label_ids.tolist()
            write_lines(path, yolo_segment_lines(outlines, classes, self.size_hw))
        elif extension == ".png":
            numbers = self.index_map()
            write_label_png(path, numbers, self._palette(int(numbers.max())))
        else:
            super().write(path, extension)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays by name, decoded masks among them."""
        return super().arrays() | {"masks": self.masks}

    def to_dict(self) -> JsonObject:
        """Return everything: a list of objects with mask (COCO RLE), score, box and class."""
        areas, scores = self.areas.tolist(), rounded_list(self.scores)
        boxes = rounded_list(self.boxes_xyxy, digits=2)
        objects = [
            {
                "rle": dict(rle),
                "area": area,
                "score": score,
                "box_xyxy": box,
                "label_id": None if self.label_ids is None else int(self.label_ids[index]),
                "label": None if self.label_names is None else self.label_names[index],
            }
            for index, (rle, area, score, box) in enumerate(zip(self.rles, areas, scores, boxes, strict=True))
        ]
        return super().to_dict() | {"objects": objects}

    def to_coco(self, *, image_id: int = 1, first_id: int = 1) -> list[JsonObject]:
        """Return a COCO annotation for each mask; the category is the class, or 1 for masks without one."""
        return [
            mask_record(
                rle,
                image_id=image_id,
                annotation_id=first_id + index,
                category_id=_OBJECT_CATEGORY if self.label_ids is None else int(self.label_ids[index]),
                score=float(self.scores[index]),
            )
            for index, rle in enumerate(self.rles)
        ]

    def coco_categories(self) -> list[JsonObject]:
        """Return the categories of these masks; their ids are those of the model."""
        if self.label_ids is None:
            return [{"id": _OBJECT_CATEGORY, "name": "object", "supercategory": "object"}]
        names = self.label_names or tuple(f"class {label}" for label in self.label_ids)
        classes = dict(sorted(zip(self.label_ids.tolist(), names, strict=True)))
        return [{"id": label, "name": name, "supercategory": "object"} for label, name in classes.items()]

    def to_supervision(self) -> supervision.Detections:
        """Return `supervision.Detections` with masks."""
        return to_detections(
            boxes_xyxy=self.boxes_xyxy,
            masks=self.masks,
            scores=self.scores,
            label_ids=self.label_ids,
            names=None if self.label_names is None else list(self.label_names),
            ids=self._ids(),
        )

    def _palette(self, largest: int) -> RgbImage:
        """Return the colors of the labels up to `largest` in PNG files, uint8 [K, 3]."""
        return np.concatenate([np.zeros((1, 3), np.uint8), class_colors(largest)])

    def _ids(self) -> NDArray[np.int64] | None:
        """Return the identity of each object [N], where they have some."""
        return None


def _as_rles(rles: object, size_hw: SizeHW) -> tuple[Rle, ...]:
    """Return masks, bool [N, H, W] or RLE of any form, as RLE with counts as strings."""
    if isinstance(rles, np.ndarray):
        check_array("rles", rles, dtype=np.bool_, shape=("N", *size_hw))
        return tuple(encode_rles(rles, compress=True))
    if not isinstance(rles, (list, tuple)):
        raise InputError(f"rles: expected a list of RLE or bool [N, H, W], got {type(rles).__name__}.")
    encoded = []
    for rle in rles:
        height, width, counts = read_rle(rle)
        if (height, width) != size_hw:
            raise InputError(f"rles: expected masks of {size_hw[0]}×{size_hw[1]} pixels, got {height}×{width}.")
        text = rle["counts"] if isinstance(rle["counts"], str) else compress_counts(counts)
        encoded.append(Rle(size=[height, width], counts=text))
    return tuple(encoded)
