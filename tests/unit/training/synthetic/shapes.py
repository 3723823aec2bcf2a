"""Simple "people" for the renderer's tests: spheres, boxes and flat cards, each one mesh with one material."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.unit.training.tiny_runs import tube_people
from vitruvian.training.synthetic.asset_pack import NUM_KEYPOINTS, AssetPack
from vitruvian.training.synthetic.camera import Cameras, PeoplePlacement
from vitruvian.training.synthetic.materials import Materials
from vitruvian.training.synthetic.people_batch import PeopleBatch
from vitruvian.training.synthetic.render import GroundTruth, render
from vitruvian.training.synthetic.rng import Rng


def rng(seed: int = 0) -> Rng:
    return Rng(torch.Generator().manual_seed(seed), "cpu")


def sphere(*, radius: float = 1.0, rings: int = 48, sectors: int = 96) -> tuple[Tensor, Tensor]:
    """Vertices [V, 3] around the origin and faces [F, 3], counter-clockwise seen from outside."""
    polar = torch.linspace(0, math.pi, rings + 1)
    azimuth = torch.arange(sectors) / sectors * 2 * math.pi
    polar, azimuth = torch.meshgrid(polar, azimuth, indexing="ij")
    points = torch.stack([polar.sin() * azimuth.cos(), polar.sin() * azimuth.sin(), polar.cos()], dim=-1)
    ring, sector = torch.meshgrid(torch.arange(rings), torch.arange(sectors), indexing="ij")
    a = ring * sectors + sector
    b = ring * sectors + (sector + 1) % sectors
    faces = torch.cat([torch.stack([a, a + sectors, b], -1), torch.stack([b, a + sectors, b + sectors], -1)])
    return points.reshape(-1, 3) * radius, faces.reshape(-1, 3)


def card(*, width: float = 1.0, height: float = 1.0, depth: float = 0.0, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """A flat card that faces -y, `depth` along +y, leaning back by `slope` metres in y a metre in x."""
    corners = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]) / 2
    x, z = corners[:, 0] * width, corners[:, 1] * height
    points = torch.stack([x, depth + slope * x, z], dim=1)
    return points, torch.tensor([[0, 1, 2], [0, 2, 3]])


def person(
    shapes: list[tuple[Tensor, Tensor, int]],
    *,
    cutout: bool = False,
    glass: int | None = None,
    texture: int = -1,
    tint: tuple[float, float, float] = (0.6, 0.4, 0.3),
    gloss: float = 0.2,
    keypoints: Tensor | None = None,
    keypoint_depth: float = 0.01,
) -> PeopleBatch:
    """One person made of (vertices, faces, part class) pieces; keypoint j is `keypoints[j]`, the others are unknown.

    Pieces of the class `glass` are window glass.
    """
    vertices, faces, classes, start = [], [], [], 0
    for points, triangles, part in shapes:
        vertices.append(points)
        faces.append(triangles + start)
        classes.append(torch.full((len(triangles),), part, dtype=torch.uint8))
        start += len(points)
    V, F = torch.cat(vertices)[None], torch.cat(faces)[None]
    count = F.shape[1]
    known = torch.zeros(1, NUM_KEYPOINTS, dtype=torch.bool)
    points = torch.zeros(1, NUM_KEYPOINTS, 3)
    if keypoints is not None:
        known[0, : len(keypoints)] = True
        points[0, : len(keypoints)] = keypoints
    corner_uv = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    part = torch.cat(classes)[None]  # [1, F]
    return PeopleBatch(
        vertices=V,
        rest_vertices=V.clone(),
        faces=F,
        face_uv=corner_uv.expand(1, count, 3, 2).clone(),
        face_class=part,
        face_material=(part == (-1 if glass is None else glass)).long(),
        materials=Materials(
            texture=torch.tensor([[texture, -1]]),
            tint=torch.tensor([[tint, tint]]),
            tint2=torch.zeros(1, 2, 3),
            pattern=torch.zeros(1, 2, dtype=torch.int64),
            pattern_param=torch.tensor([10.0, 0.0, 0.5, 0.0]).expand(1, 2, 4),
            gloss=torch.tensor([[gloss, 0.9]]),
            cutout=torch.tensor([[cutout, False]]),
            clear=torch.tensor([[False, True]]),
        ),
        keypoints=points,
        keypoint_known=known,
        keypoint_depth=torch.full((1, NUM_KEYPOINTS), keypoint_depth),
        stature_m=torch.tensor([1.7]),
    )


def front_camera(*, distance: float, focal: float, size_hw: tuple[int, int]) -> Cameras:
    """A level camera at y = -distance that looks along +y at the origin."""
    H, W = size_hw
    K = torch.tensor([[focal, 0.0, (W - 1) / 2], [0.0, focal, (H - 1) / 2], [0.0, 0.0, 1.0]])
    rotation = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    return Cameras(K[None], rotation[None], torch.tensor([[0.0, 0.0, distance]]), size_hw)


def alone() -> PeoplePlacement:
    """One person at the origin of one image."""
    return PeoplePlacement(torch.tensor([0]), torch.zeros(1), torch.zeros(1, 3), 1)


@functools.cache
def plain_pack() -> AssetPack:
    """A pack for shapes, which have no texture: one white one is enough."""
    return replace(tube_people(0), textures=torch.full((1, 16, 16, 4), 255, dtype=torch.uint8))


def render_shapes(people: PeopleBatch, cameras: Cameras | None, **options: Any) -> GroundTruth:
    """Render shapes, by default one person at the origin; without cameras these are random."""
    defaults = {"generator": torch.Generator().manual_seed(0), "placement": alone()}
    return render(people, plain_pack(), cameras=cameras, **(defaults | options))
