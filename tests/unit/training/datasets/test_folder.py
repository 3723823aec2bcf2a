"""Batches from a folder."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.unit.training.tiny_runs import SIZE_HW, TASKS, make_set, small_run
from vitruvian.errors import CheckpointError, ImageError, InputError
from vitruvian.training.config import AugmentConfig
from vitruvian.training.datasets.folder import FolderBatches, PeopleFolder
from vitruvian.training.datasets.labels import LabeledImages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 10, people=1.6)


def batches(folder: Path, workers: int = 0, *, seed: int = 0) -> FolderBatches:
    config = small_run(folder, folder, *TASKS, seed=seed, data__batch_size=3, data__workers=workers)
    return FolderBatches(PeopleFolder(folder, size_hw=SIZE_HW, tasks=TASKS), config)


def same(a: dict[str, LabeledImages], b: dict[str, LabeledImages]) -> bool:
    (first,), (second,) = a.values(), b.values()
    return all(torch.equal(value, getattr(second, name)) for name, value in vars(first).items() if value is not None)


def test_a_batch_depends_on_its_number_and_the_seed(folder: Path):
    first, again = batches(folder), batches(folder)
    assert same(first.batch(5), again.batch(5))
    assert not same(first.batch(5), first.batch(6))
    assert not same(first.batch(5), batches(folder, seed=1).batch(5))


def test_prefetching_gives_the_same_batches(folder: Path):
    plain, ahead = batches(folder), batches(folder, workers=2)
    for number in (0, 1, 2, 7, 8, 3):  # jumps, as a run that is resumed makes them
        assert same(plain.batch(number), ahead.batch(number))
    ahead.close()


def test_each_epoch_has_every_crop_once(folder: Path):
    people = PeopleFolder(folder, size_hw=SIZE_HW, tasks=["pose"])
    shown: list[int] = []
    people.read = lambda index, **options: shown.append(index) or PeopleFolder.read(people, index)  # type: ignore
    source = FolderBatches(people, small_run(folder, folder, "pose", data__batch_size=len(people)))
    for number in range(3):
        source._read(number)
    passes = [shown[k * len(people) : (k + 1) * len(people)] for k in range(3)]
    assert [sorted(one) for one in passes] == [list(range(len(people)))] * 3
    assert passes[0] != passes[1] != passes[2]


def test_people_and_images(folder: Path):
    table = json.loads((folder / "annotations.json").read_text())
    large = [person for person in table["annotations"] if min(person["bbox"][2:]) >= 8]
    people = PeopleFolder(folder, size_hw=SIZE_HW, tasks=["pose"])
    assert len(people) == len(large) > 10
    images = PeopleFolder(folder, size_hw=SIZE_HW, tasks=["pose"], view="image")
    assert len(images) == 10
    view = images.read(0)
    biggest = max((p for p in table["annotations"] if p["image_id"] == 0), key=lambda p: p["area"])
    x, y, w, h = biggest["bbox"]
    assert view.boxes_xyxy[0, 0].tolist() == pytest.approx([x, y, x + w, y + h], abs=1e-3)
    assert torch.allclose(view.keypoints[0].flatten(), torch.tensor(biggest["keypoints"]).float(), atol=1e-4)
    assert view.stature_m.item() == pytest.approx(biggest["stature"])


def test_ground_truth_of_a_crop_is_consistent(folder: Path):
    people = PeopleFolder(folder, size_hw=SIZE_HW, tasks=TASKS)
    views = LabeledImages.cat([people.read(i, augment=AugmentConfig(), seed=i) for i in range(len(people))])
    assert views.parts is not None
    assert views.depth is not None
    assert views.alpha is not None
    assert views.normals is not None
    seen = views.parts > 0
    assert torch.equal(seen, views.depth > 0)
    assert (views.alpha[seen] > 0.2).float().mean() > 0.95
    length = views.normals.norm(dim=1, keepdim=True)
    assert torch.allclose(length[seen], torch.ones(()), atol=1e-3)
    assert (length[~seen] == 0).all()
    # a surface that is seen looks towards the camera
    facing = (views.normals * views.points).sum(1, keepdim=True)[seen]
    assert (facing < 0).float().mean() > 0.97


def test_only_maps_that_are_needed_are_read(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "set")
    for name in ("geometry", "matte", "albedo"):
        shutil.rmtree(tmp_path / "set" / name)
    view = PeopleFolder(tmp_path / "set", size_hw=SIZE_HW, tasks=["pose", "parts"]).read(0)
    assert view.parts is not None
    assert view.normals is None
    with pytest.raises(CheckpointError, match="expected normals and depth"):
        PeopleFolder(tmp_path / "set", size_hw=SIZE_HW, tasks=["normals"]).read(0)
    with pytest.raises(ImageError, match="expected a PNG of the dataset"):
        PeopleFolder(tmp_path / "set", size_hw=SIZE_HW, tasks=["matte"]).read(0)


def test_errors_in_threads_are_raised(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "set")
    shutil.rmtree(tmp_path / "set" / "images")
    source = batches(tmp_path / "set", workers=1)
    with pytest.raises(ImageError):
        source.batch(0)
    source.close()


def test_folders_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(InputError, match=r"expected a dataset with annotations\.json"):
        PeopleFolder(tmp_path, size_hw=SIZE_HW, tasks=["pose"])
    with pytest.raises(InputError, match="expected one of pose"):
        PeopleFolder(tmp_path, size_hw=SIZE_HW, tasks=["mood"])
    path = tmp_path / "annotations.json"
    path.write_text('{"images": [{"id": 3}]}')
    with pytest.raises(CheckpointError, match="not a valid COCO file: missing"):
        PeopleFolder(tmp_path, size_hw=SIZE_HW, tasks=["pose"])
    path.write_text('{"images": [], "annotations": []}')
    with pytest.raises(InputError, match="expected people in its images"):
        PeopleFolder(tmp_path, size_hw=SIZE_HW, tasks=["pose"])


def test_other_keypoints_are_refused(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "set")
    path = tmp_path / "set" / "annotations.json"
    table = json.loads(path.read_text())
    for person in table["annotations"]:
        person["keypoints"] = person["keypoints"][:51]
    path.write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match="expected 924 numbers for each person, got 51"):
        PeopleFolder(tmp_path / "set", size_hw=SIZE_HW, tasks=["pose"]).read(0)
