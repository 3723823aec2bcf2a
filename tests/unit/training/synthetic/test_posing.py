"""Poses and expressions on tube people."""

from dataclasses import replace

import torch

from tests.unit.training.synthetic.shapes import rng
from vitruvian.human import KEYPOINT_INDEX
from vitruvian.training.synthetic.asset_pack import AssetPack, Poses
from vitruvian.training.synthetic.posing import (
    _apply_transforms,
    _axis_quaternions,
    _mirror_bones,
    _quaternion_matrices,
    _quaternion_product,
    blend_transforms,
    pose_bones,
    pose_keypoints,
    rest_shape,
    sample_expressions,
    sample_poses,
    stature,
)


def still(pack: AssetPack, count: int) -> torch.Tensor:
    local = torch.zeros(count, len(pack.body.bone_names), 4)
    local[..., 0] = 1
    return local


def posed(pack: AssetPack, local: torch.Tensor, coefficients: torch.Tensor | None = None):
    body = pack.body
    count = len(local)
    coefficients = torch.zeros(count, body.identities.shape[1]) if coefficients is None else coefficients
    rest, bones = rest_shape(body, coefficients, torch.zeros(count, len(body.expression_names)))
    ends, bone_transforms = pose_bones(body, bones, local)
    transforms = blend_transforms(body, bone_transforms)
    return rest, bones, ends, transforms, _apply_transforms(transforms, rest)


def test_quaternions():
    a, b = torch.nn.functional.normalize(torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    product = _quaternion_matrices(a) @ _quaternion_matrices(b)
    assert torch.allclose(_quaternion_matrices(_quaternion_product(a, b)), product, atol=1e-5)
    turn = _quaternion_matrices(_axis_quaternions(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(torch.pi / 2)))
    assert torch.allclose(turn @ torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0]), atol=1e-6)


def test_no_rotation_is_the_rest_pose_with_the_root_at_the_origin(pack: AssetPack):
    rest, bones, _, _, vertices = posed(pack, still(pack, 2), pack.body.identities[:2])
    assert torch.allclose(vertices, rest - bones[:, :1, 0], atol=1e-5)


def test_turning_the_root_turns_everything(pack: AssetPack):
    local = still(pack, 1)
    local[0, 0] = _axis_quaternions(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(0.7))
    *_, turned = posed(pack, local)
    *_, before = posed(pack, still(pack, 1))
    assert torch.allclose(turned, before @ _quaternion_matrices(local[0, 0]).T, atol=1e-5)


def test_rotating_an_elbow_moves_its_descendants_only(pack: AssetPack):
    names = pack.body.bone_names
    local = still(pack, 1)
    elbow = names.index("lowerarm01.L")
    local[0, elbow] = _axis_quaternions(torch.tensor([1.0, 0.0, 0.0]), torch.tensor(1.2))
    rest, bones, ends, _, after = posed(pack, local)
    moved = (after - (rest - bones[:, :1, 0])).norm(dim=-1)[0] > 1e-4
    below = pack.body.weights[:, [elbow, names.index("wrist.L")]].sum(1) > 0
    assert moved.any()
    assert not moved[~below].any()
    # the hand is as far from the elbow as before
    wrist = names.index("wrist.L")
    reach = (ends[0, wrist, 0] - ends[0, elbow, 0]).norm()
    assert torch.isclose(reach, (bones[0, wrist, 0] - bones[0, elbow, 0]).norm(), atol=1e-5)


def test_keypoints_at_bone_ends(pack: AssetPack):
    local = sample_poses(pack.poses, pack.body, torch.full((4,), 0.9), rng=rng())
    rest, _, ends, transforms, _ = posed(pack, local)
    points = pose_keypoints(pack.body, ends, rest, transforms)
    wrist = pack.body.bone_names.index("wrist.R")
    assert torch.equal(points[:, KEYPOINT_INDEX["right_wrist"]], ends[:, wrist, 0])
    assert points.shape == (4, 308, 3)


def test_keypoints_on_the_surface_follow_skinning(pack: AssetPack):
    ids = torch.zeros(308, 2, dtype=torch.int64)
    ids[0] = torch.tensor([10, 400])
    weights = torch.zeros(308, 2)
    weights[0] = torch.tensor([0.25, 0.75])
    body = replace(pack.body, keypoint_vertices=ids, keypoint_weights=weights, keypoint_bone=torch.full((308,), -1))
    local = sample_poses(pack.poses, pack.body, torch.full((3,), 0.5), rng=rng(1))
    rest, _, ends, transforms, vertices = posed(pack, local)
    points = pose_keypoints(body, ends, rest, transforms)
    assert torch.allclose(points[:, 0], 0.25 * vertices[:, 10] + 0.75 * vertices[:, 400], atol=1e-5)


def test_mirrored_bones(pack: AssetPack):
    names = pack.body.bone_names
    other = _mirror_bones(names)
    assert names[other[names.index("foot.L")]] == "foot.R"
    assert other[names.index("head")] == names.index("head")
    assert [other[i] for i in other] == list(range(len(names)))


def test_mirroring_a_pose_mirrors_the_people(pack: AssetPack):
    names = pack.body.bone_names
    generator = torch.Generator().manual_seed(4)
    local = torch.nn.functional.normalize(torch.randn(1, len(names), 4, generator=generator), dim=-1)
    mirrored = local[:, _mirror_bones(names)] * torch.tensor([1.0, 1.0, -1.0, -1.0])
    heads = posed(pack, local)[2][:, :, 0]
    flipped = posed(pack, mirrored)[2][:, _mirror_bones(names), 0] * torch.tensor([-1.0, 1.0, 1.0])
    assert torch.allclose(heads, flipped, atol=1e-5)


def test_poses_are_unit_rotations_and_follow_the_seed(pack: AssetPack):
    stout = torch.linspace(0, 1, 64)
    local = sample_poses(pack.poses, pack.body, stout, rng=rng(5))
    assert torch.allclose(local.norm(dim=-1), torch.ones(64, len(pack.body.bone_names)), atol=1e-5)
    assert torch.equal(local, sample_poses(pack.poses, pack.body, stout, rng=rng(5)))
    assert not torch.equal(local, sample_poses(pack.poses, pack.body, stout, rng=rng(6)))


def test_some_poses_are_seated(pack: AssetPack):
    local = sample_poses(pack.poses, pack.body, torch.full((300,), 0.5), rng=rng(2))
    ends = posed(pack, local)[2]
    place = pack.body.bone_names.index
    thigh = ends[:, place("lowerleg01.L"), 0] - ends[:, place("upperleg01.L"), 0]
    level = -thigh[:, 1] > 0.8 * thigh.norm(dim=-1)  # the knee is in front of the hip
    assert 10 < int(level.sum()) < 90


def test_stout_people_have_raised_arms(pack: AssetPack):
    empty = replace(pack.poses, rotations=pack.poses.rotations[:0])
    slim = sample_poses(empty, pack.body, torch.full((40,), 0.4), rng=rng(3))
    stout = sample_poses(empty, pack.body, torch.full((40,), 1.0), rng=rng(3))
    hand = pack.body.bone_names.index("lowerarm01.L")
    out = [posed(pack, local)[2][:, hand, 0, 0].mean() for local in (slim, stout)]
    assert out[1] > out[0] + 0.01


def test_fingers_bend_about_their_axes(pack: AssetPack):
    bones = torch.arange(1, 16)
    axes = torch.tensor([1.0, 0.0, 0.0]).expand(15, 3)
    names = tuple(f"bone{i}" for i in range(16))
    body = replace(pack.body, bone_names=names)
    poses = Poses(torch.zeros(0, 0, 4), torch.zeros(0, dtype=torch.int64), bones, axes)
    local = sample_poses(poses, body, torch.full((200,), 0.5), rng=rng(7))[:, 1:]
    angle = 2 * torch.atan2(local[..., 1], local[..., 0]).rad2deg()
    assert local[..., 2:].abs().max() < 1e-6
    assert -9 < float(angle.min()) < 5
    assert 50 < float(angle.max()) < 90
    assert angle[:, :3].max() < 45  # thumbs


def test_expressions_are_in_range_and_open_some_mouths():
    names = ("jawOpen", "mouthSmileLeft", "mouthSmileRight", "eyeBlinkLeft", "tongueOut", "mouthClose")
    strength = sample_expressions(names, 500, rng=rng())
    assert strength.min() >= 0
    assert strength.max() <= 1
    assert 0.2 < float((strength[:, 0] > 0.05).float().mean()) < 0.7
    assert ((strength[:, 1] > 0) == (strength[:, 2] > 0)).float().mean() > 0.9
    out = strength[:, 4] > 0
    assert out.any()
    assert (strength[out, 0] > 0).all()  # no tongue through closed lips
    assert strength[:, 5].max() == 0
    assert sample_expressions((), 3, rng=rng()).shape == (3, 0)


def test_shape_and_expression_move_the_rest_pose(pack: AssetPack):
    body = pack.body
    c = torch.tensor([[0.0, 0, 0], [1.0, 0, 0]])
    closed, bones = rest_shape(body, c, torch.zeros(2, 1))
    opened, same = rest_shape(body, c, torch.ones(2, 1))
    assert stature(closed, body)[1] > stature(closed, body)[0] + 0.05
    assert torch.equal(bones, same)
    moved = (opened - closed).norm(dim=-1).amax(0) > 0
    assert torch.equal(moved.nonzero()[:, 0], body.expression_vertices)
    assert torch.allclose(closed[1], body.vertex_mean + body.vertex_basis[0], atol=1e-6)
