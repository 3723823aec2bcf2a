"""Masks and panoptic maps, as files and as datasets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.results.samples import HW, masks_fields, sample
from vitruvian.errors import InputError
from vitruvian.files import CocoWriter
from vitruvian.images.rle import encode_rles
from vitruvian.results import Masks, Panoptic

TRUTH = masks_fields()["rles"]


class TestMasks:
    @pytest.mark.parametrize("form", ["array", "lists", "strings"])
    def test_masks_come_in_any_form(self, form: str) -> None:
        rles = TRUTH if form == "array" else encode_rles(TRUTH, compress=form == "strings")
        masks = sample("instances", rles=rles)
        assert [type(rle["counts"]) for rle in masks.rles] == [str] * 3
        np.testing.assert_array_equal(masks.masks, TRUTH)
        np.testing.assert_array_equal(np.stack(list(masks)), TRUTH)
        np.testing.assert_array_equal(masks.mask(1), TRUTH[1])
        np.testing.assert_array_equal(masks.areas, TRUTH.sum((1, 2)))
        assert len(masks) == 3

    @pytest.mark.parametrize("kind", ["segment", "masks", "instances"])
    def test_the_task_is_its_kind(self, kind: str) -> None:
        assert sample("instances", kind=kind).task == kind
        assert sample("instances", kind=kind).to_dict()["task"] == kind

    def test_none_at_all(self, tmp_path: Path) -> None:
        for rles in ([], np.zeros((0, *HW), bool)):
            none = Masks(
                size_hw=HW,
                kind="segment",
                rles=rles,
                scores=np.zeros(0, np.float32),
                boxes_xyxy=np.zeros((0, 4), np.float32),
            )
            assert none.masks.shape == (0, *HW)
            assert none.to_coco() == []
            assert none.plot().size == (30, 20)
            for ending in none.extensions:
                none.save(tmp_path / f"a{ending}")
            assert np.asarray(Image.open(tmp_path / "a.png")).max() == 0

    def test_small_ones_lie_on_top_in_the_png(self, tmp_path: Path) -> None:
        masks = sample("instances")
        masks.save(tmp_path / "a.png")
        actual = np.asarray(Image.open(tmp_path / "a.png"))
        assert (actual[0, 0], actual[3, 4], actual[12, 16], actual[19, 29], actual[19, 0]) == (1, 3, 2, 2, 0)

    def test_many_of_them_need_16_bits(self, tmp_path: Path) -> None:
        many = np.zeros((300, *HW), bool)
        many.reshape(300, -1)[np.arange(300), np.arange(300)] = True
        Masks(
            size_hw=HW, kind="masks", rles=many, scores=np.ones(300, np.float32),
            boxes_xyxy=np.ones((300, 4), np.float32),
        ).save(tmp_path / "a.png")  # fmt: skip
        assert np.asarray(Image.open(tmp_path / "a.png")).ravel()[:300].tolist() == list(range(1, 301))

    def test_json(self, tmp_path: Path) -> None:
        mask_tools = pytest.importorskip("pycocotools.mask")
        sample("instances").save(tmp_path / "a.json")
        objects = json.loads((tmp_path / "a.json").read_text())["objects"]
        assert [(one["label"], one["label_id"], one["score"]) for one in objects][1] == ("dog", 2, 0.8)
        for one, truth in zip(objects, TRUTH, strict=True):
            np.testing.assert_array_equal(mask_tools.decode(one["rle"]), truth)

    def test_coco(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        coco = pytest.importorskip("pycocotools.coco")
        with CocoWriter(tmp_path / "a.json") as writer:
            writer.add(sample("instances"))
        dataset = coco.COCO(str(tmp_path / "a.json"))
        capsys.readouterr()
        assert {one["id"]: one["name"] for one in dataset.cats.values()} == {2: "dog", 4: "cat"}
        for number, truth in enumerate(TRUTH, 1):
            np.testing.assert_array_equal(dataset.annToMask(dataset.anns[number]), truth)
        assert dataset.anns[2]["bbox"] == [15, 10, 15, 10]
        assert dataset.getAnnIds(catIds=[4]) == [1, 3]

    def test_masks_without_classes_are_objects(self) -> None:
        masks = sample("instances", kind="segment", label_ids=None, label_names=None)
        assert {record["category_id"] for record in masks.to_coco()} == {1}
        assert [category["name"] for category in masks.coco_categories()] == ["object"]

    def test_supervision(self) -> None:
        pytest.importorskip("supervision")
        actual = sample("instances").to_supervision()
        np.testing.assert_array_equal(actual.mask, TRUTH)
        assert actual.data["class_name"].tolist() == ["cat", "dog", "cat"]


class TestPanoptic:
    def test_segment_numbers_as_colors(self) -> None:
        ids = [1, 255, 256, 65535, 65536, 123456, 1 << 23, (1 << 24) - 1]
        numbers = np.zeros(HW, np.int32)
        numbers[0, : len(ids)] = ids
        one = sample("panoptic").segments[0]
        result = sample("panoptic", segmentation=numbers, segments=tuple(replace(one, id=number) for number in ids))
        np.testing.assert_array_equal(result.panoptic_image().astype(np.int64) @ [1, 256, 65536], numbers)

    def test_png_holds_the_numbers(self, tmp_path: Path) -> None:
        panoptic = sample("panoptic")
        panoptic.save(tmp_path / "a.png")
        image = np.asarray(Image.open(tmp_path / "a.png")).astype(int)
        np.testing.assert_array_equal(image @ [1, 256, 65536], panoptic.segmentation)

    def test_by_number(self) -> None:
        panoptic = sample("panoptic")
        assert len(panoptic) == 2
        assert panoptic.mask(300).sum() == 100
        with pytest.raises(InputError, match="expected one of 2 ids, got 2"):
            panoptic.mask(2)

    def test_ids_must_differ(self) -> None:
        panoptic = sample("panoptic")
        with pytest.raises(InputError, match="expected different ids"):
            sample("panoptic", segments=(panoptic.segments[0],) * 2)

    def test_coco(self, tmp_path: Path) -> None:
        panoptic: Panoptic = sample("panoptic")
        with CocoWriter(tmp_path / "a.json") as writer:
            writer.add(panoptic)
        data = json.loads((tmp_path / "a.json").read_text())
        (record,) = data["annotations"]
        assert record["image_id"] == 1
        ids = np.asarray(Image.open(tmp_path / "a" / record["file_name"])).astype(int) @ [1, 256, 65536]
        for segment in record["segments_info"]:
            assert (ids == segment["id"]).sum() == segment["area"]
        assert record["segments_info"][1]["bbox"] == [20, 10, 10, 10]
        assert [(c["id"], c["name"], c["isthing"]) for c in data["categories"]] == [(0, "person", 1), (40, "sky", 0)]

    def test_json(self, tmp_path: Path) -> None:
        sample("panoptic").save(tmp_path / "a.json")
        actual = json.loads((tmp_path / "a.json").read_text())["segments"]
        assert [(one["id"], one["label"], one["area"]) for one in actual] == [(1, "sky", 300), (300, "person", 100)]


def test_boxes_and_clicks_are_drawn() -> None:
    masks = sample("instances")
    plain = np.asarray(masks.plot())
    boxed = np.asarray(masks.plot(boxes=True))
    clicked = np.asarray(masks.plot(points=[[20, 10], [8, 10]], labels=[1, 0])).astype(int)
    assert (plain != boxed).any()
    assert clicked[12, 18, 1] > clicked[12, 18, 0] + 50  # green beside the plus
    assert clicked[13, 8, 0] > clicked[13, 8, 1] + 50  # red below the minus
    np.testing.assert_array_equal(plain[:, 28:], clicked[:, 28:])
