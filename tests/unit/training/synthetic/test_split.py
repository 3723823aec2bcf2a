"""People to learn from and people to be judged on share no body, no pose and no garment of a full slot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vitruvian.training.synthetic.pack import _NEVER_WORN, Pack, _held_out_pieces, held_out_part, training_part
from vitruvian.training.synthetic.people import sample_people
from vitruvian.training.synthetic.pieces import SLOTS
from vitruvian.training.synthetic.procedural_pack import procedural_pack


@pytest.fixture
def pack() -> Pack:
    made = procedural_pack(0)
    return replace(made, poses=replace(made.poses, rotations=made.poses.rotations[:1].repeat(400, 1, 1).contiguous()))


def rows(table: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in table.flatten(1).tolist()}


def test_no_body_is_in_both(pack: Pack) -> None:
    learned, judged = training_part(pack), held_out_part(pack)
    assert len(learned.body.identities) + len(judged.body.identities) == len(pack.body.identities)
    assert len(judged.body.identities) == len(judged.body.traits) > 0
    assert not rows(learned.body.identities) & rows(judged.body.identities)


def test_poses_are_parted_in_runs(pack: Pack) -> None:
    numbered = pack.poses.rotations.clone()
    numbered[:, 0, 0] = torch.arange(400.0)
    pack = replace(pack, poses=replace(pack.poses, rotations=numbered))
    learned, judged = training_part(pack), held_out_part(pack)
    assert judged.poses.rotations[:, 0, 0].tolist() == [*range(180, 200), *range(380, 400)]
    assert len(learned.poses.rotations) == 360


def test_garments_are_parted_where_there_are_many(pack: Pack) -> None:
    names = tuple(f"{name}{number}" for number, name in enumerate(pack.wardrobe.names))
    upper = SLOTS.index("upper")
    slot = torch.full_like(pack.wardrobe.slot, upper)
    slot[0] = 0  # the body
    pack = replace(pack, wardrobe=replace(pack.wardrobe, names=names, slot=slot))
    apart = _held_out_pieces(pack)
    if len(names) < 7 or not apart:
        pytest.skip("the procedural wardrobe is too small to be parted")
    learned, judged = training_part(pack).wardrobe.slot, held_out_part(pack).wardrobe.slot
    assert all(learned[number] == _NEVER_WORN for number in apart)
    for number in range(1, len(names)):
        assert (learned[number] == _NEVER_WORN) != (judged[number] == _NEVER_WORN)
    assert learned[0] == judged[0] == 0


def test_both_parts_make_people(pack: Pack) -> None:
    for part in (training_part(pack), held_out_part(pack)):
        people = sample_people(part, 2, torch.Generator().manual_seed(0))
        assert people.vertices.isfinite().all()


def test_a_pack_with_one_pose_has_it_in_both() -> None:
    pack = procedural_pack(0)
    one = replace(pack, poses=replace(pack.poses, rotations=pack.poses.rotations[:1]))
    assert len(training_part(one).poses.rotations) == len(held_out_part(one).poses.rotations) == 1
