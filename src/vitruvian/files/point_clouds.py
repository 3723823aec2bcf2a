"""Point clouds and meshes as files: binary PLY and GLB (glTF 2.0 in one file).

N points, M triangles.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.filesystem.atomic import atomic_write
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.images.srgb import srgb_to_linear

_FLOAT, _UNSIGNED_SHORT, _UNSIGNED_INT = 5126, 5123, 5125  # glTF component types
_VERTICES, _INDICES = 34962, 34963  # glTF buffer view targets
_POINTS, _TRIANGLES = 0, 4  # glTF primitive modes


def write_ply(path: str | Path, points: NDArray[np.float32], colors: NDArray[np.uint8], *, comments: str = "") -> None:
    """Write points [N, 3] with RGB colors uint8 [N, 3] as binary little-endian PLY."""
    table = np.empty(len(points), [("points", "<f4", 3), ("colors", "u1", 3)])
    table["points"], table["colors"] = points, colors
    header = ["ply", "format binary_little_endian 1.0", *(f"comment {line}" for line in comments.splitlines())]
    header += [f"element vertex {len(points)}", *(f"property float {name}" for name in ("x", "y", "z"))]
    header += [*(f"property uchar {name}" for name in ("red", "green", "blue")), "end_header", ""]
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write("\n".join(header).encode("ascii", errors="replace"))
        file.write(table.tobytes())


def write_glb(
    path: str | Path,
    points: NDArray[np.float32],
    colors: NDArray[np.uint8],
    triangles: NDArray[np.uint32] | None = None,
) -> None:
    """Write points [N, 3], or with `triangles` uint32 [M, 3] (indices of points) a mesh, as GLB.

    The axes of glTF are those of OpenGL: x right, y up, z to the viewer. Front faces run counter-clockwise. `colors`
    are sRGB uint8 [N, 3]; they are stored as linear values, as glTF requires, in 16 bits to keep dark ones apart.
    Viewers show them without lights.
    """
    if len(points) == 0:
        raise InputError(f"{Path(path).name}: expected at least one point, because GLB files cannot be empty.")
    positions = points.astype("<f4")
    bounds = {"min": positions.min(0).tolist(), "max": positions.max(0).tolist()}
    linear = np.round(srgb_to_linear(torch.arange(256) / 255).double().numpy() * 65535).astype(np.uint16)  # [256]
    rgba = np.full((len(colors), 4), 65535, "<u2")
    rgba[:, :3] = linear[colors]
    buffers = [positions.tobytes(), rgba.tobytes()]
    accessors: list[JsonObject] = [
        {"componentType": _FLOAT, "count": len(points), "type": "VEC3", **bounds},
        {"componentType": _UNSIGNED_SHORT, "count": len(points), "type": "VEC4", "normalized": True},
    ]
    primitive: JsonObject = {"attributes": {"POSITION": 0, "COLOR_0": 1}, "mode": _POINTS, "material": 0}
    if triangles is not None:
        buffers.append(triangles.astype("<u4").tobytes())
        accessors.append({"componentType": _UNSIGNED_INT, "count": triangles.size, "type": "SCALAR"})
        primitive |= {"indices": 2, "mode": _TRIANGLES}
    with atomic_write(path) as temporary:
        temporary.write_bytes(_glb_bytes(buffers, accessors, primitive))


def _glb_bytes(buffers: list[bytes], accessors: list[JsonObject], primitive: JsonObject) -> bytes:
    """Return the file: a header, a chunk of JSON that describes the arrays, and a chunk of the arrays."""
    views, offset = [], 0
    for buffer, target in zip(buffers, (_VERTICES, _VERTICES, _INDICES), strict=False):
        views.append({"buffer": 0, "byteOffset": offset, "byteLength": len(buffer), "target": target})
        offset += len(buffer)  # lengths are multiples of four, which keeps alignment
    unlit: JsonObject = {"KHR_materials_unlit": {}}
    document = {
        "asset": {"version": "2.0", "generator": "vitruvian"},
        "extensionsUsed": list(unlit),
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}],
        "materials": [{"pbrMetallicRoughness": {"metallicFactor": 0}, "doubleSided": True, "extensions": unlit}],
        "buffers": [{"byteLength": offset}],
        "bufferViews": views,
        "accessors": [{"bufferView": index, **accessor} for index, accessor in enumerate(accessors)],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    total = 12 + 8 + len(text) + 8 + offset
    if total >= 1 << 32:
        raise InputError(f"points: expected less than 4 GiB for GLB, got {total / 2**30:.1f}. Ask for fewer points.")
    pieces = [struct.pack("<4sII", b"glTF", 2, total), struct.pack("<I4s", len(text), b"JSON"), text]
    return b"".join([*pieces, struct.pack("<I4s", offset, b"BIN\0"), *buffers])
