"""Parts, classes, normals, albedo and features."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.results.samples import HW, IMAGE, MIDDLE, sample
from vitruvian.errors import InputError
from vitruvian.files import CocoWriter
from vitruvian.human import PART_COLORS, PART_NAMES


class TestParts:
    def test_by_name(self) -> None:
        parts = sample("parts")
        assert parts.names == PART_NAMES
        np.testing.assert_array_equal(parts.mask("Face_Neck"), parts.labels == 3)
        assert parts.areas() == dict.fromkeys(PART_NAMES[:24], 25)
        assert parts.present() == PART_NAMES[:24]
        with pytest.raises(InputError, match=r"got 'face neck'\. Did you mean Face_Neck\?"):
            parts.mask("face neck")

    def test_indexed_png(self, tmp_path: Path) -> None:
        parts = sample("parts")
        parts.save(tmp_path / "a.png")
        image = Image.open(tmp_path / "a.png")
        assert image.mode == "P"
        np.testing.assert_array_equal(np.asarray(image), parts.labels)
        assert tuple(np.asarray(image.convert("RGB"))[0, 29]) == PART_COLORS[1]

    def test_json_has_a_mask_for_each(self, tmp_path: Path) -> None:
        mask_tools = pytest.importorskip("pycocotools.mask")
        parts = sample("parts")
        parts.save(tmp_path / "a.json")
        actual = json.loads((tmp_path / "a.json").read_text())["parts"]
        assert [(one["id"], one["name"], one["area"]) for one in actual[:2]] == [
            (0, "Background", 25),
            (1, "Apparel", 25),
        ]
        for one in actual:
            np.testing.assert_array_equal(mask_tools.decode(one["rle"]), parts.labels == one["id"])

    def test_coco_leaves_the_background_out(self) -> None:
        parts = sample("parts")
        records = parts.to_coco(image_id=5, first_id=10)
        assert [(r["category_id"], r["id"], r["image_id"]) for r in records[:2]] == [(1, 10, 5), (2, 11, 5)]
        assert {r["category_id"] for r in records} <= {c["id"] for c in parts.coco_categories()}

    def test_the_legend_stands_beside(self) -> None:
        parts = sample("parts")
        assert parts.plot(legend=False).size == (30, 20)
        assert parts.plot().size > (30, 20)


class TestSemantic:
    def test_by_name(self) -> None:
        semantic = sample("semantic", id2label={0: "wall", 1: "floor", 2: "wall"})
        np.testing.assert_array_equal(semantic.mask("wall"), np.isin(semantic.labels, [0, 2]))
        assert semantic.areas()["wall"] == 60
        assert semantic.present()[:3] == ("wall", "floor", "class 3")
        with pytest.raises(InputError, match="Did you mean floor"):
            semantic.mask("flor")

    def test_indexed_png(self, tmp_path: Path) -> None:
        semantic = sample("semantic")
        semantic.save(tmp_path / "a.png")
        image = Image.open(tmp_path / "a.png")
        np.testing.assert_array_equal(np.asarray(image), semantic.labels)
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), semantic.palette()[semantic.labels])

    def test_many_classes_need_16_bits(self, tmp_path: Path) -> None:
        labels = np.full(HW, 846, np.int32)
        sample("semantic", labels=labels).save(tmp_path / "a.png")
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "a.png")), labels)
        names = {label: f"n{label}" for label in range(1000)}
        few = np.full(HW, 3, np.int32)
        sample("semantic", labels=few, id2label=names).save(tmp_path / "b.png")
        assert Image.open(tmp_path / "b.png").mode == "P"

    def test_coco(self, tmp_path: Path) -> None:
        semantic = sample("semantic")
        with CocoWriter(tmp_path / "a.json") as writer:
            writer.add(semantic)
        data = json.loads((tmp_path / "a.json").read_text())
        assert [c["name"] for c in data["categories"]][:2] == ["wall", "class 1"]
        assert sum(record["area"] for record in data["annotations"]) == 600


class TestNormals:
    def test_conventions(self) -> None:
        normals = sample("normals")
        opengl = normals.to_convention("opengl")
        np.testing.assert_allclose(opengl.normals[0, 0], [0.6, 0, 0.8], atol=1e-6)
        np.testing.assert_array_equal(opengl.to_convention("opencv").normals, normals.normals)
        assert normals.to_convention("opencv") is normals
        np.testing.assert_array_equal(np.asarray(opengl.plot()), np.asarray(normals.plot()))
        with pytest.raises(InputError, match="convention"):
            normals.to_convention("dx")

    def test_images_have_the_usual_colors(self, tmp_path: Path) -> None:
        png = pytest.importorskip("png")
        normals = sample("normals")
        expected = (np.array([0.6, 0, 0.8]) + 1) / 2
        normals.save(tmp_path / "a.png")
        actual = np.asarray(Image.open(tmp_path / "a.png"))
        np.testing.assert_allclose(actual[10, 10] / 255, expected, atol=0.003)
        normals.save(tmp_path / "a.16.png")
        _, _, rows, about = png.Reader(str(tmp_path / "a.16.png")).read()
        assert about["bitdepth"] == 16
        found16 = np.array([list(row) for row in rows]).reshape(*HW, 3)
        np.testing.assert_allclose(found16[10, 10] / 65535, expected, atol=1e-5)
        assert found16[~MIDDLE].max() == 0

    def test_exr(self, tmp_path: Path) -> None:
        exr = pytest.importorskip("OpenEXR")
        normals = sample("normals")
        normals.save(tmp_path / "a.exr")
        with exr.File(str(tmp_path / "a.exr")) as file:
            pixels = file.channels()["RGBA"].pixels
            assert "opencv" in file.header()["comments"]
        np.testing.assert_array_equal(pixels[..., :3], normals.normals)
        np.testing.assert_array_equal(pixels[..., 3], MIDDLE)


class TestAlbedo:
    def test_png(self, tmp_path: Path) -> None:
        sample("albedo").save(tmp_path / "a.png")
        expected = np.where(MIDDLE[..., None], IMAGE, 128)
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "a.png")), expected)

    def test_exr_is_linear(self, tmp_path: Path) -> None:
        exr = pytest.importorskip("OpenEXR")
        sample("albedo", albedo=np.full((*HW, 3), 0.5, np.float32)).save(tmp_path / "a.exr")
        with exr.File(str(tmp_path / "a.exr")) as file:
            pixels = file.channels()["RGBA"].pixels
        np.testing.assert_allclose(pixels[10, 10], [0.21404] * 3 + [1], atol=1e-5)
        np.testing.assert_array_equal(pixels[0, 0], [0, 0, 0, 0])


class TestEmbedding:
    def test_similarity(self) -> None:
        one, other = sample("embed"), sample("embed", cls=np.eye(8, dtype=np.float32)[0])
        assert one.similarity(one) == pytest.approx(1)
        assert one.similarity(other) == pytest.approx(float(one.cls[0] / np.linalg.norm(one.cls)), abs=1e-6)
        shorter = sample("embed", cls=np.ones(4, np.float32), patches=np.ones((1, 1, 4), np.float32))
        with pytest.raises(InputError, match="expected 8 channels, got 4"):
            one.similarity(shorter)

    def test_json(self, tmp_path: Path) -> None:
        result = sample("embed")
        result.save(tmp_path / "a.json")
        actual = json.loads((tmp_path / "a.json").read_text())
        np.testing.assert_array_equal(np.array(actual["cls"], np.float32), result.cls)
        assert actual["grid_hw"] == [4, 6]
        assert result.plot().size == (30, 20)
