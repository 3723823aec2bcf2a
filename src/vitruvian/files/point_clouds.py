"""Point clouds and meshes as files: binary PLY and GLB (glTF 2.0 in one file).

N points, M triangles.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitruvian.atomic import atomic_write
from vitruvian.errors import InputError
from vitruvian.files.arrays import JsonObject, srgb_to_linear

_FLOAT, _UNSIGNED_SHORT, _UNSIGNED_INT = 5126, 5123, 5125  # glTF component types
_VERTICES, _INDICES = 34962, 34963  # glTF buffer view targets
_POINTS, _TRIANGLES = 0, 4  # glTF primitive modes


def write_ply(
    path: str | Path, points: NDArray[np.float32], colours: NDArray[np.uint8] | None = None, *, comments: str = ""
) -> None:
    """Write points [N, 3], with RGB colours uint8 [N, 3], as binary little-endian PLY."""
    _check_cloud(points, colours)
    columns = [(name, "<f4") for name in ("x", "y", "z")]
    columns += [] if colours is None else [(name, "u1") for name in ("red", "green", "blue")]
    table = np.empty(len(points), dtype=columns)
    for axis, (name, _) in enumerate(columns):
        table[name] = points[:, axis] if axis < 3 or colours is None else colours[:, axis - 3]
    header = ["ply", "format binary_little_endian 1.0", *(f"comment {line}" for line in comments.splitlines())]
    header += [f"element vertex {len(points)}"]
    header += [f"property {'float' if kind == '<f4' else 'uchar'} {name}" for name, kind in columns]
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write("\n".join([*header, "end_header", ""]).encode("ascii", errors="replace"))
        file.write(table.tobytes())


def write_glb(
    path: str | Path,
    points: NDArray[np.float32],
    colours: NDArray[np.uint8] | None = None,
    triangles: NDArray[np.uint32] | None = None,
) -> None:
    """Write points [N, 3], or with `triangles` uint32 [M, 3] (indices of points) a mesh, as GLB.

    The axes of glTF are those of OpenGL: x right, y up, z to the viewer. Front faces run counter-clockwise. `colours`
    are sRGB uint8 [N, 3]; they are stored as linear values, as glTF requires, in 16 bits to keep dark ones apart.
    Viewers show them without lights.
    """
    _check_cloud(points, colours)
    if len(points) == 0:
        raise InputError(f"{Path(path).name}: expected at least one point, got none. GLB cannot be empty.")
    positions = points.astype("<f4")
    bounds = {"min": positions.min(0).tolist(), "max": positions.max(0).tolist()}
    accessors: list[JsonObject] = [{"componentType": _FLOAT, "count": len(points), "type": "VEC3", **bounds}]
    buffers, targets = [positions.tobytes()], [_VERTICES]
    primitive: JsonObject = {"attributes": {"POSITION": 0}, "mode": _POINTS, "material": 0}
    if colours is not None:
        primitive["attributes"]["COLOR_0"] = len(accessors)
        accessors.append({"componentType": _UNSIGNED_SHORT, "count": len(points), "type": "VEC4", "normalized": True})
        buffers.append(_linear_rgba16(colours).tobytes())
        targets.append(_VERTICES)
    if triangles is not None:
        _check_triangles(triangles, len(points))
        primitive |= {"indices": len(accessors), "mode": _TRIANGLES}
        accessors.append({"componentType": _UNSIGNED_INT, "count": triangles.size, "type": "SCALAR"})
        buffers.append(triangles.astype("<u4").tobytes())
        targets.append(_INDICES)
    with atomic_write(path) as temporary:
        temporary.write_bytes(_glb_bytes(buffers, targets, accessors, primitive))


def _glb_bytes(buffers: list[bytes], targets: list[int], accessors: list[JsonObject], primitive: JsonObject) -> bytes:
    """Return the file: a header, a chunk of JSON that describes the arrays, and a chunk of the arrays."""
    views, offset = [], 0
    for buffer, target in zip(buffers, targets, strict=True):  # lengths are multiples of four, which keeps alignment
        views.append({"buffer": 0, "byteOffset": offset, "byteLength": len(buffer), "target": target})
        offset += len(buffer)
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


def _linear_rgba16(colours: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Convert sRGB uint8 [N, 3] to opaque linear RGBA, uint16 [N, 4]."""
    table = np.round(srgb_to_linear(np.arange(256) / 255).astype(np.float64) * 65535).astype(np.uint16)  # [256]
    rgba = np.full((len(colours), 4), 65535, "<u2")
    rgba[:, :3] = table[colours]
    return rgba


def _check_cloud(points: NDArray[np.float32], colours: NDArray[np.uint8] | None) -> None:
    """Raise `InputError` unless these are finite points [N, 3] with colours to match."""
    if points.ndim != 2 or points.shape[1] != 3 or points.dtype != np.float32 or not np.isfinite(points).all():
        raise InputError(
            f"points: expected finite float32 [N, 3], got {points.dtype} {list(points.shape)}. Drop NaN first."
        )
    if colours is not None and (colours.shape != points.shape or colours.dtype != np.uint8):
        raise InputError(f"colours: expected uint8 {list(points.shape)}, got {colours.dtype} {list(colours.shape)}.")


def _check_triangles(triangles: NDArray[np.uint32], count: int) -> None:
    """Raise `InputError` unless these are triangles, uint32 [M, 3], of `count` points."""
    is_list = triangles.ndim == 2 and triangles.shape[1] == 3 and triangles.dtype == np.uint32 and len(triangles) > 0
    if not is_list or triangles.max() >= count:
        raise InputError(
            f"triangles: expected uint32 [M, 3] of indices below {count}, at least one, "
            f"got {triangles.dtype} {list(triangles.shape)}."
        )
