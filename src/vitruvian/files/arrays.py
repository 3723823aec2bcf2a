"""Write arrays as NPZ and OpenEXR files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import import_extra
from vitruvian.filesystem.atomic import atomic_write


def write_npz(path: str | Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write named arrays as a compressed NPZ that opens without pickle."""
    # As numpy.savez_compressed, but at zlib level 1: about half the time for files a few per cent larger.
    with atomic_write(path) as temporary, ZipFile(temporary, "w", ZIP_DEFLATED, compresslevel=1) as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def write_exr(path: str | Path, channels: Mapping[str, NDArray[np.float32]], *, comments: str = "") -> None:
    """Write float32 maps [H, W] of one size as the named channels of an OpenEXR file (ZIP, lossless).

    Programs expect R, G, B, A to be linear light with premultiplied alpha, and Z to be depth.
    """
    openexr = import_extra("OpenEXR", "exr", f"writing {Path(path).name}")
    header = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage, "comments": comments}
    contiguous = {name: np.ascontiguousarray(values) for name, values in channels.items()}
    with atomic_write(path) as temporary:
        openexr.File(header, contiguous).write(str(temporary))
