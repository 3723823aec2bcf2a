"""Cameras and pointmaps: focal lengths, clouds without flying points, surfaces, files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.results.samples import HW, IMAGE, MIDDLE, flat_points, sample
from vitruvian.errors import InputError


def step(**change: object):
    """A person at 2 m in front of a wall at 4 m, with one point that hangs between."""
    depth = np.full(HW, 4.0)
    depth[:, 10:20] = 2.0
    depth[5, 20] = 3.0
    return sample("pointmap", points=flat_points(depth), mask=np.ones(HW, bool), **change)


class TestPointmap:
    def test_field_of_view(self) -> None:
        result = sample("pointmap", intrinsics=np.array([[15, 0, 14.5], [0, 15, 9.5], [0, 0, 1]], np.float32))
        tall = round(float(np.degrees(2 * np.arctan(10 / 15))), 4)
        assert result.to_dict()["fov_degrees"] == {"horizontal": 90, "vertical": tall}

    def test_depth_focal_and_conventions(self) -> None:
        result = sample("pointmap")
        assert result.focal == 25
        uneven = np.array([[20, 0, 14.5], [0, 45, 9.5], [0, 0, 1]], np.float32)
        assert sample("pointmap", intrinsics=uneven).focal == pytest.approx(30)
        np.testing.assert_array_equal(result.depth, 2)
        opengl = result.to_convention("opengl")
        np.testing.assert_array_equal(opengl.depth, 2)
        np.testing.assert_array_equal(opengl.points * np.array([1, -1, -1]), result.points)
        assert opengl.to_convention("opengl") is opengl
        np.testing.assert_array_equal(opengl.cloud()[0] * np.array([1, -1, -1]), result.cloud()[0])

    def test_the_cloud_is_what_the_mask_shows(self) -> None:
        result = sample("pointmap")
        points, colors = result.cloud()
        np.testing.assert_array_equal(points, result.points[MIDDLE])
        np.testing.assert_array_equal(colors, IMAGE[MIDDLE])
        assert set(result.without_image().cloud()[1].ravel()) == {200}

    def test_points_at_jumps_of_depth_are_dropped(self) -> None:
        result = step()
        points, _ = result.cloud()
        assert set(points[:, 2]) == {2.0, 4.0}, "the hanging point is gone"
        columns = np.ones(HW, bool)
        columns[:, [9, 10, 19, 20]] = False
        columns[4:7, 21] = False  # the neighbours of the hanging point
        np.testing.assert_array_equal(points, result.points[columns])
        assert len(result.cloud(edge_threshold=None)[0]) == 600
        assert len(result.cloud(edge_threshold=5)[0]) == 600

    def test_the_outline_of_the_mask_is_no_jump(self) -> None:
        depth = np.full(HW, 4.0)
        depth[MIDDLE] = 2.0
        result = sample("pointmap", points=flat_points(depth))
        assert len(result.cloud()[0]) == MIDDLE.sum()

    def test_points_that_are_none_are_dropped(self) -> None:
        points = flat_points(np.full(HW, 2.0))
        points[5, 10], points[6, 11], points[7, 12] = np.nan, np.inf, -1
        actual, _ = sample("pointmap", points=points).cloud()
        assert len(actual) == MIDDLE.sum() - 3
        assert np.isfinite(actual).all()

    def test_fewer_points(self) -> None:
        result = sample("pointmap")
        points, colors = result.cloud(max_points=50)
        assert points.shape == colors.shape == (50, 3)
        np.testing.assert_array_equal(points, result.cloud(max_points=50)[0])
        assert len(np.unique(points, axis=0)) == 50
        with pytest.raises(InputError, match="max_points: expected at least 1"):
            result.cloud(max_points=0)

    def test_the_surface_is_open_at_jumps_and_faces_the_camera(self) -> None:
        points, colors, triangles = step().surface()
        assert len(points) == len(colors) == 599  # all but the hanging point
        # 19 rows of squares in columns 0-9, 10-19 and 20-29: two triangles each, some lost around the hanging point.
        whole = 19 * (9 + 9 + 9) * 2
        assert whole - 6 <= len(triangles) < whole
        corners = points[triangles]
        assert (np.ptp(corners[..., 2], axis=1) == 0).all()
        normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        assert (normals[:, 2] < 0).all(), "counter-clockwise as the camera sees them: outwards is towards it"

    def test_to_dict(self) -> None:
        actual = sample("pointmap").to_dict()
        assert actual["focal"] == 25
        assert actual["depth_range"] == [2, 2]
        assert actual["pixels"] == MIDDLE.sum()
        assert (actual["metric"], actual["scale"], actual["intrinsics_from"]) == (True, 0.5, "given")
        empty = sample("pointmap", mask=np.zeros(HW, bool))
        assert empty.to_dict()["depth_range"] is None


class TestFiles:
    def test_ply(self, tmp_path: Path) -> None:
        trimesh = pytest.importorskip("trimesh")
        result = step()
        result.save(tmp_path / "a.ply")
        cloud = trimesh.load(tmp_path / "a.ply")
        points, colors = result.cloud()
        np.testing.assert_array_equal(np.asarray(cloud.vertices, np.float32), points)
        np.testing.assert_array_equal(cloud.colors[:, :3], colors)
        assert b"comment points x, y, z in opencv camera axes, in meters\n" in (tmp_path / "a.ply").read_bytes()

    def test_glb_stands_upright(self, tmp_path: Path) -> None:
        trimesh = pytest.importorskip("trimesh")
        for result in (step(), step().to_convention("opengl")):
            result.save(tmp_path / "a.glb")
            (cloud,) = trimesh.load(tmp_path / "a.glb").geometry.values()
            expected = step().cloud()[0] * np.array([1, -1, -1], np.float32)
            np.testing.assert_array_equal(np.asarray(cloud.vertices, np.float32), expected)

    def test_glb_surface(self, tmp_path: Path) -> None:
        trimesh = pytest.importorskip("trimesh")
        result = step()
        result.save(tmp_path / "a.glb", mesh=True)
        (mesh,) = trimesh.load(tmp_path / "a.glb", process=False).geometry.values()
        assert len(mesh.faces) == len(result.surface()[2])
        assert (mesh.face_normals[:, 2] > 0).all(), "faces the viewer in glTF's axes"

    def test_options_of_clouds(self, tmp_path: Path) -> None:
        trimesh = pytest.importorskip("trimesh")
        step().save(tmp_path / "a.ply", max_points=40, edge_threshold=None)
        assert len(trimesh.load(tmp_path / "a.ply").vertices) == 40
        with pytest.raises(InputError, match=r"mesh: expected a name that ends in \.glb"):
            step().save(tmp_path / "b.ply", mesh=True)
        with pytest.raises(InputError, match="max_points is for point clouds"):
            step().save(tmp_path / "b.glb", mesh=True, max_points=5)
        for options in ({"mesh": True}, {"max_points": 5}, {"edge_threshold": None}):
            stream = io.BytesIO()
            step().save(stream, "glb", **options)  # type: ignore[arg-type]
            step().save(tmp_path / "c.glb", **options)  # type: ignore[arg-type]
            assert stream.getvalue() == (tmp_path / "c.glb").read_bytes()
        with pytest.raises(InputError, match="at least one point"):
            sample("pointmap", mask=np.zeros(HW, bool)).save(tmp_path / "b.glb")

    def test_depth_in_millimeters(self, tmp_path: Path) -> None:
        depth = np.full(HW, 2.3456)
        depth[10, 10], depth[10, 11], depth[10, 12] = 100, np.nan, -3
        sample("pointmap", points=flat_points(depth)).save(tmp_path / "a.16.png")
        actual = np.asarray(Image.open(tmp_path / "a.16.png"))
        assert actual.dtype == np.uint16
        assert (actual[8, 8], actual[10, 10], actual[10, 11], actual[10, 12], actual[0, 0]) == (2346, 65535, 0, 0, 0)

    def test_exr(self, tmp_path: Path) -> None:
        exr = pytest.importorskip("OpenEXR")
        result = step().to_convention("opengl")
        result.save(tmp_path / "a.exr")
        with exr.File(str(tmp_path / "a.exr"), separate_channels=True) as file:
            channels = {name: channel.pixels for name, channel in file.channels().items()}
            assert "opengl camera axes, in meters" in file.header()["comments"]
        np.testing.assert_array_equal(np.stack([channels[name] for name in "RGB"], -1), result.points)
        np.testing.assert_array_equal(channels["Z"], result.depth)
        np.testing.assert_array_equal(channels["A"], 1)

    def test_camera_json(self, tmp_path: Path) -> None:
        sample("pointmap").save(tmp_path / "a.json")
        actual = json.loads((tmp_path / "a.json").read_text())
        assert actual["intrinsics"] == [[25, 0, 14.5], [0, 25, 9.5], [0, 0, 1]]
        assert actual["convention"] == "opencv"


def test_color_bar() -> None:
    depth = np.full((200, 300), 2.0, np.float32)
    depth[:, 150:] = 4
    everywhere = np.ones((200, 300), bool)
    result = sample("pointmap", size_hw=(200, 300), points=flat_points(depth, 250.0), mask=everywhere, image=None)
    plain, drawn = np.asarray(result.plot()).astype(int), np.asarray(result.plot(color_bar=True)).astype(int)
    changed = np.argwhere((plain != drawn).any(-1))
    assert changed.min(0)[0] > 150  # in the lower left corner
    assert changed.max(0)[1] < 150
    gap = 3
    bar = drawn[changed.max(0)[0] - gap, : changed.max(0)[1]]  # [w, 3], the last row of the bar
    assert bar[gap + 3, 0] > bar[gap + 3, 2]  # red at the near end
    assert bar[-gap - 3, 2] > bar[-gap - 3, 0]  # blue at the far end
