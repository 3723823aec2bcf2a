"""Packs: what goes in comes out, and broken files are told apart."""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vitruvian.errors import CheckpointError, InputError
from vitruvian.images.srgb import srgb_to_linear
from vitruvian.training.synthetic import procedural_pack as procedural
from vitruvian.training.synthetic.asset_pack import (
    _NEVER_WORN,
    NUM_KEYPOINTS,
    SLOT,
    SLOTS,
    AssetPack,
    _held_out_pieces,
    held_out_split,
    load_pack,
    pack_arrays,
    pack_from_arrays,
    save_pack,
    training_split,
)
from vitruvian.training.synthetic.people_batch import sample_people
from vitruvian.training.synthetic.textures import (
    _TEXTURE_SIZE,
    GRAY_MEAN,
    _tiling_noise,
    gray_copy,
    procedural_fabrics,
)


@pytest.fixture
def arrays(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    kept = {}

    def keep(*parts):
        kept.update(pack_arrays(*parts))
        return kept

    monkeypatch.setattr(procedural, "pack_arrays", keep)
    procedural.procedural_pack(3)
    return kept


def equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if is_dataclass(a):
        return all(equal(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    return a == b


def test_saving_and_loading_changes_nothing(arrays, tmp_path: Path):
    path = save_pack(arrays, tmp_path / "pack.npz")
    assert equal(load_pack(path), pack_from_arrays(arrays))


def test_same_seed_same_pack():
    assert equal(procedural.procedural_pack(1), procedural.procedural_pack(1))
    assert not equal(procedural.procedural_pack(1), procedural.procedural_pack(2))


def test_tables_fit_together(arrays):
    pack = pack_from_arrays(arrays)
    body, wardrobe = pack.body, pack.wardrobe
    R, B = len(body.vertex_mean), len(body.bone_names)
    assert body.weights.shape == (R, B)
    assert torch.allclose(body.weights.sum(1), torch.ones(R))
    assert all(parent < bone for bone, parent in enumerate(body.bone_parents))
    assert body.keypoint_known.shape == (NUM_KEYPOINTS,)
    assert wardrobe.slot[0] == SLOT["body"]
    assert int(wardrobe.vertex_ids.max()) < R
    assert int((wardrobe.vertex_start + wardrobe.vertex_count).max()) == len(wardrobe.vertex_ids)
    for start, count, vertices in zip(
        wardrobe.face_start.tolist(), wardrobe.face_count.tolist(), wardrobe.vertex_count.tolist(), strict=True
    ):
        assert int(wardrobe.faces[start : start + count].max()) == vertices - 1
    assert pack.textures.shape[1:] == (_TEXTURE_SIZE, _TEXTURE_SIZE, 4)
    assert int(pack.skins.max()) < len(pack.textures)
    assert int(pack.eyes.max()) < len(pack.textures)


def test_unused_vertices_are_dropped_and_the_rest_renumbered(monkeypatch: pytest.MonkeyPatch):
    found = {}

    def pad(body, poses, pieces):
        extra = 7
        shifted = [
            replace(p, ids=p.ids + extra, covers=p.covers + extra, hides=p.hides + extra, scale_ids=p.scale_ids + extra)
            for p in pieces
        ]
        padded = {
            name: np.concatenate([np.full((extra, 3), 9.0), body[name]])
            for name in ("template", "normals", "vertex_mean")
        }
        padded["weights"] = np.concatenate([body["weights"][:extra], body["weights"]])
        for name in ("vertex_basis", "expressions"):
            padded[name] = np.pad(body[name], ((0, 0), (extra, 0), (0, 0)))
        found["plain"], found["padded"] = pack_arrays(body, poses, pieces), pack_arrays(body | padded, poses, shifted)
        return found["plain"]

    monkeypatch.setattr(procedural, "pack_arrays", pad)
    procedural.procedural_pack(0)
    for name, value in found["plain"].items():
        assert np.array_equal(value, found["padded"][name]), name


def test_body_must_come_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(procedural, "pack_arrays", lambda body, poses, pieces: pack_arrays(body, poses, pieces[::-1]))
    with pytest.raises(InputError, match="expected the body as the first piece"):
        procedural.procedural_pack(0)


def test_broken_files(arrays, tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"expected an \.npz file"):
        load_pack(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(CheckpointError, match=r"expected an \.npz file"):
        load_pack(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(CheckpointError, match="expected a pack of synthetic people"):
        load_pack(tmp_path / "other.npz")
    arrays["meta"] = np.frombuffer(
        bytes(arrays["meta"]).replace(b"vitruvian-people-1", b"vitruvian-people-0"), np.uint8
    )
    with pytest.raises(CheckpointError, match="expected the format"):
        pack_from_arrays(arrays)


def test_gray_copy_has_no_color_and_a_fixed_mean():
    generator = torch.Generator().manual_seed(0)
    texture = torch.randint(0, 256, (_TEXTURE_SIZE, _TEXTURE_SIZE, 4), generator=generator).byte()
    texture[..., 0] //= 4
    twin = gray_copy(texture)
    assert torch.equal(twin[..., 0], twin[..., 2])
    assert torch.equal(twin[..., 3], texture[..., 3])
    weight = twin[..., 3].float()
    mean = (srgb_to_linear(twin[..., 0].float() / 255) * weight).sum() / weight.sum()
    assert abs(float(mean) - GRAY_MEAN) < 0.06


def test_procedural_fabrics_tile():
    noise = _tiling_noise(torch.Generator().manual_seed(0), cells=8)
    step = (noise[1:] - noise[:-1]).abs().max()
    assert (noise[0] - noise[-1]).abs().max() <= 1.5 * step
    assert procedural_fabrics().shape == (3, _TEXTURE_SIZE, _TEXTURE_SIZE, 4)


# People to train on and people to evaluate on share no body, no pose and no garment of a full slot.


@pytest.fixture
def many_poses(pack: AssetPack) -> AssetPack:
    return replace(pack, poses=replace(pack.poses, rotations=pack.poses.rotations[:1].repeat(400, 1, 1).contiguous()))


def rows(table: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in table.flatten(1).tolist()}


def test_splits_share_no_body(many_poses: AssetPack) -> None:
    learned, judged = training_split(many_poses), held_out_split(many_poses)
    assert len(learned.body.identities) + len(judged.body.identities) == len(many_poses.body.identities)
    assert len(judged.body.identities) == len(judged.body.traits) > 0
    assert not rows(learned.body.identities) & rows(judged.body.identities)


def test_poses_are_split_in_runs(many_poses: AssetPack) -> None:
    numbered = many_poses.poses.rotations.clone()
    numbered[:, 0, 0] = torch.arange(400.0)
    many_poses = replace(many_poses, poses=replace(many_poses.poses, rotations=numbered))
    learned, judged = training_split(many_poses), held_out_split(many_poses)
    assert judged.poses.rotations[:, 0, 0].tolist() == [*range(180, 200), *range(380, 400)]
    assert len(learned.poses.rotations) == 360


def test_garments_are_split_in_slots_with_many(many_poses: AssetPack) -> None:
    names = tuple(f"{name}{number}" for number, name in enumerate(many_poses.wardrobe.names))
    upper = SLOTS.index("upper")
    slot = torch.full_like(many_poses.wardrobe.slot, upper)
    slot[0] = 0  # the body
    many_poses = replace(many_poses, wardrobe=replace(many_poses.wardrobe, names=names, slot=slot))
    apart = _held_out_pieces(many_poses)
    if len(names) < 7 or not apart:
        pytest.skip("the procedural wardrobe is too small to be parted")
    learned, judged = training_split(many_poses).wardrobe.slot, held_out_split(many_poses).wardrobe.slot
    assert all(learned[number] == _NEVER_WORN for number in apart)
    for number in range(1, len(names)):
        assert (learned[number] == _NEVER_WORN) != (judged[number] == _NEVER_WORN)
    assert learned[0] == judged[0] == 0


def test_both_splits_give_people(many_poses: AssetPack) -> None:
    for part in (training_split(many_poses), held_out_split(many_poses)):
        people = sample_people(part, 2, torch.Generator().manual_seed(0))
        assert people.vertices.isfinite().all()


def test_a_single_pose_is_in_both_splits(pack: AssetPack) -> None:
    one = replace(pack, poses=replace(pack.poses, rotations=pack.poses.rotations[:1]))
    assert len(training_split(one).poses.rotations) == len(held_out_split(one).poses.rotations) == 1
