"""`Track`: masks with identities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.results.samples import HW, IMAGE, masks_fields, people, sample
from vitruvian.errors import InputError
from vitruvian.results import Track

MASKS = masks_fields()["rles"]


def track(**fields: Any) -> Track:
    plain = {name: value for name, value in masks_fields().items() if name in ("rles", "scores", "boxes_xyxy")}
    ids, presence = np.array([7, 300, 2]), np.array([0.9, 0.2, 0.6], np.float32)
    return Track(**({"size_hw": HW, "image": IMAGE, "object_ids": ids, "presence": presence} | plain | fields))


def test_objects_are_found_by_id() -> None:
    result = track()
    assert (result.of(300) == MASKS[1]).all()
    assert result.visible.tolist() == [True, False, True]
    assert [(one["id"], one["presence"]) for one in result.to_dict()["objects"]] == [(7, 0.9), (300, 0.2), (2, 0.6)]
    with pytest.raises(InputError, match=r"expected one of \[7, 300, 2\], got 5"):
        result.of(5)


def test_index_map_holds_ids(tmp_path: Path) -> None:
    result = track()
    wanted = np.zeros(HW, np.uint16)
    for index in np.argsort(-MASKS.sum(axis=(1, 2)), kind="stable"):
        wanted[MASKS[index]] = result.object_ids[index]
    assert (result.index_map() == wanted).all()
    few = track(object_ids=np.array([7, 30, 2]))
    for each, mode in ((result, "I;16"), (few, "P")):
        with Image.open(each.save(tmp_path / "map.png")) as image:
            assert image.mode == mode
            assert (np.asarray(image) == each.index_map()).all()


def test_cut_outs() -> None:
    result = track()
    rgba = result.rgba()
    assert ((rgba[..., 3] == 255) == MASKS.any(axis=0)).all()
    assert (rgba[rgba[..., 3] == 255, :3] == IMAGE[MASKS.any(axis=0)]).all()
    crop = result.crop(2)
    assert crop is not None
    assert crop.shape == (3, 4, 4)
    assert (crop[..., :3] == IMAGE[2:5, 3:7]).all()
    assert track(rles=np.zeros_like(MASKS), boxes_xyxy=np.zeros((3, 4), np.float32)).crop(2) is None


def test_colors_follow_identities() -> None:
    order = [2, 0, 1]
    other = track(rles=MASKS[order], object_ids=np.array([7, 300, 2])[order])
    assert (np.asarray(other.plot()) == np.asarray(track().plot())).all()


@pytest.mark.parametrize("ids", [[1, 1, 2], [0, 1, 2], [1, 2, 70000]])
def test_ids_are_checked(ids: list[int]) -> None:
    with pytest.raises(InputError, match="object_ids: expected different numbers from 1"):
        track(object_ids=np.array(ids))


def test_supervision_keeps_the_ids() -> None:
    pytest.importorskip("supervision")
    masks = np.zeros((2, 6, 8), bool)
    masks[0, :3], masks[1, 3:] = True, True
    track = Track(
        size_hw=(6, 8),
        rles=masks,
        scores=np.ones(2, np.float32),
        boxes_xyxy=np.array([[0, 0, 8, 3], [0, 3, 8, 6]], np.float32),
        object_ids=np.array([7, 2]),
        presence=np.ones(2, np.float32),
    )
    assert track.to_supervision().tracker_id.tolist() == [7, 2]


def test_supervision_keeps_the_ids_of_people() -> None:
    pytest.importorskip("supervision")
    found = sample("pose", people=people(2, ids=True)).to_supervision()
    assert found.data["tracker_id"].tolist() == [0, 1]
