"""Points and surfaces as files: binary PLY and GLB (glTF 2.0 in one file).

N points, M triangles.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.files.atomic import replacing

FLOAT, UNSIGNED_SHORT, UNSIGNED_INT = 5126, 5123, 5125  # glTF's numbers for types of components
VERTICES, INDICES = 34962, 34963  # glTF's numbers for what a stretch of bytes is for
POINTS, TRIANGLES = 0, 4  # glTF's numbers for what is drawn


def write_ply(
    path: str | Path,
    points: NDArray[np.float32],
    colours: NDArray[np.uint8] | None = None,
    normals: NDArray[np.float32] | None = None,
    *,
    comments: str | None = None,
) -> None:
    """Write points [N, 3], with RGB colours uint8 [N, 3] and normals float32 [N, 3], as binary little-endian PLY."""
    check_cloud(points, colours, normals)
    columns: list[tuple[str, str, NDArray[Any]]] = [
        (name, "<f4", points[:, axis]) for axis, name in enumerate(("x", "y", "z"))
    ]
    if normals is not None:
        columns += [(name, "<f4", normals[:, axis]) for axis, name in enumerate(("nx", "ny", "nz"))]
    if colours is not None:
        columns += [(name, "u1", colours[:, axis]) for axis, name in enumerate(("red", "green", "blue"))]
    table = np.empty(len(points), dtype=[(name, kind) for name, kind, _ in columns])
    for name, _, values in columns:
        table[name] = values
    words = {"<f4": "float", "u1": "uchar"}
    header = ["ply", "format binary_little_endian 1.0"]
    header += [f"comment {line}" for line in (comments or "").splitlines()]
    header += [f"element vertex {len(points)}"]
    header += [f"property {words[kind]} {name}" for name, kind, _ in columns]
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write("\n".join([*header, "end_header", ""]).encode("ascii", errors="replace"))
        file.write(table.tobytes())


def write_glb(
    path: str | Path,
    points: NDArray[np.float32],
    colours: NDArray[np.uint8] | None = None,
    triangles: NDArray[np.uint32] | None = None,
) -> None:
    """Write points [N, 3], or with `triangles` uint32 [M, 3] (indices of points) a surface, as GLB.

    glTF's axes are x right, y up, z to the viewer, which are OpenGL's; front faces run counter-clockwise. `colours`
    are sRGB uint8 [N, 3] and are stored as the linear values that glTF asks for, in 16 bits so that dark ones keep
    their steps. Viewers show them as they are, without lights.
    """
    check_cloud(points, colours, None)
    if len(points) == 0:
        raise InputError(f"{Path(path).name}: expected at least one point, got none. GLB cannot be empty.")
    parts = [Part(points.astype("<f4"), FLOAT, "VEC3", VERTICES, bounds=True)]
    attributes = {"POSITION": 0}
    if colours is not None:
        attributes["COLOR_0"] = len(parts)
        parts.append(Part(linear_rgba16(colours), UNSIGNED_SHORT, "VEC4", VERTICES, normalized=True))
    primitive: dict[str, Any] = {"attributes": attributes, "mode": POINTS, "material": 0}
    if triangles is not None:
        check_triangles(triangles, len(points))
        primitive |= {"indices": len(parts), "mode": TRIANGLES}
        parts.append(Part(triangles.astype("<u4").reshape(-1), UNSIGNED_INT, "SCALAR", INDICES))
    with replacing(path) as temporary:
        temporary.write_bytes(glb_bytes(parts, primitive))


class Part:
    """One array of a GLB: its bytes, and what glTF says of them."""

    def __init__(
        self, values: NDArray[Any], kind: int, shape: str, use: int, *, bounds: bool = False, normalized: bool = False
    ) -> None:
        self.data = values.tobytes()
        self.use = use
        self.accessor: dict[str, Any] = {"componentType": kind, "count": len(values), "type": shape}
        if normalized:
            self.accessor["normalized"] = True
        if bounds:
            self.accessor |= {"min": values.min(0).tolist(), "max": values.max(0).tolist()}


def glb_bytes(parts: list[Part], primitive: dict[str, Any]) -> bytes:
    """Return the file: a header, a chunk of JSON that describes, and a chunk of the arrays one after another."""
    views, start = [], 0
    for part in parts:  # each part is a multiple of four bytes long, which keeps the next one aligned
        views.append({"buffer": 0, "byteOffset": start, "byteLength": len(part.data), "target": part.use})
        start += len(part.data)
    unlit: dict[str, Any] = {"KHR_materials_unlit": {}}
    document = {
        "asset": {"version": "2.0", "generator": "vitruvian"},
        "extensionsUsed": list(unlit),
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}],
        "materials": [{"pbrMetallicRoughness": {"metallicFactor": 0}, "doubleSided": True, "extensions": unlit}],
        "buffers": [{"byteLength": start}],
        "bufferViews": views,
        "accessors": [{"bufferView": index, **part.accessor} for index, part in enumerate(parts)],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    total = 12 + 8 + len(text) + 8 + start
    if total >= 1 << 32:
        raise InputError(f"points: expected less than 4 GiB for GLB, got {total / 2**30:.1f}. Ask for fewer points.")
    pieces = [struct.pack("<4sII", b"glTF", 2, total), struct.pack("<I4s", len(text), b"JSON"), text]
    return b"".join([*pieces, struct.pack("<I4s", start, b"BIN\0"), *(part.data for part in parts)])


def linear_rgba16(colours: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Turn sRGB uint8 [N, 3] into opaque linear RGBA, uint16 [N, 4]."""
    steps = np.arange(256) / 255
    table = np.where(steps <= 0.04045, steps / 12.92, ((steps + 0.055) / 1.055) ** 2.4)
    rgba = np.full((len(colours), 4), 65535, "<u2")
    rgba[:, :3] = np.round(table * 65535).astype(np.uint16)[colours]
    return rgba


def check_cloud(
    points: NDArray[np.float32], colours: NDArray[np.uint8] | None, normals: NDArray[np.float32] | None
) -> None:
    """Raise `InputError` unless these are finite points [N, 3] with colours and normals to match."""
    if points.ndim != 2 or points.shape[1] != 3 or points.dtype != np.float32 or not np.isfinite(points).all():
        raise InputError(
            f"points: expected finite float32 [N, 3], got {points.dtype} {list(points.shape)}. Drop NaN first."
        )
    for name, values, dtype in (("colours", colours, np.uint8), ("normals", normals, np.float32)):
        if values is not None and (values.shape != points.shape or values.dtype != dtype):
            wanted = f"{np.dtype(dtype).name} {list(points.shape)}"
            raise InputError(f"{name}: expected {wanted}, got {values.dtype} {list(values.shape)}.")


def check_triangles(triangles: NDArray[np.uint32], count: int) -> None:
    """Raise `InputError` unless these are triangles, uint32 [M, 3], of `count` points."""
    fits = triangles.ndim == 2 and triangles.shape[1] == 3 and triangles.dtype == np.uint32 and len(triangles) > 0
    if not fits or triangles.max() >= count:
        raise InputError(
            f"triangles: expected uint32 [M, 3] of indices below {count}, at least one, "
            f"got {triangles.dtype} {list(triangles.shape)}."
        )
