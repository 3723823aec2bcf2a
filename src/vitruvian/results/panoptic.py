"""`Panoptic`: every pixel belongs to at most one segment, of a thing or of stuff."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.draw import draw_panoptic
from vitruvian.errors import InputError
from vitruvian.files.coco import box_xywh
from vitruvian.files.images import write_image
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.images.label_maps import count_labels
from vitruvian.images.types import RgbImage
from vitruvian.results.base import Result, array_of
from vitruvian.results.supervision import to_detections

if TYPE_CHECKING:
    import supervision


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One segment of a `Panoptic`.

    Attributes:
        id: Its number in the map, from 1.
        label_id: Its class.
        label: Name of the class.
        score: Confidence of the model.
        area: Its pixels.
        box_xyxy: Its corners.
        is_thing: Whether its class is a thing, which can be counted, or stuff; None where that is not known.
    """

    id: int
    label_id: int
    label: str
    score: float
    area: int
    box_xyxy: tuple[float, float, float, float]
    is_thing: bool | None = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Panoptic(Result):
    """Things and stuff, each pixel in at most one segment.

    Attributes:
        segmentation: Number of the segment, int32 [H, W]; 0 is none.
        segments: The segments.
    """

    task = "panoptic"
    extensions = (".png", ".json", ".npz")

    segmentation: NDArray[np.int32] = field(metadata=array_of(np.int32, "H", "W"))
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        ids = [segment.id for segment in self.segments]
        if len(set(ids)) != len(ids) or min(ids, default=1) < 1 or max(ids, default=1) >= 1 << 24:
            raise InputError(f"segments: expected different ids from 1 to 2²⁴ − 1, got {sorted(ids)[:8]}.")
        if self.segmentation.min() < 0:
            raise InputError(f"segmentation: expected ids from 1, or 0 for none, got {self.segmentation.min()}.")
        unknown = sorted(set(count_labels(self.segmentation)) - {0, *ids})
        if unknown:
            raise InputError(f"segmentation: expected only ids of the segments, got {unknown[:8]} too.")

    def __len__(self) -> int:
        return len(self.segments)

    def mask(self, segment_id: int) -> NDArray[np.bool_]:
        """Return the mask of a segment, bool [H, W]."""
        if segment_id not in {segment.id for segment in self.segments}:
            raise InputError(f"segment: expected one of {len(self.segments)} ids, got {segment_id}.")
        return np.equal(self.segmentation, segment_id)

    def plot(self, *, opacity: float = 0.6, outline: bool = True) -> Image.Image:
        """Draw the segments in colors over the image, with their names where they fit."""
        drawn = draw_panoptic(
            self.image,
            self.segmentation,
            labels={segment.id: segment.label for segment in self.segments},
            classes={segment.id: segment.label_id for segment in self.segments},
            opacity=opacity,
            outline=outline,
        )
        return Image.fromarray(drawn)

    def panoptic_image(self) -> RgbImage:
        """Return the segment numbers as in COCO's panoptic PNGs, uint8 [H, W, 3]: R + 256·G + 256²·B."""
        numbers = self.segmentation
        return np.stack([numbers & 255, numbers >> 8 & 255, numbers >> 16], axis=-1).astype(np.uint8)

    def write(self, path: Path, extension: str) -> None:
        """Write COCO's panoptic PNG, JSON of the segments, or everything as NPZ."""
        if extension == ".png":
            write_image(path, self.panoptic_image())
        else:
            super().write(path, extension)

    def info(self) -> JsonObject:
        """Return everything but the arrays."""
        return super().info() | {"segments": [asdict(segment) for segment in self.segments]}

    def to_coco(self, *, image_id: int = 1, first_id: int = 1, file_name: str | None = None) -> list[JsonObject]:
        """Return COCO's panoptic annotation: one record, with all segments.

        `file_name` is that of the PNG of segment numbers, by default `first_id` as the dataset numbers its files.
        """
        segments = [
            {
                "id": segment.id,
                "category_id": segment.label_id,
                "area": segment.area,
                "bbox": box_xywh(segment.box_xyxy),
                "iscrowd": 0,
                "score": round(segment.score, 4),
            }
            for segment in self.segments
        ]
        return [{"image_id": image_id, "file_name": file_name or f"{first_id:012d}.png", "segments_info": segments}]

    def coco_categories(self) -> list[JsonObject]:
        """Return the categories of these segments; their ids are those of the model."""
        classes = {segment.label_id: segment for segment in sorted(self.segments, key=lambda segment: segment.label_id)}
        return [
            {"id": label, "name": segment.label, "supercategory": segment.label}
            | ({} if segment.is_thing is None else {"isthing": int(segment.is_thing)})
            for label, segment in classes.items()
        ]

    def to_supervision(self) -> supervision.Detections:
        """Return `supervision.Detections`, one for each segment, with masks."""
        return to_detections(
            boxes_xyxy=np.array([segment.box_xyxy for segment in self.segments], np.float32).reshape(-1, 4),
            masks=np.array([self.segmentation == segment.id for segment in self.segments], bool),
            scores=np.array([segment.score for segment in self.segments], np.float32),
            label_ids=np.array([segment.label_id for segment in self.segments], np.int64),
            names=[segment.label for segment in self.segments],
        )
