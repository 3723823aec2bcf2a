"""Cameras aim at people, and people stand where they are put."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.training.synthetic.shapes import rng
from vitruvian.errors import InputError
from vitruvian.training.synthetic.camera import Cameras, PeoplePlacement, sample_cameras, sample_placement


def stick_people(count: int) -> torch.Tensor:
    """308 points spread over a body of 1.7 m; eyes and nose on top, hips in the middle."""
    generator = torch.Generator().manual_seed(7)
    points = torch.rand(count, 308, 3, generator=generator) * torch.tensor([0.5, 0.3, 1.6]) - torch.tensor(
        [0.25, 0.15, 0]
    )
    points[:, [0, 1, 2, 3, 4, 69], :2] *= 0.3
    points[:, :5, 2] = 1.6
    points[:, 69, 2] = 1.45
    points[:, 5:9, 2] = 1.4
    points[:, 9:11, 2] = 0.9
    return points


def test_placement_rotates_about_the_vertical_and_translates() -> None:
    placement = PeoplePlacement(torch.tensor([0]), torch.tensor([torch.pi / 2]), torch.tensor([[1.0, 2.0, 0.0]]), 1)
    placed = placement.place(torch.tensor([[[1.0, 0.5, 3.0]]]))
    assert torch.allclose(placed, torch.tensor([[[0.5, 3.0, 3.0]]]), atol=1e-6)


def test_every_image_has_a_person_at_a_distance_from_others() -> None:
    placement = sample_placement(14, 8, rng=rng())
    assert set(placement.image_index.tolist()) == set(range(8))
    for image in range(8):
        where = placement.offset[placement.image_index == image]
        apart = (where[:, None] - where[None]).norm(dim=-1) + 9 * torch.eye(len(where))
        assert apart.min() > 0.3
    with pytest.raises(InputError, match="Every image needs a person"):
        sample_placement(3, 4, rng=rng())


def aim(points: Tensor, placement: PeoplePlacement, seed: int, known: Tensor | None = None, **options: Any) -> Cameras:
    known = torch.ones(308, dtype=torch.bool) if known is None else known
    height = torch.full((len(points),), 1.7)
    known = known.expand(len(points), -1)
    return sample_cameras(points, placement, stature_m=height, size_hw=(128, 96), rng=rng(seed), known=known, **options)


def test_cameras_show_the_framed_points() -> None:
    people = 40
    points = stick_people(people)
    placement = sample_placement(people, people, rng=rng())
    H, W = 128, 96
    for weights, members in (((1.0, 0.0, 0.0, 0.0), slice(None)), ((0.0, 0.0, 1.0, 0.0), [0, 1, 2, 3, 4, 69])):
        cameras = aim(points, placement, 1, framing_weights=weights)
        seen = cameras.project(cameras.to_camera(placement.place(points), placement.image_index), placement.image_index)
        wanted = seen[:, members]
        middle = wanted[..., :2].mean(dim=1)
        assert ((middle > 0) & (middle < torch.tensor([W, H]))).all()
        spread = (wanted[..., :2].amax(dim=1) - wanted[..., :2].amin(dim=1)) / torch.tensor([W, H])
        assert (spread.amax(dim=1) > 0.1).all()
        assert (spread.amax(dim=1) < 1.1).all()
        assert seen[..., 2].min() > 0.35
        orthonormal = cameras.rotation @ cameras.rotation.transpose(1, 2)
        assert torch.allclose(orthonormal, torch.eye(3).expand_as(orthonormal), atol=1e-5)
        assert torch.allclose(torch.linalg.det(cameras.rotation), torch.ones(people), atol=1e-5)
        # Heads are above feet in nearly every image, and the camera's own place maps to its origin.
        upright = seen[:, 0, 1] < seen[:, 9, 1]
        assert upright.float().mean() > 0.9
        origin = cameras.to_camera(cameras.position[:, None], torch.arange(people))
        assert origin.abs().max() < 1e-4


def test_head_images_are_closer_than_full_body_images() -> None:
    points, placement = stick_people(30), sample_placement(30, 30, rng=rng())
    sizes = []
    for weights in torch.eye(4).tolist():
        cameras = aim(points, placement, 2, framing_weights=weights)
        depth = cameras.to_camera(points, placement.image_index)[..., 2].mean(dim=1)
        sizes.append((cameras.focal / depth).mean())  # pixels a metre
    assert 1.6 * sizes[0] < sizes[1] < sizes[2] < sizes[3]


def test_a_body_without_a_face_shows_its_head_instead() -> None:
    points, placement = stick_people(6), sample_placement(6, 6, rng=rng())
    known = torch.ones(308, dtype=torch.bool)
    known[:5] = False  # nose, eyes, ears
    face, head = (
        aim(points, placement, 3, known, framing_weights=weights)
        for weights in ((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0, 0.0))
    )
    assert torch.equal(face.intrinsics, head.intrinsics)
    assert torch.equal(face.translation, head.translation)


def test_unknown_points_do_not_move_the_camera() -> None:
    points, placement = stick_people(6), sample_placement(6, 6, rng=rng())
    known = torch.ones(308, dtype=torch.bool)
    known[200:] = False
    wild = points.clone()
    wild[:, 200:] = 1e3
    wild[:, 300:] = torch.nan
    results = [aim(p, placement, 4, known) for p in (points, wild)]
    assert torch.equal(results[0].translation, results[1].translation)
