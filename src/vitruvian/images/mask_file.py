"""Masks of objects in image files: drawn masks, alpha, and images of labels such as those of DAVIS."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.errors import InputError
from vitruvian.images.decode import decode_image
from vitruvian.images.upright_rgb import turn_upright
from vitruvian.limits import get_limits

_WHITES = (255, 65535)  # of 8 and of 16 bits


def read_mask(path: Path, object_id: int) -> NDArray[np.bool_]:
    """Read the mask of an object, bool [H, W].

    | image | mask |
    |---|---|
    | with alpha that is not opaque everywhere | alpha of at least 128 |
    | a palette, or gray values (8 or 16 bits) without white, of several objects | pixels whose value is `object_id` |
    | any other | pixels that are not black |

    Raises:
        InputError: There is no such file, or it has several objects and not this one.
    """
    if not path.is_file():
        raise InputError(f"{path}: expected an image file, got none. Check the path.")
    with path.open("rb") as stream:
        image = turn_upright(decode_image(stream, subject=str(path), max_pixels=get_limits().image_pixels))
    if image.has_transparency_data:
        alpha: NDArray[np.uint8] = np.asarray(image.convert("RGBA").getchannel("A"))
        if alpha.min() < 255:
            return np.greater_equal(alpha, 128)
    values = _values(image)
    labels = np.unique(values[values > 0]).tolist()
    if len(labels) < 2 or labels[-1] in _WHITES:
        return np.greater(values, 0)
    if object_id not in labels:
        got = ", ".join(f"{label}" for label in labels[:8]) + (", …" if len(labels) > 8 else "")
        raise InputError(f"{path}: expected pixels of object {object_id}, got those of {got}. Use one of these ids.")
    return np.equal(values, object_id)


def _values(image: Image.Image) -> NDArray[np.int64]:
    """Return the labels or gray values of an image [H, W]; of other images 255 where they are not black."""
    if image.mode == "P" and image.palette is not None:
        indices = np.asarray(image)
        colors = np.zeros((256, 3), np.uint8)
        palette = np.array(image.getpalette() or [], np.uint8).reshape(-1, 3)
        colors[: len(palette)] = palette
        used = colors[np.unique(indices)]
        if (used == used[:, :1]).all():
            return np.asarray(colors[indices, 0], np.int64)
        if not colors[0].any():
            return indices.astype(np.int64)
    elif image.mode in ("L", "I") or image.mode.startswith("I;16"):
        return np.asarray(image).astype(np.int64)
    return np.where(np.asarray(image.convert("RGB")).any(axis=2), 255, 0)
