"""Writing sets of synthetic people."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.unit.training.tiny_runs import PLAIN, SIZE_HW
from vitruvian.errors import CheckpointError, ImageError, InputError
from vitruvian.human import KEYPOINT_NAMES, PART_COLORS
from vitruvian.images.rle import decode_rle, rle_box_xywh
from vitruvian.training.seeds import derive_seed
from vitruvian.training.synthetic import dataset
from vitruvian.training.synthetic.asset_pack import AssetPack
from vitruvian.training.synthetic.camera import points_from_depth
from vitruvian.training.synthetic.dataset import (
    _GROUP,
    ANNOTATIONS_FILE,
    SHEET_FILE,
    DatasetOptions,
    _file_names,
    _render_group,
    read_maps,
    write_dataset,
)
from vitruvian.training.synthetic.procedural_pack import procedural_pack
from vitruvian.training.synthetic.textures import build_pyramid

OPTIONS = DatasetOptions(render=PLAIN, people=1.5, image_format="png")


@pytest.fixture(scope="module")
def whole(pack: AssetPack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets") / "whole"
    assert write_dataset(folder, 11, seed=4, pack=pack, options=OPTIONS) == folder / ANNOTATIONS_FILE
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def table(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / ANNOTATIONS_FILE).read_text())
    return loaded


def test_dataset_written_in_parts_is_identical(whole: Path, pack: AssetPack, tmp_path: Path):
    for count in (3, 8, 11):
        write_dataset(tmp_path, count, seed=4, pack=pack, options=OPTIONS)
        assert len(table(tmp_path)["images"]) == count
    assert contents(tmp_path) == contents(whole)


def test_interrupted_dataset_is_resumed(whole: Path, pack: AssetPack, tmp_path: Path):
    def stop(done: int, count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path, 11, seed=4, pack=pack, options=OPTIONS, progress=stop)
    assert not (tmp_path / ANNOTATIONS_FILE).exists()
    drawn = contents(tmp_path)
    (tmp_path / "images" / "000009.png").write_bytes(b"cut off")  # a file of the group that was not finished
    done: list[tuple[int, int]] = []
    write_dataset(tmp_path, 11, seed=4, pack=pack, options=OPTIONS, progress=lambda *numbers: done.append(numbers))
    assert done == [(8, 11), (11, 11)]
    assert contents(tmp_path) == contents(whole)
    assert drawn.items() - {("set.json", drawn["set.json"])} <= contents(whole).items()


def test_finished_groups_are_skipped(whole: Path, pack: AssetPack, monkeypatch: pytest.MonkeyPatch):
    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("drawn again")

    monkeypatch.setattr(dataset, "_render_group", never)
    before = contents(whole)
    write_dataset(whole, 11, seed=4, pack=pack, options=OPTIONS)
    assert contents(whole) == before


def test_other_seeds_give_other_people(whole: Path, pack: AssetPack, tmp_path: Path):
    write_dataset(tmp_path, 2, seed=5, pack=pack, options=OPTIONS)
    assert contents(tmp_path)["images/000000.png"] != contents(whole)["images/000000.png"]
    assert len({derive_seed(seed, number) for seed in range(20) for number in range(200)}) == 4000


def test_files_contain_the_ground_truth(whole: Path, pack: AssetPack):
    truth = _render_group(pack, 4, 0, OPTIONS, pyramid=build_pyramid(pack.textures))
    entries = table(whole)["images"]
    for index in range(_GROUP):
        maps = read_maps(whole, _file_names(index, "png"))
        assert torch.equal(maps["image"], (truth.image[index].clamp(0, 1) * 255).round().byte())
        assert torch.allclose(maps["matte"][3:], truth.alpha[index], atol=0.5 / 255 + 1e-6)
        assert torch.allclose(
            maps["matte"][:3] * maps["matte"][3:], truth.foreground[index].clamp(0, 1), atol=1.5 / 255
        )
        assert torch.allclose(maps["albedo"], truth.albedo[index], atol=0.5 / 255 + 1e-6)
        assert torch.allclose(maps["normals"], truth.normals[index], atol=1e-3)
        assert torch.equal(maps["parts"], truth.parts[index])
        camera = torch.tensor(entries[index]["intrinsics"], dtype=torch.float32)
        points = points_from_depth(maps["depth"][None], camera[None])[0]
        assert torch.allclose(points, truth.pointmap[index], atol=1e-4)
        assert entries[index]["scale"] == pytest.approx(truth.scale[index].item())


def test_coco_annotations(whole: Path, pack: AssetPack):
    found = table(whole)
    (category,) = found["categories"]
    assert category["keypoints"] == list(KEYPOINT_NAMES)
    assert min(min(bone) for bone in category["skeleton"]) >= 1
    assert [image["id"] for image in found["images"]] == list(range(11))
    assert len({person["id"] for person in found["annotations"]}) == len(found["annotations"]) > 11
    for image in found["images"]:
        assert (image["height"], image["width"]) == SIZE_HW
        for key in ("file_name", "matte_file", "albedo_file", "parts_file", "geometry_file"):
            assert (whole / image[key]).is_file()
    for person in found["annotations"]:
        mask = decode_rle(person["segmentation"])
        assert person["area"] == int(mask.sum()) > 0
        assert person["bbox"] == rle_box_xywh(person["segmentation"])
        points = np.array(person["keypoints"]).reshape(308, 3)
        assert person["num_keypoints"] == (points[:, 2] > 0).sum()
        assert (points[points[:, 2] == 0] == 0).all()
        known = points[points[:, 2] > 0]
        assert ((known[:, 0] >= -0.5) & (known[:, 0] <= SIZE_HW[1] - 0.5)).all()
        assert 0.5 < person["stature"] < 2.5
    truth = _render_group(pack, 4, 0, OPTIONS, pyramid=build_pyramid(pack.textures))
    first = next(person for person in found["annotations"] if person["image_id"] == 3)
    assert np.allclose(
        np.array(first["keypoints"]).reshape(308, 3)[:, 2], truth.keypoints[3, 0, :, 2].numpy()
    )  # the subject comes first


def test_part_maps_have_a_palette(whole: Path):
    with Image.open(whole / "parts" / "000000.png") as image:
        assert image.mode == "P"
        palette = image.getpalette()
    assert palette is not None
    assert palette[: 3 * 29] == [channel for color in PART_COLORS for channel in color]


def test_the_contact_sheet(whole: Path):
    with Image.open(whole / SHEET_FILE) as sheet:
        assert sheet.width > 7 * round(192 * SIZE_HW[1] / SIZE_HW[0])
        assert sheet.height > 8 * 192
        assert np.asarray(sheet).std() > 20


def test_jpeg(pack: AssetPack, tmp_path: Path):
    write_dataset(tmp_path, 1, pack=pack, options=DatasetOptions(render=PLAIN))
    with Image.open(tmp_path / "images" / "000000.jpg") as image:
        assert image.format == "JPEG"
    assert read_maps(tmp_path, _file_names(0, "jpg"), frozenset())["image"].shape == (3, *SIZE_HW)


def test_other_folders_are_refused(whole: Path, pack: AssetPack, tmp_path: Path):
    with pytest.raises(InputError, match=r"holds another dataset .its seed differ"):
        write_dataset(whole, 11, seed=3, pack=pack, options=OPTIONS)
    with pytest.raises(InputError, match="its options differ"):
        write_dataset(whole, 11, seed=4, pack=pack, options=DatasetOptions(render=PLAIN))
    with pytest.raises(InputError, match="its pack differ"):
        write_dataset(whole, 11, seed=4, pack=procedural_pack(1), options=OPTIONS)
    with pytest.raises(InputError, match="already holds 11 images"):
        write_dataset(whole, 3, seed=4, pack=pack, options=OPTIONS)
    with pytest.raises(InputError, match="at least one image"):
        write_dataset(tmp_path, 0, pack=pack)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="expected an empty folder"):
        write_dataset(tmp_path, 1, pack=pack)
    with pytest.raises(InputError, match="expected a folder to write a dataset into, got a file"):
        write_dataset(tmp_path / "notes.txt", 1, pack=pack)


@pytest.mark.parametrize("options", [{"people": 0.5}, {"people": 9}, {"image_format": "gif"}, {"quality": 0}])
def test_invalid_dataset_options_raise(options: dict[str, Any]):
    with pytest.raises(InputError):
        DatasetOptions(**options)


def test_damaged_files_raise(pack: AssetPack, tmp_path: Path):
    write_dataset(tmp_path, 1, pack=pack, options=OPTIONS)
    names = _file_names(0, "png")
    Image.new("L", (5, 5)).save(tmp_path / names["parts"])
    with pytest.raises(ImageError, match="expected P of 64×48, got L of 5×5"):
        read_maps(tmp_path, names)
    small = {"normals": np.zeros((3, 2, 2)), "depth": np.zeros((2, 2)), "depth_low": 1, "depth_step": 1}
    np.savez(tmp_path / names["geometry"], **small)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="expected maps of 64×48"):
        read_maps(tmp_path, names, frozenset({"geometry"}))
    (tmp_path / names["geometry"]).write_bytes(b"PK")
    with pytest.raises(CheckpointError, match="expected normals and depth"):
        read_maps(tmp_path, names, frozenset({"geometry"}))
