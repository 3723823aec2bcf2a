"""Arrays and JSON as files: NPZ, JSON and EXR."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
from numpy.typing import NDArray

from vitruvian.atomic import atomic_write, write_text
from vitruvian.errors import InputError, MissingExtraError

JsonObject = dict[str, Any]


def write_npz(path: str | Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write named arrays as a compressed NPZ that opens without pickle."""
    # As numpy.savez_compressed, but at zlib level 1: about half the time for files a few per cent larger.
    with atomic_write(path) as temporary, ZipFile(temporary, "w", ZIP_DEFLATED, compresslevel=1) as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def write_json(path: str | Path, data: object) -> None:
    """Write JSON in UTF-8, on one line; NaN and infinity are an `InputError`."""
    write_text(path, json_text(data) + "\n")


def json_text(data: object) -> str:
    """Return JSON without spaces, or raise `InputError` for what it cannot hold.

    Bytes of file names that are no UTF-8 (lone surrogates) are escaped, so that the text can be encoded.
    """
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    except (TypeError, ValueError) as error:
        raise InputError(f"data: expected lists, dicts, finite numbers and text, got {error}.") from error


def write_exr(path: str | Path, channels: Mapping[str, NDArray[np.float32]], *, comments: str = "") -> None:
    """Write float32 maps [H, W] of one size as the named channels of an OpenEXR file (ZIP, lossless).

    Programs expect R, G, B, A to be linear light with premultiplied alpha, and Z to be depth.
    """
    try:
        import OpenEXR
    except ImportError as error:
        raise MissingExtraError("OpenEXR", "exr", f"writing {Path(path).name}") from error
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage, "comments": comments}
    contiguous = {name: np.ascontiguousarray(values) for name, values in channels.items()}
    with atomic_write(path) as temporary:
        OpenEXR.File(header, contiguous).write(str(temporary))


def srgb_to_linear(values: NDArray[np.floating]) -> NDArray[np.float32]:
    """Convert sRGB values of any shape, 0 to 1, to linear light, 0 to 1."""
    clipped = np.clip(values, 0, 1)
    linear = np.where(clipped <= 0.04045, clipped / 12.92, ((clipped + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear, np.float32)
