"""`Track`: the tracked objects of one frame of a video."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw import davis_colors
from vitruvian.errors import InputError
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.images.types import RgbImage
from vitruvian.results.base import array_of, rounded_list
from vitruvian.results.masks import Masks, MasksKind

_MAX_ID = 65535  # the largest value of a 16-bit PNG


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Track(Masks):
    """Masks of the N tracked objects of a frame; empty where an object is occluded or out of the frame.

    Attributes:
        scores: Predicted IoU of each mask, float32 [N].
        object_ids: Identity of each object, the same in all frames, int64 [N], from 1 to 65535.
        presence: Probability that the object is visible, float32 [N].
    """

    kind: MasksKind = "track"
    object_ids: NDArray[np.int64] = field(metadata=array_of(np.int64, "N"))
    presence: NDArray[np.float32] = field(metadata=array_of(np.float32, "N"))

    def __post_init__(self) -> None:
        super().__post_init__()
        ids = self.object_ids.tolist()
        if len(set(ids)) < len(ids) or not all(1 <= object_id <= _MAX_ID for object_id in ids):
            raise InputError(f"object_ids: expected different numbers from 1 to {_MAX_ID}, got {ids}.")

    @property
    def visible(self) -> NDArray[np.bool_]:
        """Which objects are visible, bool [N]."""
        return self.presence > 0.5

    def of(self, object_id: int) -> NDArray[np.bool_]:
        """Return the mask of an object, bool [H, W]."""
        return self.mask(self._index(object_id))

    def index_map(self) -> NDArray[np.uint16]:
        """Return the id of each pixel's object, the smallest object where they overlap, 0 for none: uint16 [H, W]."""
        ids = np.concatenate([np.zeros(1, np.uint16), self.object_ids.astype(np.uint16)])  # [N + 1]
        return ids[super().index_map()]

    def rgba(self) -> NDArray[np.uint8]:
        """Return the objects cut out of their image: straight RGBA, uint8 [H, W, 4]."""
        alpha = (self.index_map() > 0)[..., None]  # [H, W, 1]
        return np.concatenate([self.canvas() * alpha, alpha.astype(np.uint8) * np.uint8(255)], axis=-1)

    def crop(self, object_id: int) -> NDArray[np.uint8] | None:
        """Return the bounding box of an object, with the object cut out: RGBA, uint8 [h, w, 4]; None if it is empty."""
        index = self._index(object_id)
        left, top, right, bottom = self.boxes_xyxy[index].astype(int).tolist()
        if right <= left or bottom <= top:
            return None
        window = np.s_[top:bottom, left:right]
        inside = self.mask(index)[window][..., None]  # [h, w, 1]
        return np.concatenate([self.canvas()[window], inside.astype(np.uint8) * np.uint8(255)], axis=-1)

    def to_dict(self) -> JsonObject:
        """Return everything: a list of objects with id, presence, mask (COCO RLE), score and box."""
        values = super().to_dict()
        for each, object_id, presence in zip(
            values["objects"], self.object_ids.tolist(), rounded_list(self.presence), strict=True
        ):
            each |= {"id": object_id, "presence": presence}
        return values

    def _palette(self, largest: int) -> RgbImage:
        return davis_colors()

    def _ids(self) -> NDArray[np.int64]:
        return self.object_ids

    def _index(self, object_id: int) -> int:
        ids = self.object_ids.tolist()
        if object_id not in ids:
            raise InputError(f"object_id: expected one of {ids}, got {object_id}.")
        return int(ids.index(object_id))
