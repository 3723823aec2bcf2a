"""Two packs out of one: people to learn from, and people of other bodies, poses and clothes to be judged on."""

from __future__ import annotations

import zlib
from dataclasses import replace

import torch

from vitruvian.data.synthetic.people import Pack
from vitruvian.data.synthetic.pieces import SLOTS

HELD_OUT = 10  # every tenth identity, and every tenth run of poses, is kept for judging
POSE_RUN = 20  # neighbouring poses come from one recording: they stay together
PIECE_SHARE = 7  # about one garment in seven
FEWEST_PIECES = 6  # slots with fewer pieces are shared
NEVER_WORN = len(SLOTS)  # a slot that nobody has


def training_part(pack: Pack) -> Pack:
    """What may be learned from."""
    return _part(pack, held_out=False)


def held_out_part(pack: Pack) -> Pack:
    """Bodies, poses and clothes that `training_part` does not have; skins, textures and backgrounds are shared."""
    return _part(pack, held_out=True)


def held_out_pieces(pack: Pack) -> list[int]:
    """The garments that are kept for judging; both halves of an outfit go together."""
    slots = pack.wardrobe.slot.tolist()
    many = {slot for slot in slots if slots.count(slot) >= FEWEST_PIECES}
    return [
        number
        for number, name in enumerate(pack.wardrobe.names)
        if slots[number] in many and zlib.crc32(name.partition("/")[0].encode()) % PIECE_SHARE == 0
    ]


def _part(pack: Pack, *, held_out: bool) -> Pack:
    body, poses = pack.body, pack.poses
    people = torch.arange(len(body.identities), device=body.identities.device) % HELD_OUT == HELD_OUT - 1
    runs = torch.arange(len(poses.rotations), device=poses.rotations.device) // POSE_RUN % HELD_OUT == HELD_OUT - 1
    keep_people = people if held_out and people.any() else ~people
    keep_poses = runs if held_out and runs.any() else ~runs
    slot = pack.wardrobe.slot.clone()
    apart = held_out_pieces(pack)
    if held_out:
        shown = {int(pack.wardrobe.slot[number]) for number in apart}
        hidden = [n for n in range(len(slot)) if int(slot[n]) in shown and n not in apart]
    else:
        hidden = apart
    slot[hidden] = NEVER_WORN
    return replace(
        pack,
        body=replace(body, identities=body.identities[keep_people], traits=body.traits[keep_people]),
        poses=replace(poses, rotations=poses.rotations[keep_poses]),
        wardrobe=replace(pack.wardrobe, slot=slot),
    )
