"""Keypoints by number and by name, in other layouts and in other programs' forms."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.results.samples import HW, people, pose_fields, sample
from vitruvian.errors import InputError, MissingExtraError
from vitruvian.files import CocoWriter
from vitruvian.human import COCO_17, KEYPOINT_INDEX, LAYOUTS, SAPIENS_308
from vitruvian.results import Keypoint, Pose


def test_by_number_and_by_name() -> None:
    pose = sample("pose")
    assert len(pose) == 2
    wrist = KEYPOINT_INDEX["left_wrist"]
    actual = pose[1]["left_wrist"]
    assert actual == Keypoint(*pose.keypoints[1, wrist].tolist(), float(pose.scores[1, wrist]))
    assert [person.id for person in pose] == [0, 1]
    np.testing.assert_array_equal(pose[1].box_xyxy, pose.people.boxes_xyxy[1])
    with pytest.raises(IndexError):
        pose[2]
    with pytest.raises(InputError, match=r"expected one of 308 names, got 'left_wirst'\. Did you mean left_wrist"):
        pose[0]["left_wirst"]


def test_boxes_without_people_are_tight() -> None:
    pose = sample("pose", people=None)
    assert pose[0].id is None
    np.testing.assert_allclose(pose.boxes_xyxy[0, :2], pose.keypoints[0].min(0))
    np.testing.assert_allclose(pose.boxes_xyxy[0, 2:], pose.keypoints[0].max(0))
    converted = pose.to_layout("coco133")
    assert np.isnan(converted.keypoints).any()
    assert np.isfinite(converted.boxes_xyxy).all()


def test_nobody() -> None:
    pose = Pose(size_hw=HW, **pose_fields(0), people=people(0))
    assert (len(pose), list(pose), pose.boxes_xyxy.shape) == (0, [], (0, 4))
    assert pose.to_layout("coco17").keypoints.shape == (0, 17, 2)
    assert pose.to_coco() == []
    assert pose.to_dict()["poses"] == []
    assert pose.plot().size == (30, 20)


@pytest.mark.parametrize("name", ["coco17", "coco133", "openpose"])
def test_other_layouts(name: str) -> None:
    pose = sample("pose")
    converted = pose.to_layout(name)
    assert converted.layout is LAYOUTS[name]
    keypoints, scores = LAYOUTS[name].convert(pose.keypoints, pose.scores)
    np.testing.assert_array_equal(converted.keypoints, keypoints)
    np.testing.assert_array_equal(converted.scores, scores)
    assert converted.people is pose.people
    assert converted.plot().size == (30, 20)
    with pytest.raises(InputError, match="expected the 308 keypoints of Sapiens2 to convert from"):
        converted.to_layout("sapiens308")


def test_layouts_that_are_the_same_or_unknown() -> None:
    pose = sample("pose")
    assert pose.to_layout("sapiens308") is pose
    with pytest.raises(InputError, match=r"layout: expected one of .*, got 'coco18'\. Did you mean coco17"):
        pose.to_layout("coco18")


def test_layouts_are_known_by_their_names() -> None:
    pose = sample("pose")
    assert pose.layout is SAPIENS_308
    fields = {"keypoints": pose.keypoints[:, :17], "scores": pose.scores[:, :17]}
    assert Pose(size_hw=HW, names=COCO_17.names, **fields).layout is COCO_17
    own = Pose(size_hw=HW, names=tuple(f"point {i}" for i in range(17)), **fields)
    assert (own.layout.name, own.layout.skeleton) == ("own", ())
    assert own.plot().size == (30, 20)
    with pytest.raises(InputError, match="expected the 17 names of the layout coco17, got 308 others"):
        Pose(size_hw=HW, names=SAPIENS_308.names, layout=COCO_17, **fields)
    with pytest.raises(InputError, match="expected a box for each of the 2 poses, got 3"):
        sample("pose", people=people(3))


def test_json_and_images(tmp_path: Path) -> None:
    pose = sample("pose").to_layout("coco133")
    pose.save(tmp_path / "a.json")
    actual = json.loads((tmp_path / "a.json").read_text())
    assert (actual["layout"], actual["names"]) == ("coco133", list(pose.names))
    keypoints = np.array([person["keypoints"] for person in actual["poses"]], float)
    np.testing.assert_allclose(keypoints, pose.keypoints, atol=0.0051)
    assert [person["id"] for person in actual["poses"]] == [0, 1]
    pose.save(tmp_path / "a.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), np.asarray(pose.plot()))
    assert not np.array_equal(np.asarray(pose.plot()), pose.image), "something is drawn"


@pytest.mark.parametrize("layout", ["sapiens308", "coco17", "coco133"])
def test_coco(tmp_path: Path, layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    pose = sample("pose").to_layout(layout)
    with CocoWriter(tmp_path / "a.json") as writer:
        writer.add(pose)
        writer.add(pose)
    dataset = coco.COCO(str(tmp_path / "a.json"))
    capsys.readouterr()
    assert sorted(dataset.anns) == [1, 2, 3, 4]
    record = dataset.anns[4]
    assert (record["image_id"], record["category_id"], record["track_id"]) == (2, 1, 1)
    count = 17 if layout == "coco133" else len(pose.names)
    assert dataset.cats[1]["keypoints"] == list(pose.names[:count])
    np.testing.assert_allclose(
        np.array(record["keypoints"]).reshape(-1, 3)[:, :2], pose.keypoints[1, :count], atol=0.01
    )
    visible = pose.scores[1][pose.scores[1] >= 0.3]
    assert record["score"] == pytest.approx(0.9 * visible.mean(), abs=1e-4)
    assert dataset.imgs[1]["file_name"] == "a.jpg"


def test_supervision_is_asked_for_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervision", None)
    for task in ("pose", "instances", "panoptic"):
        with pytest.raises(MissingExtraError, match=r'to_supervision.*"vitruvian\[supervision\]"'):
            sample(task).to_supervision()


def test_supervision() -> None:
    pytest.importorskip("supervision")
    actual = sample("pose").to_layout("coco133").to_supervision()
    assert actual.xy.shape == (2, 133, 2)
    assert np.isfinite(actual.xy).all()
    assert len(Pose(size_hw=HW, **pose_fields(0)).to_supervision()) == 0
