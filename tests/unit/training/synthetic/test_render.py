"""All ground truth of an image describes the same scene."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.unit.training.synthetic.shapes import card, front_camera, person, render_shapes, rng, sphere
from vitruvian.training.synthetic.camera import PeoplePlacement, person_ranks
from vitruvian.training.synthetic.people_batch import PeopleBatch
from vitruvian.training.synthetic.render import GroundTruth, RenderOptions

SIZE = (64, 48)
PLAIN = RenderOptions(
    size_hw=SIZE, surroundings=3, surroundings_size=24, shadow_size=48, folds=0.0, occluders=0.0, camera_effects=False
)


def sphere_person(keypoints: Tensor | None = None) -> PeopleBatch:
    points, faces = sphere(radius=0.5, rings=40, sectors=80)
    return person([(points, faces, 3)], keypoints=keypoints)


@pytest.fixture(scope="module")
def ball() -> GroundTruth:
    camera = front_camera(distance=2.0, focal=70.0, size_hw=SIZE)
    return render_shapes(sphere_person(), camera, options=PLAIN)


def test_intrinsics_project_the_pointmap_onto_its_pixels(ball: GroundTruth) -> None:
    there = ball.parts[0] > 0
    points = ball.pointmap[0][:, there]  # [3, n]
    seen = ball.intrinsics[0] @ points
    y, x = there.nonzero(as_tuple=True)
    assert torch.allclose(seen[:2] / seen[2], torch.stack([x, y]).float(), atol=1e-3)


def test_points_and_normals_are_those_of_the_sphere(ball: GroundTruth) -> None:
    center = torch.tensor([0.0, 0.0, 2.0])[:, None]
    inner = (ball.alpha[0, 0] == 1) & (ball.normals[0, 2] < -0.3)
    points, normals = ball.pointmap[0][:, inner], ball.normals[0][:, inner]
    assert ((points - center).norm(dim=0) - 0.5).abs().max() < 0.004
    assert (F.normalize(points - center, dim=0) * normals).sum(dim=0).min() > 0.998
    middle = ball.normals[0, :, 31:33, 23:25].mean(dim=(1, 2))
    assert torch.allclose(middle, torch.tensor([0.0, 0.0, -1.0]), atol=0.02)


def test_normals_agree_with_the_slope_of_the_pointmap(ball: GroundTruth) -> None:
    points = ball.pointmap[0]  # [3, H, W]
    across = points[:, 1:-1, 2:] - points[:, 1:-1, :-2]
    down = points[:, 2:, 1:-1] - points[:, :-2, 1:-1]
    slope = F.normalize(torch.linalg.cross(down, across, dim=0), dim=0)
    normals = ball.normals[0, :, 1:-1, 1:-1]
    whole = -F.max_pool2d(-(ball.parts > 0).float()[None], 5, stride=1, padding=2)[0, 0, 1:-1, 1:-1] > 0
    assert whole.sum() > 300
    assert (slope * normals).sum(dim=0)[whole].min() > 0.97


def test_alpha_parts_masks_and_boxes_agree(ball: GroundTruth) -> None:
    covered = ball.parts[0] > 0
    assert torch.equal(covered, ball.alpha[0, 0] >= 0.5)
    assert torch.equal(covered, ball.instance_masks[0, 0])
    assert set(ball.parts.unique().tolist()) == {0, 3}
    y, x = covered.nonzero(as_tuple=True)
    box = [x.min(), y.min(), x.max() - x.min() + 1, y.max() - y.min() + 1]
    assert ball.boxes_xywh[0, 0].tolist() == [float(v) for v in box]
    for field in ("normals", "pointmap", "albedo"):
        value = getattr(ball, field)[0].abs().sum(dim=0)
        assert torch.equal(value > 0, covered), field
    partly = (ball.alpha > 0) & (ball.alpha < 1)
    assert partly.any()
    # A ball of radius ½ at 2 m covers a disc of tan(asin ¼) · focal.
    assert ball.alpha.sum().item() == pytest.approx(torch.pi * (70 * 0.2582) ** 2, rel=0.01)


def test_scale_is_canonical_over_actual_focal_length(ball: GroundTruth) -> None:
    assert ball.scale.tolist() == [[pytest.approx(0.75 * 64 / 70)]]


def test_albedo_is_the_color_of_the_surface(ball: GroundTruth) -> None:
    inner = ball.alpha[0, 0] == 1
    mean = ball.albedo[0][:, inner].mean(dim=1)
    expected = torch.tensor([0.6, 0.4, 0.3])
    expected = 1.055 * expected ** (1 / 2.4) - 0.055
    assert torch.allclose(mean, expected, atol=0.02)  # skin is mottled a little


def test_image_is_people_over_background() -> None:
    camera = front_camera(distance=2.0, focal=70.0, size_hw=SIZE)
    behind = torch.zeros(1, 3, *SIZE)
    behind[:, 1] = 1.0
    options = replace(PLAIN, ground_shadows=0.0)
    truth = render_shapes(sphere_person(), camera, options=options, backgrounds=behind)
    assert torch.allclose(truth.image, truth.foreground + (1 - truth.alpha) * behind, atol=1e-6)
    assert (truth.foreground <= truth.alpha + 1e-6).all()


def test_hidden_keypoints() -> None:
    points, faces = sphere(radius=0.3, rings=24, sectors=48)
    front = card(width=0.5, height=0.5, depth=-0.6)
    keypoints = torch.tensor(
        [
            [0.0, -0.3, 0.0],  # on the front of the ball, behind the card
            [0.0, 0.3, 0.0],  # on the back of the ball
            [0.0, -0.6, 0.0],  # on the card
            [0.9, 0.0, 0.0],  # in the open air
            [9.0, 0.0, 0.0],  # outside the image
        ]
    )
    camera = front_camera(distance=3.0, focal=50.0, size_hw=SIZE)
    hidden = person([(points, faces, 3), (*front, 23)], keypoints=keypoints)
    truth = render_shapes(hidden, camera, options=PLAIN)
    assert truth.keypoints[0, 0, :6, 2].tolist() == [1.0, 1.0, 2.0, 2.0, 0.0, 0.0]
    assert truth.keypoints[0, 0, 0, :2].tolist() == pytest.approx([23.5, 31.5], abs=1e-3)
    assert truth.keypoints[0, 0, 3, :2].tolist() == pytest.approx([23.5 + 0.9 * 50 / 3, 31.5], abs=1e-3)
    alone_ball = person([(points, faces, 3)], keypoints=keypoints)
    truth = render_shapes(alone_ball, camera, options=PLAIN)
    assert truth.keypoints[0, 0, :2, 2].tolist() == [2.0, 1.0]


def test_keypoints_inside_the_body_are_visible_through_its_surface() -> None:
    inside = torch.zeros(1, 3)
    camera = front_camera(distance=2.0, focal=70.0, size_hw=SIZE)
    for depth, state in ((0.6, 2.0), (0.4, 1.0)):
        points, faces = sphere(radius=0.5)
        someone = person([(points, faces, 3)], keypoints=inside, keypoint_depth=depth)
        truth = render_shapes(someone, camera, options=PLAIN)
        assert truth.keypoints[0, 0, 0, 2] == state


def test_the_person_in_front_hides_the_one_behind() -> None:
    people = PeopleBatch.cat([sphere_person(), sphere_person()])
    placement = PeoplePlacement(
        torch.tensor([0, 0]), torch.zeros(2), torch.tensor([[0.0, 0.0, 0.0], [0.6, 0.9, 0.0]]), 1
    )
    camera = front_camera(distance=2.0, focal=40.0, size_hw=SIZE)
    truth = render_shapes(people, camera, options=PLAIN, placement=placement)
    front, back = truth.instance_masks[0]
    assert torch.equal(truth.stature_m, people.stature_m[None])
    assert front.sum() > back.sum() > 20
    assert not (front & back).any()
    depth = truth.pointmap[0, 2]
    assert depth[front].max() < depth[back].min()


def test_images_with_fewer_people_are_padded() -> None:
    people = PeopleBatch.cat([sphere_person() for _ in range(3)])
    placement = PeoplePlacement(
        torch.tensor([0, 1, 0]), torch.zeros(3), torch.tensor([[-0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [0.6, 0.0, 0.0]]), 2
    )
    cameras = front_camera(distance=3.0, focal=50.0, size_hw=SIZE)
    cameras = replace(
        cameras,
        intrinsics=cameras.intrinsics.repeat(2, 1, 1),
        rotation=cameras.rotation.repeat(2, 1, 1),
        translation=cameras.translation.repeat(2, 1),
    )
    for chunk in (1, 2):
        options = replace(PLAIN, chunk=chunk)
        truth = render_shapes(people, cameras, options=options, placement=placement)
        first, second, third = people.stature_m.tolist()
        assert truth.stature_m.tolist() == [[first, third], [second, 0.0]]
        assert truth.boxes_xywh[1, 1].tolist() == [0, 0, 0, 0]
        assert not truth.instance_masks[1, 1].any()
        assert truth.instance_masks[0].any(dim=(1, 2)).all()


def test_samples_of_different_depths_are_not_averaged() -> None:
    near, far = card(width=0.4, height=3.0, depth=-1.0), card(width=4.0, height=4.0, depth=1.0)
    someone = person([(*near, 23), (*far, 23)])
    camera = front_camera(distance=3.0, focal=35.0, size_hw=SIZE)
    truth = render_shapes(someone, camera, options=PLAIN)
    depth = truth.pointmap[0, 2]
    assert set(depth[depth > 0].mul(1000).round().unique().tolist()) == {2000.0, 4000.0}


def test_two_sided_faces_show_normals_towards_the_camera() -> None:
    points, faces = card()
    camera = front_camera(distance=2.0, focal=50.0, size_hw=SIZE)
    for order in (faces, faces.flip(1)):
        truth = render_shapes(person([(points, order, 23)]), camera, options=PLAIN)
        there = truth.parts[0] > 0
        assert truth.normals[0, 2][there].max() < -0.99


def test_alpha_textures_give_partial_alpha() -> None:
    textures = torch.full((1, 16, 16, 4), 255, dtype=torch.uint8)
    textures[..., 3] = 128
    from vitruvian.training.synthetic.textures import build_pyramid

    camera = front_camera(distance=2.0, focal=90.0, size_hw=SIZE)
    someone = person([(*card(), 4)], cutout=True, texture=0)
    truth = render_shapes(someone, camera, options=PLAIN, pyramid=build_pyramid(textures))
    inner = truth.alpha[0, 0, 20:44, 12:36]
    assert inner.mean().item() == pytest.approx(0.5, abs=0.02)
    solid = person([(*card(), 4)], cutout=False, texture=0)
    truth = render_shapes(solid, camera, options=PLAIN, pyramid=build_pyramid(textures))
    assert (truth.alpha[0, 0, 20:44, 12:36] == 1).all()


def test_clear_lenses_set_the_part_only() -> None:
    camera = front_camera(distance=2.0, focal=90.0, size_hw=SIZE)
    eye = torch.tensor([[0.0, 0.0, 0.0]])
    face, lens = (*card(), 3), (*card(width=0.4, height=0.4, depth=-0.1), 2)
    beyond = (*card(width=0.4, height=0.4, depth=0.1), 2)
    bare, worn, hidden = (
        render_shapes(person(pieces, glass=2, keypoints=eye), camera, options=PLAIN)
        for pieces in ([face], [face, lens], [face, beyond])
    )
    glass = worn.parts[0] == 2
    assert 0.1 < glass.float().sum() / (bare.parts[0] == 3).float().sum() < 0.25
    assert torch.equal(worn.parts[0][~glass], bare.parts[0][~glass])
    for truth in ("normals", "pointmap", "alpha", "albedo", "keypoints"):
        assert torch.equal(getattr(worn, truth), getattr(bare, truth)), truth
    assert (worn.image[0, :, glass] - bare.image[0, :, glass]).abs().mean() > 0.004
    assert (hidden.parts == bare.parts).all()


def test_images_depend_on_the_seed() -> None:
    keypoints = torch.tensor([[0.0, -0.5, 0.0], [0.0, 0.0, 0.5], [0.0, 0.0, -0.5]])
    options = replace(PLAIN, camera_effects=True, occluders=1.0, folds=0.2)
    first, again, other = (
        render_shapes(sphere_person(keypoints), None, generator=rng(seed).generator, placement=None, options=options)
        for seed in (1, 1, 2)
    )
    for field in fields(GroundTruth):
        assert torch.equal(getattr(first, field.name), getattr(again, field.name)), field.name
    assert not torch.equal(first.image, other.image)
    assert torch.isfinite(first.image).all()
    assert 0 <= first.image.min() < first.image.max() <= 1


def test_person_ranks() -> None:
    assert person_ranks(torch.tensor([2, 0, 2, 2, 0])).tolist() == [0, 0, 1, 2, 1]
