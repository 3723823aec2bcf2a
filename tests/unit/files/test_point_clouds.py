"""PLY and GLB, read back by trimesh and, for the fine print, by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from vitruvian.errors import InputError
from vitruvian.files.point_clouds import write_glb, write_ply

RANDOM = np.random.default_rng(0)
POINTS = RANDOM.normal(size=(50, 3)).astype(np.float32)
COLORS = RANDOM.integers(0, 256, (50, 3), dtype=np.uint8)
TRIANGLES = np.array([[0, 1, 2], [2, 1, 3]], np.uint32)


def read_glb(path: Path) -> tuple[dict, bytes]:
    data = path.read_bytes()
    magic, version, total = struct.unpack_from("<4sII", data)
    assert (magic, version, total) == (b"glTF", 2, len(data))
    length, kind = struct.unpack_from("<I4s", data, 12)
    assert kind == b"JSON"
    assert length % 4 == 0
    size, kind = struct.unpack_from("<I4s", data, 20 + length)
    assert kind == b"BIN\0"
    body = data[28 + length :]
    assert size == len(body)
    return json.loads(data[20 : 20 + length]), body


class TestPly:
    def test_trimesh_reads_it(self, tmp_path: Path) -> None:
        trimesh = pytest.importorskip("trimesh")
        write_ply(tmp_path / "a.ply", POINTS, COLORS)
        cloud = trimesh.load(tmp_path / "a.ply")
        np.testing.assert_array_equal(np.asarray(cloud.vertices, np.float32), POINTS)
        np.testing.assert_array_equal(cloud.colors[:, :3], COLORS)

    def test_header_and_columns(self, tmp_path: Path) -> None:
        write_ply(tmp_path / "a.ply", POINTS, COLORS, comments="one\ntwo")
        header, _, body = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")
        assert header.decode().splitlines()[:5] == [
            "ply", "format binary_little_endian 1.0", "comment one", "comment two", "element vertex 50",
        ]  # fmt: skip
        table = np.frombuffer(body, [("p", "<f4", 3), ("c", "u1", 3)])
        np.testing.assert_array_equal(table["p"], POINTS)
        np.testing.assert_array_equal(table["c"], COLORS)

    def test_no_points(self, tmp_path: Path) -> None:
        write_ply(tmp_path / "a.ply", POINTS[:0], COLORS[:0])
        assert b"element vertex 0\n" in (tmp_path / "a.ply").read_bytes()


class TestGlb:
    def test_a_cloud_in_trimesh(self, tmp_path: Path) -> None:
        trimesh = pytest.importorskip("trimesh")
        write_glb(tmp_path / "a.glb", POINTS, COLORS)
        (cloud,) = trimesh.load(tmp_path / "a.glb").geometry.values()
        assert isinstance(cloud, trimesh.PointCloud)
        np.testing.assert_array_equal(np.asarray(cloud.vertices, np.float32), POINTS)

    def test_a_surface_in_trimesh(self, tmp_path: Path) -> None:
        trimesh = pytest.importorskip("trimesh")
        write_glb(tmp_path / "a.glb", POINTS, COLORS, TRIANGLES)
        (mesh,) = trimesh.load(tmp_path / "a.glb", process=False).geometry.values()
        np.testing.assert_array_equal(mesh.faces, TRIANGLES)
        np.testing.assert_array_equal(np.asarray(mesh.vertices, np.float32), POINTS)

    def test_what_the_standard_asks_for(self, tmp_path: Path) -> None:
        write_glb(tmp_path / "a.glb", POINTS, COLORS, TRIANGLES)
        document, body = read_glb(tmp_path / "a.glb")
        positions, colors, indices = document["accessors"]
        np.testing.assert_array_equal(np.array(positions["min"], np.float32), POINTS.min(0))
        np.testing.assert_array_equal(np.array(positions["max"], np.float32), POINTS.max(0))
        for accessor, view in zip(document["accessors"], document["bufferViews"], strict=True):
            assert view["byteOffset"] % 4 == 0
            assert accessor["bufferView"] < len(document["bufferViews"])
        assert document["buffers"] == [{"byteLength": len(body)}]
        assert (colors["normalized"], colors["componentType"], colors["type"]) == (True, 5123, "VEC4")
        assert (indices["count"], indices["componentType"]) == (6, 5125)

    def test_colors_are_linear(self, tmp_path: Path) -> None:
        gray = np.array([[0, 1, 255], [128, 128, 128]], np.uint8)
        write_glb(tmp_path / "a.glb", POINTS[:2], gray)
        document, body = read_glb(tmp_path / "a.glb")
        view = document["bufferViews"][1]
        actual = np.frombuffer(body, "<u2", offset=view["byteOffset"]).reshape(2, 4) / 65535
        np.testing.assert_allclose(actual[0], [0, 1 / 255 / 12.92, 1, 1], atol=1e-5)
        np.testing.assert_allclose(actual[1], [0.21586] * 3 + [1], atol=1e-4)


def test_an_empty_glb_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one point"):
        write_glb(tmp_path / "a.glb", POINTS[:0], COLORS[:0])
