"""Shadows by looking from the light: depth maps of a far-away camera, drawn by the same rasteriser."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.data.synthetic.camera import turn
from vitruvian.data.synthetic.chance import Chance
from vitruvian.data.synthetic.lights import Lights, look_up
from vitruvian.data.synthetic.raster import Cutouts, depth_map, rasterize

FAR = 1e4
LIGHT_DISTANCE = 10.0  # radii of the lit region


@dataclass(frozen=True)
class Meshes:
    """P people as the rasteriser wants them, in the world of their pictures."""

    vertices: Tensor  # [P, V, 3] world
    faces: Tensor  # [P, F, 3]
    present: Tensor  # [P, F] bool
    picture: Tensor  # [P] int64
    pictures: int


@dataclass(frozen=True)
class ShadowMap:
    """What a light sees of each of B pictures. The lit region has a centre and a radius."""

    depth: Tensor  # [B, S, S] metres from the light; FAR where there is nothing
    rotation: Tensor  # [B, 3, 3] world to light
    centre: Tensor  # [B, 3]
    radius: Tensor  # [B]

    def locate(self, points: Tensor, picture: Tensor) -> Tensor:
        """World points [N, 3] of pictures [N] -> x, y in texels and depth, [N, 3]."""
        turned = turn(points - self.centre[picture], self.rotation[picture])
        return _to_screen(turned, self.radius[picture], self.depth.shape[-1])

    def lit(self, at: Tensor, picture: Tensor, *, bias: Tensor) -> Tensor:
        """Share of the four texels around places [N, 3] (from `locate`) that are not hidden, [N]; outside is lit."""
        S = self.depth.shape[-1]
        left, top = at[:, 0].floor(), at[:, 1].floor()
        across, down = at[:, 0] - left, at[:, 1] - top
        flat = self.depth.flatten()
        total = torch.zeros_like(across)
        for dy, wy in ((0, 1 - down), (1, down)):
            for dx, wx in ((0, 1 - across), (1, across)):
                x, y = left.long() + dx, top.long() + dy
                inside = (x >= 0) & (x < S) & (y >= 0) & (y < S)
                seen = flat[(picture * S + y.clamp(0, S - 1)) * S + x.clamp(0, S - 1)]
                total = total + wx * wy * ((seen > at[:, 2] - bias) | ~inside)
        return total

    def soft_light(self, points: Tensor, picture: Tensor, *, softness: Tensor, chance: Chance, taps: int) -> Tensor:
        """Light that arrives from a source of apparent radius `softness` [B], at points [N, 3]: [N] in 0..1."""
        at = self.locate(points, picture)  # [N, 3]
        texel = (2.2 * self.radius / self.depth.shape[-1])[picture]  # metres
        bias = 0.003 + 0.5 * texel
        start = chance.field(len(at)) * 2 * math.pi
        # The penumbra widens with the distance between what hides and what is hidden: find that first.
        reach = (softness[picture] * 0.35 / texel).clamp(1.0, self.depth.shape[-1] / 8)
        flat = self.depth.flatten()
        S = self.depth.shape[-1]
        hidden, gap = torch.zeros_like(start), torch.zeros_like(start)
        for k in range(taps):
            near = at[:, :2] + _disc(k, taps, start) * reach[:, None]
            x, y = near[:, 0].round().long().clamp(0, S - 1), near[:, 1].round().long().clamp(0, S - 1)
            seen = flat[(picture * S + y) * S + x]
            blocks = seen < at[:, 2] - bias
            hidden = hidden + blocks
            gap = gap + torch.where(blocks, at[:, 2] - seen, 0.0)
        gap = gap / hidden.clamp_min(1.0)
        spread = (softness[picture] * gap / texel).clamp_min(0.7).minimum(reach)
        light = torch.zeros_like(start)
        for k in range(taps):
            offset = _disc(k, taps, start) * spread[:, None]
            moved = torch.cat([at[:, :2] + offset, at[:, 2:]], dim=1)
            light = light + self.lit(moved, picture, bias=bias + 0.3 * spread * texel)
        return light / taps


def _disc(k: int, count: int, start: Tensor) -> Tensor:
    """The k-th of `count` points that fill a unit disc evenly, turned by [N] radians: [N, 2]."""
    radius, angle = math.sqrt((k + 0.5) / count), k * 2.399963
    return torch.stack([(start + angle).cos(), (start + angle).sin()], dim=1) * radius


def _to_screen(turned: Tensor, radius: Tensor, size: int) -> Tensor:
    """Points in light axes around the centre -> x, y in texels and depth; the region fills 1/1.1 of the map."""
    depth = turned[..., 2] + LIGHT_DISTANCE * radius
    focal = size / 2.2 * LIGHT_DISTANCE
    scale = focal / depth.clamp_min(1e-3)
    return torch.stack(
        [turned[..., 0] * scale + (size - 1) / 2, turned[..., 1] * scale + (size - 1) / 2, depth], dim=-1
    )


def draw_shadow_map(
    meshes: Meshes, direction: Tensor, *, centre: Tensor, radius: Tensor, size: int, cutouts: Cutouts | None = None
) -> ShadowMap:
    """Draw what lights in `direction` [B, 3] (towards the light) see of the regions `centre` [B, 3], `radius` [B]."""
    rotation = _facing(direction)  # [B, 3, 3]
    about = meshes.vertices - centre[meshes.picture][:, None]
    turned = turn(about, rotation[meshes.picture][:, None])  # [P, V, 3]
    screen = _to_screen(turned, radius[meshes.picture][:, None], size)
    ids = rasterize(
        screen,
        meshes.faces,
        present=meshes.present,
        picture=meshes.picture,
        pictures=meshes.pictures,
        size_hw=(size, size),
        cutouts=cutouts,
    )
    return ShadowMap(depth_map(ids, screen, meshes.faces, empty=FAR), rotation, centre, radius)


def _facing(direction: Tensor) -> Tensor:
    """Rotations whose third axis looks from the light to the scene, [B, 3] -> [B, 3, 3]."""
    forward = -direction
    helper = torch.where(
        (direction[:, 2:].abs() > 0.9),
        torch.tensor([1.0, 0.0, 0.0], device=direction.device),
        torch.tensor([0.0, 0.0, 1.0], device=direction.device),
    )
    right = F.normalize(torch.linalg.cross(helper, forward), dim=1)
    return torch.stack([right, torch.linalg.cross(forward, right), forward], dim=1)  # [B, 3, 3]


@dataclass(frozen=True)
class Surroundings:
    """Light from all around: a handful of directions, each with what it sees of the people and how bright it is."""

    directions: list[Tensor]  # [B, 3] each, towards the light
    maps: list[ShadowMap]
    brightness: list[Tensor]  # [B, 3] each

    def share(self, points: Tensor, normals: Tensor, picture: Tensor) -> Tensor:
        """Share of the light that reaches points [N, 3] with world normals [N, 3], per colour: [N, 3] in 0..1."""
        reached, possible = torch.zeros_like(points), torch.full_like(points, 1e-4)
        size = self.maps[0].depth.shape[-1]
        texel = (2.2 * self.maps[0].radius / size)[picture]  # [N] metres
        # Stepping off the surface by a texel keeps coarse maps from shading it with itself.
        lifted = points + normals * texel[:, None]
        bias = 0.005 + 0.5 * texel
        for direction, shadow, bright in zip(self.directions, self.maps, self.brightness, strict=True):
            # A little light wraps round, so that surfaces that face no direction well still get an answer.
            cosine = ((normals * direction[picture]).sum(dim=1) + 0.25).clamp_min(0.0)
            weight = cosine[:, None] * bright[picture]  # [N, 3]
            reached = reached + weight * shadow.lit(shadow.locate(lifted, picture), picture, bias=bias)[:, None]
            possible = possible + weight
        return reached / possible


def draw_surroundings(
    meshes: Meshes, lights: Lights, *, centre: Tensor, radius: Tensor, directions: int, size: int, chance: Chance
) -> Surroundings:
    """Look at the people from evenly spread directions; regions as for `draw_shadow_map`."""
    B = meshes.pictures
    start = chance.uniform(0.0, 2 * math.pi, B)  # [B]
    everyone = torch.arange(B, device=start.device)
    found = Surroundings([], [], [])
    for k in range(directions):
        # The lowest part of the sphere is left out: the ground is there.
        rise = 1 - 1.6 * (k + 0.5) / directions
        flat, azimuth = math.sqrt(1 - rise**2), start + k * 2.399963
        direction = torch.stack([flat * azimuth.cos(), flat * azimuth.sin(), torch.full_like(azimuth, rise)], dim=1)
        found.directions.append(direction)
        found.maps.append(draw_shadow_map(meshes, direction, centre=centre, radius=radius, size=size))
        found.brightness.append(look_up(lights.dull, direction, everyone) + 0.1)
    return found
