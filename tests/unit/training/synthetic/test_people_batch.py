"""Sampling whole people."""

import pytest
import torch

from tests.helpers.shared_folder import SHARED
from vitruvian.errors import InputError
from vitruvian.human import KEYPOINT_INDEX, PART_INDEX, PART_NAMES
from vitruvian.training.synthetic.asset_pack import MATERIALS_PER_SLOT, NUM_KEYPOINTS, SLOTS, AssetPack
from vitruvian.training.synthetic.people_batch import PeopleBatch, sample_people


@pytest.fixture(scope="module")
def people(pack: AssetPack) -> PeopleBatch:
    return sample_people(pack, 40, torch.Generator().manual_seed(0))


def test_shapes_and_types(people: PeopleBatch):
    P, V, F, M = 40, people.vertices.shape[1], people.faces.shape[1], len(SLOTS) * MATERIALS_PER_SLOT
    expected = {
        "vertices": ((P, V, 3), torch.float32), "rest_vertices": ((P, V, 3), torch.float32),
        "faces": ((P, F, 3), torch.int64), "face_uv": ((P, F, 3, 2), torch.float32),
        "face_class": ((P, F), torch.uint8), "face_material": ((P, F), torch.int64),
        "keypoints": ((P, NUM_KEYPOINTS, 3), torch.float32), "keypoint_known": ((P, NUM_KEYPOINTS), torch.bool),
        "keypoint_depth": ((P, NUM_KEYPOINTS), torch.float32), "stature_m": ((P,), torch.float32),
    }  # fmt: skip
    for name, (shape, dtype) in expected.items():
        value = getattr(people, name)
        assert (tuple(value.shape), value.dtype) == (shape, dtype), name
    for name, shape in {"texture": (), "tint": (3,), "tint2": (3,), "pattern": (), "pattern_param": (4,), "gloss": (),
                        "cutout": (), "clear": ()}.items():  # fmt: skip
        assert getattr(people.materials, name).shape == (P, M, *shape), name
    assert len(people) == P


def test_faces_are_valid(people: PeopleBatch):
    V = people.vertices.shape[1]
    assert 0 <= int(people.faces.min()) <= int(people.faces.max()) < V
    absent = people.face_class == 0
    assert (people.faces[absent] == 0).all()
    assert ((people.faces[~absent] != 0).any(-1)).all()
    assert int(people.face_class.max()) < len(PART_NAMES)
    assert int(people.face_material.max()) < people.materials.texture.shape[1]
    # what is drawn comes first, and someone needs the whole length
    assert (absent.int().diff(dim=1) >= 0).all()
    assert not absent[:, -1].all()


def test_values_are_finite_and_people_stand_on_the_ground(people: PeopleBatch):
    assert torch.isfinite(people.vertices).all()
    assert torch.isfinite(people.rest_vertices).all()
    assert torch.isfinite(people.keypoints[people.keypoint_known]).all()
    used = people.vertices.gather(1, people.faces.flatten(1)[..., None].expand(-1, -1, 3))
    low = used[..., 2].amin(1)
    assert (low > -1e-4).all()
    assert (low < 0.05).all()
    assert ((people.stature_m > 1.2) & (people.stature_m < 2.3)).all()


def test_all_classes_occur(pack: AssetPack):
    found = set()
    for seed in range(4):
        batch = sample_people(pack, 60, torch.Generator().manual_seed(seed))
        found |= set(batch.face_class.flatten().tolist())
    assert found == set(range(len(PART_NAMES)))


def test_same_seed_same_people(pack: AssetPack, people: PeopleBatch):
    again = sample_people(pack, 40, torch.Generator().manual_seed(0))
    other = sample_people(pack, 40, torch.Generator().manual_seed(1))
    assert torch.equal(again.vertices, people.vertices)
    assert torch.equal(again.materials.tint, people.materials.tint)
    assert other.vertices.shape[1] == people.vertices.shape[1]  # one layout for all batches
    assert not torch.equal(other.vertices, people.vertices)


def test_left_is_left(people: PeopleBatch):
    """Left hands are labelled left whatever the pose: their rest position is at +x."""
    for side, sign in (("Left", 1), ("Right", -1)):
        person, face = (people.face_class == PART_INDEX[f"{side}_Hand"]).nonzero(as_tuple=True)
        x = people.rest_vertices[person, people.faces[person, face, 0], 0]
        assert (sign * x > 0.3).all()
        wrist = people.keypoints[person, KEYPOINT_INDEX[f"{side.lower()}_wrist"]]
        reach = (people.vertices[person, people.faces[person, face, 0]] - wrist).norm(dim=-1)
        assert reach.max() < 0.35


def test_batch_to_device(people: PeopleBatch):
    moved = people.to("cpu")
    assert torch.equal(moved.faces, people.faces)
    assert torch.equal(moved.materials.texture, people.materials.texture)


def test_invalid_arguments_raise(pack: AssetPack):
    with pytest.raises(InputError, match="at least one person"):
        sample_people(pack, 0, torch.Generator())


@pytest.mark.skipif(not (SHARED / "people-pack.npz").is_file(), reason="no built pack beside this checkout")
def test_the_built_pack():
    from vitruvian.training.synthetic.asset_pack import load_pack

    batch = sample_people(load_pack(SHARED / "people-pack.npz"), 4, torch.Generator().manual_seed(0))
    assert int(batch.keypoint_known[0].sum()) == 272
    nose, heel = batch.keypoints[:, KEYPOINT_INDEX["nose"]], batch.keypoints[:, KEYPOINT_INDEX["left_heel"]]
    assert torch.isfinite(nose).all()
    assert ((nose - heel).norm(dim=-1) < batch.stature_m * 1.2).all()
