"""Labels of other tools: YOLO, Label Studio, CVAT, and images in a ZIP."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.results.samples import IMAGE, sample
from vitruvian import cli
from vitruvian.errors import InputError
from vitruvian.files import CocoWriter
from vitruvian.files.labels import write_cvat, write_label_studio, write_yolo
from vitruvian.results import Masks, Pose


def dataset(folder: Path, result: Any) -> dict[str, Any]:
    with CocoWriter(folder / "all.json") as writer:
        writer.add(result, file_name="a/7.jpg")
    values: dict[str, Any] = json.loads((folder / "all.json").read_text())
    return values


def numbers(line: str) -> list[float]:
    return [float(word) for word in line.split()]


def test_yolo_poses(tmp_path: Path) -> None:
    pose = sample("pose").to_layout("coco17")
    path = pose.save(tmp_path / "7.txt")
    lines = [numbers(line) for line in path.read_text().splitlines()]
    assert [len(line) for line in lines] == [1 + 4 + 3 * 17] * 2
    assert lines[0][:5] == pytest.approx([0, 6 / 30, 8 / 20, 10 / 30, 12 / 20])  # the box 1, 2, 11, 14
    for index in range(17):
        x, y, visible = lines[0][5 + 3 * index : 8 + 3 * index]
        assert (visible == 2) == (pose.scores[0, index] >= 0.3)
        assert not visible or [x * 30, y * 20] == pytest.approx(pose.keypoints[0, index], abs=1e-3)
    write_yolo(tmp_path / "set", dataset(tmp_path, pose))
    again = [numbers(line) for line in (tmp_path / "set/7.txt").read_text().splitlines()]
    np.testing.assert_allclose(again, lines, atol=1e-3)
    assert (tmp_path / "set/classes.txt").read_text() == "person\n"
    assert (tmp_path / "set/data.yaml").read_text() == 'nc: 1\nnames: ["person"]\nkpt_shape: [17, 3]\n'


def test_yolo_segments(tmp_path: Path) -> None:
    masks = sample("instances")
    path = masks.save(tmp_path / "7.txt")
    lines = [numbers(line) for line in path.read_text().splitlines()]
    assert [line[0] for line in lines] == [4, 2, 4]
    corners = {(round(x * 30), round(y * 20)) for x, y in zip(lines[2][1::2], lines[2][2::2], strict=True)}
    assert corners == {(3, 2), (7, 2), (7, 5), (3, 5)}
    write_yolo(tmp_path / "set", dataset(tmp_path, masks))
    assert [line[0] for line in (tmp_path / "set/7.txt").read_text().splitlines()] == ["1", "0", "1"]
    assert (tmp_path / "set/classes.txt").read_text().split() == ["dog", "cat"]


def test_label_studio(tmp_path: Path) -> None:
    write_label_studio(tmp_path / "ls.json", dataset(tmp_path, sample("instances")), image_root="/data/")
    (task,) = json.loads((tmp_path / "ls.json").read_text())
    assert task["data"] == {"image": "/data/a/7.jpg"}
    shapes = task["predictions"][0]["result"]
    box = next(one for one in shapes if one["type"] == "rectanglelabels" and one["value"]["x"] == 10)
    assert box["value"].pop("rectanglelabels") == ["cat"]
    assert box["value"] == pytest.approx({"x": 10, "y": 10, "width": 40 / 3, "height": 15, "rotation": 0})
    assert {one["type"] for one in shapes} == {"rectanglelabels", "polygonlabels"}
    assert len({one["id"] for one in shapes}) == len(shapes)
    write_label_studio(tmp_path / "ls.json", dataset(tmp_path, sample("pose").to_layout("coco17")))
    (task,) = json.loads((tmp_path / "ls.json").read_text())
    names = {one["value"]["keypointlabels"][0] for one in task["predictions"][0]["result"] if one["from_name"] == "kp"}
    assert "nose" in names or "left_eye" in names
    ids = {one["id"] for one in task["predictions"][0]["result"] if one["from_name"] == "box"}
    assert {one["parentID"] for one in task["predictions"][0]["result"] if one["from_name"] == "kp"} <= ids
    interface = ElementTree.parse(tmp_path / "ls.xml").getroot()
    assert [len(interface.findall(f"{tag}/Label")) for tag in ("RectangleLabels", "KeyPointLabels")] == [1, 17]
    assert task["predictions"][0]["score"] > 0


def test_cvat(tmp_path: Path) -> None:
    write_cvat(tmp_path / "a.xml", dataset(tmp_path, sample("instances")))
    image = ElementTree.parse(tmp_path / "a.xml").getroot().find("image")
    assert image is not None
    assert (image.get("name"), image.get("width"), image.get("height")) == ("a/7.jpg", "30", "20")
    polygons = image.findall("polygon")
    assert [one.get("label") for one in polygons] == ["cat", "dog", "cat"]
    assert len(str(polygons[2].get("points")).split(";")) == 4
    pose = sample("pose").to_layout("coco17")
    write_cvat(tmp_path / "a.xml", dataset(tmp_path, pose))
    labels = ElementTree.parse(tmp_path / "a.xml").getroot().findall("meta/task/labels/label")
    assert [label.findtext("type") for label in labels] == ["skeleton"] + ["points"] * 17
    skeletons = ElementTree.parse(tmp_path / "a.xml").getroot().findall("image/skeleton")
    assert [len(one) for one in skeletons] == [17, 17]
    shown = [sum(point.get("outside") == "0" for point in one) for one in skeletons]
    assert shown == [int((scores >= 0.3).sum()) for scores in pose.scores]


def test_names_that_xml_does_not_allow(tmp_path: Path) -> None:
    coco = dataset(tmp_path, sample("instances"))
    coco["categories"][0]["name"] = "a\x00\ud800"
    write_cvat(tmp_path / "a.xml", coco)
    write_label_studio(tmp_path / "ls.json", coco)
    root = ElementTree.parse(tmp_path / "a.xml").getroot()
    assert "a\ufffd\ufffd" in [name.text for name in root.iter("name")]
    labels = {label.get("value") for label in ElementTree.parse(tmp_path / "ls.xml").iter("Label")}
    shapes = json.loads((tmp_path / "ls.json").read_text())[0]["predictions"][0]["result"]
    assert "a\ufffd\ufffd" in labels
    assert {name for shape in shapes for name in shape["value"].get("rectanglelabels", [])} <= labels


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset(tmp_path, sample("instances"))
    source = str(tmp_path / "all.json")
    for form, name in (("yolo", "labels"), ("label-studio", "ls.json"), ("cvat", "a.xml")):
        assert cli.run(["labels", source, "--to", form, "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name).exists()
    (tmp_path / "other.json").write_text('{"images": []}')
    assert cli.run(["labels", str(tmp_path / "other.json"), "--to", "cvat", "--out", str(tmp_path / "b.xml")]) == 2
    assert "expected a COCO dataset with images, annotations and categories" in capsys.readouterr().err
    for wrong in ('{"images": [{}], "annotations": [], "categories": []}', "[]", '{"images": [3]'):
        (tmp_path / "other.json").write_text(wrong)
        assert cli.run(["labels", str(tmp_path / "other.json"), "--to", "yolo", "--out", str(tmp_path / "b")]) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        assert "bug" not in error


def test_panoptic_datasets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Panoptic"):
        write_cvat(tmp_path / "a.xml", dataset(tmp_path, sample("panoptic")))


def read_zip(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        return {name: np.asarray(Image.open(io.BytesIO(archive.read(name)))) for name in archive.namelist()}


def test_crops_of_people(tmp_path: Path) -> None:
    images = read_zip(sample("pose").save(tmp_path / "a.crops.zip"))
    assert list(images) == ["01.png", "02.png"]
    np.testing.assert_array_equal(images["01.png"], IMAGE[2:14, 1:11])
    matte = sample("matte")
    cut = read_zip(matte.save(tmp_path / "b.crops.zip"))
    np.testing.assert_array_equal(cut["02.png"], matte.rgba()[5:17, 4:14])


def test_crops_of_objects(tmp_path: Path) -> None:
    masks: Masks = sample("instances")
    cut = read_zip(masks.save(tmp_path / "a.crops.zip"))
    np.testing.assert_array_equal(cut["02.png"][..., :3], IMAGE[10:, 15:])
    np.testing.assert_array_equal(cut["02.png"][..., 3] > 0, masks.mask(1)[10:, 15:])


def test_masks_of_parts(tmp_path: Path) -> None:
    parts = sample("parts")
    images = read_zip(parts.save(tmp_path / "a.parts.zip"))
    assert "Background.png" not in images
    assert images["Hair.png"].sum() / 255 == (parts.labels == 4).sum()
    assert parts.save(tmp_path / "b.parts.zip").read_bytes() == (tmp_path / "a.parts.zip").read_bytes()


def test_no_one(tmp_path: Path) -> None:
    none: dict[str, Any] = {"keypoints": np.zeros((0, 308, 2), np.float32), "scores": np.zeros((0, 308), np.float32)}
    pose = Pose(size_hw=(20, 30), **none)
    assert pose.save(tmp_path / "a.txt").read_text() == ""
    assert read_zip(pose.save(tmp_path / "a.crops.zip")) == {}


def _coco(*names: str) -> dict[str, Any]:
    images = [{"id": number, "file_name": name, "height": 4, "width": 6} for number, name in enumerate(names)]
    boxes = [{"id": image["id"], "image_id": image["id"], "category_id": 1, "bbox": [0, 0, 1, 1]} for image in images]
    return {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "a\nb"}]}


def test_yolo_labels_of_images_with_one_name_stay_apart(tmp_path: Path) -> None:
    write_yolo(tmp_path, _coco("d/a/7.jpg", "d/b/7.jpg"))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.txt")) == [
        "a/7.txt", "b/7.txt", "classes.txt",
    ]  # fmt: skip
    assert (tmp_path / "classes.txt").read_text() == "a b\n"
    for names in (("7.jpg", "7.png"), ("classes.jpg",), ("A.jpg", "a.jpg")):
        with pytest.raises(InputError, match="twice"):
            write_yolo(tmp_path / "none", _coco(*names))
    for names in (("../x.jpg", "a/y.jpg"), ("a/../../x.jpg", "a/y.jpg")):
        with pytest.raises(InputError, match="outside"):
            write_yolo(tmp_path / "none", _coco(*names))
    assert not (tmp_path / "none").exists()


def test_cvat_takes_any_name(tmp_path: Path) -> None:
    write_cvat(tmp_path / "x.xml", _coco("\udcff\x1b<.jpg"))
    assert ElementTree.parse(tmp_path / "x.xml").find("image").get("name") == "\ufffd\ufffd<.jpg"  # type: ignore[union-attr]
