"""Light: environment maps, lamps, and shadow maps.

    environment [B, 32, 64, 3] ──▶ ambient light: irradiance as 9 spherical harmonics, prefiltered maps for reflections
                               └─▶ sun: direction and strength of what is far brighter than the rest

World axes, z up. Row 0 of a map is straight up; column c is at azimuth 2π (c + ½) / 64 - π.
Colors are linear; a light of color 1 gives a white matte surface that faces it radiance 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.images.types import SizeHW
from vitruvian.training.synthetic.camera import rotate
from vitruvian.training.synthetic.rasterizer import Cutouts, Meshes, depth_map, rasterize
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.synthetic.textures import bilinear_lookup
from vitruvian.training.tensor_batch import TensorBatch

_MAP_HW = (32, 64)
_GLOSSY_HW, _ROUGH_HW = (32, 64), (16, 32)
_GLOSSY_POWER, _ROUGH_POWER = 160.0, 12.0
_SUN_EXCESS = 6.0  # times the mean brightness: what is above belongs to the sun
_FAR = 1e4
_LIGHT_DISTANCE = 10.0  # radii of the lit region
_GOLDEN_ANGLE = 2.399963


@dataclass(frozen=True)
class Lights(TensorBatch):
    """The light of B images: ambient light, a key light that casts shadows, a fill light and a flash."""

    harmonics: Tensor  # [B, 9, 3] of irradiance / π
    glossy: Tensor  # [B, 32, 64, 3] prefiltered environment map: reflections in glossy surfaces
    rough: Tensor  # [B, 16, 32, 3] the same for rough ones
    key_direction: Tensor  # [B, 3] unit, toward the light
    key_color: Tensor  # [B, 3]
    key_softness: Tensor  # [B] apparent radius of the light, radians
    fill_direction: Tensor  # [B, 3] unit
    fill_color: Tensor  # [B, 3]
    flash_color: Tensor  # [B, 3] light at the camera, as it arrives at the subject

    def ambient(self, normals: Tensor, image_index: Tensor) -> Tensor:
        """Irradiance / π of the environment on surfaces: world normals [N, 3], image_index [N] -> [N, 3]."""
        basis = _harmonic_basis(normals)  # [N, 9]
        return (basis[..., None] * self.harmonics[image_index]).sum(dim=1).clamp_min(0.0)


def _map_directions(height: int, width: int, *, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return unit directions [H·W, 3] of a map's cells, and their solid angles [H·W]."""
    polar = (torch.arange(height, device=device) + 0.5) / height * math.pi
    azimuth = (torch.arange(width, device=device) + 0.5) / width * 2 * math.pi - math.pi
    polar, azimuth = torch.meshgrid(polar, azimuth, indexing="ij")  # [H, W]
    directions = torch.stack([polar.sin() * azimuth.cos(), polar.sin() * azimuth.sin(), polar.cos()], dim=-1)
    angles = polar.sin() * (math.pi / height) * (2 * math.pi / width)
    return directions.flatten(0, 1), angles.flatten()  # [H·W, 3], [H·W]


def sample_environment(maps: Tensor, directions: Tensor, image_index: Tensor) -> Tensor:
    """Look maps [B, H, W, 3] up along directions [N, 3], bilinear: [N, 3]."""
    _, H, W, _ = maps.shape
    row = torch.acos(directions[:, 2].clamp(-1, 1)) / math.pi * H - 0.5
    column = (torch.atan2(directions[:, 1], directions[:, 0]) + math.pi) / (2 * math.pi) * W - 0.5
    yx = torch.stack([row.clamp(0, H - 1), column], dim=1)
    return bilinear_lookup(maps.reshape(-1, 3), image_index * (H * W), (H, W), yx)


def _harmonic_basis(directions: Tensor) -> Tensor:
    """The nine real spherical harmonics up to degree 2, [..., 3] -> [..., 9]."""
    x, y, z = directions.unbind(-1)
    return torch.stack([
        torch.full_like(x, 0.282095), 0.488603 * y, 0.488603 * z, 0.488603 * x, 1.092548 * x * y, 1.092548 * y * z,
        0.315392 * (3 * z * z - 1), 1.092548 * x * z, 0.546274 * (x * x - y * y),
    ], dim=-1)  # fmt: skip


def _irradiance_harmonics(maps: Tensor) -> Tensor:
    """Project maps [B, H, W, 3] onto harmonics of irradiance / π, [B, 9, 3]."""
    directions, angles = _map_directions(maps.shape[1], maps.shape[2], device=maps.device)
    basis = _harmonic_basis(directions) * angles[:, None]  # [H·W, 9]
    coefficients = torch.einsum("nk,bnc->bkc", basis, maps.flatten(1, 2))
    # The cosine of a matte surface is a factor per degree: π, 2π/3, π/4, here over π.
    cosine = torch.tensor([1.0] + [2 / 3] * 3 + [1 / 4] * 5, device=maps.device)
    return coefficients * cosine[:, None]  # [B, 9, 3]


def _blur_maps(maps: Tensor, *, power: float, size_hw: SizeHW) -> Tensor:
    """Average maps [B, H, W, 3] with the lobe cos^power around each direction of a smaller map, [B, h, w, 3]."""
    lobe = _lobes((maps.shape[1], maps.shape[2]), size_hw, power, str(maps.device))  # [h·w, H·W]
    return torch.einsum("mn,bnc->bmc", lobe, maps.flatten(1, 2)).view(-1, *size_hw, 3)  # [B, h, w, 3]


@lru_cache(maxsize=8)
def _lobes(source_hw: SizeHW, target_hw: SizeHW, power: float, device: str) -> Tensor:
    """Return the weights of the directions of a large map for those of a small one, [h·w, H·W]; rows sum to 1."""
    source, angles = _map_directions(*source_hw, device=device)
    target, _ = _map_directions(*target_hw, device=device)
    lobe = (target @ source.T).clamp_min(0.0) ** power * angles
    return lobe / lobe.sum(dim=1, keepdim=True)


def _split_sun(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split the sun off maps [B, H, W, 3]: the rest, the sun's direction [B, 3] and its color [B, 3]."""
    directions, angles = _map_directions(maps.shape[1], maps.shape[2], device=maps.device)
    flat = maps.flatten(1, 2)  # [B, H·W, 3]
    level = flat.mean(dim=-1)  # [B, H·W]
    typical = (level.sqrt() * angles).sum(dim=1, keepdim=True) / angles.sum()
    limit = _SUN_EXCESS * typical**2
    keep = (limit / level.clamp_min(1e-6)).clamp_max(1.0)[..., None]  # [B, H·W, 1]
    excess = flat * (1 - keep) * angles[:, None]
    weight = excess.mean(dim=-1)  # [B, H·W]
    # The mean is taken around the brightest lamp only, not over several lamps.
    peak = directions[weight.argmax(dim=1)]  # [B, 3]
    close = ((directions @ peak.T).T > 0.8).float() * weight  # [B, H·W]
    direction = F.normalize(close @ directions + 1e-6 * peak, dim=1)
    color = excess.sum(dim=1) / math.pi
    return (flat * keep).view_as(maps), direction, color


def sample_lights(environments: Tensor, count: int, *, rng: Rng, tint: Tensor | None = None) -> Lights:
    """Draw the light of B images: measured environments [E, H, W, 3] (E may be 0) or procedural ones, and lamps.

    `tint` [B, 3] is the mean linear color of the background, which the light approaches.
    """
    B = count
    maps = _procedural_maps(B, rng)  # [B, 32, 64, 3]
    if len(environments):
        chosen = environments[rng.integers(len(environments), B).to(environments.device)].to(rng.device)
        small = F.adaptive_avg_pool2d(chosen.permute(0, 3, 1, 2), _MAP_HW).permute(0, 2, 3, 1)  # [B, 32, 64, 3]
        measured = rng.bernoulli(0.7, B)[:, None, None, None]
        maps = torch.where(measured, _rotated(small, rng), maps)
    maps, sun, sun_color = _split_sun(maps)
    soft = _irradiance_harmonics(maps)  # [B, 9, 3]
    level = soft[:, 0].mean(dim=1) * 0.282095 + 1e-4  # mean irradiance / π over all directions
    gain = (1.0 / level)[:, None]

    # Sunlight may be a hundred times brighter than the rest; it is limited to a few times, to keep both in range.
    strength = (sun_color * gain).mean(dim=1)
    hue = sun_color / sun_color.mean(dim=1, keepdim=True).clamp_min(1e-6)
    has_sun = strength > 0.05
    lamp = _lamp_direction(rng, B)
    lamp_hue = _color_temperature(rng.normal(0.1, 0.35, B))
    use_lamp = (~has_sun & rng.bernoulli(0.6, B)) | rng.bernoulli(0.15, B)
    direction = torch.where(use_lamp[:, None], lamp, torch.where(has_sun[:, None], sun, lamp))
    direction = F.normalize(torch.cat([direction[:, :2], direction[:, 2:].clamp_min(0.05)], dim=1), dim=1)
    limited = 5.0 * (1 - (-strength / 5.0).exp())
    power = torch.where(use_lamp, rng.log_uniform(0.4, 5.0, B), limited * rng.log_uniform(0.5, 1.5, B))
    key = torch.where(use_lamp[:, None], lamp_hue, hue) * power[:, None]
    softness = torch.where(use_lamp, rng.log_uniform(0.03, 0.5, B), rng.log_uniform(0.02, 0.15, B))

    fill = (
        _color_temperature(rng.normal(0.0, 0.4, B)) * (rng.log_uniform(0.1, 1.2, B) * rng.bernoulli(0.35, B))[:, None]
    )
    flash = (
        _color_temperature(rng.normal(0.0, 0.1, B)) * (rng.log_uniform(0.3, 4.0, B) * rng.bernoulli(0.12, B))[:, None]
    )
    balance = _white_balance(soft[:, 0] * 0.282095 * gain + 0.3 * key, tint, rng)  # [B, 3]
    scaled = maps * (gain * balance)[:, None, None]
    return Lights(
        harmonics=soft * (gain * balance)[:, None],
        glossy=_blur_maps(scaled, power=_GLOSSY_POWER, size_hw=_GLOSSY_HW),
        rough=_blur_maps(scaled, power=_ROUGH_POWER, size_hw=_ROUGH_HW),
        key_direction=direction,
        key_color=key * balance,
        key_softness=softness,
        fill_direction=_lamp_direction(rng, B),
        fill_color=fill * balance,
        flash_color=flash * balance,
    )


def _rotated(maps: Tensor, rng: Rng) -> Tensor:
    """Rotate each map [B, H, W, 3] about the vertical, and mirror half of them."""
    B, _, W, _ = maps.shape
    columns = torch.arange(W, device=maps.device)[None]  # [1, W]
    columns = torch.where(rng.bernoulli(0.5, B, 1), W - 1 - columns, columns)
    columns = (columns + rng.integers(W, B, 1)) % W  # [B, W]
    return maps.gather(2, columns[:, None, :, None].expand(-1, maps.shape[1], -1, 3))


def _procedural_maps(B: int, rng: Rng) -> Tensor:
    """Draw ground, horizon and sky with a few bright windows or lamps, [B, 32, 64, 3]."""
    directions, _ = _map_directions(*_MAP_HW, device=rng.device)  # [N, 3]
    up = directions[:, 2][None, :, None]  # [1, N, 1]
    sky = _color_temperature(rng.normal(-0.2, 0.3, B))[:, None] * rng.log_uniform(0.5, 2.0, B, 1, 1)
    horizon = _color_temperature(rng.normal(0.0, 0.2, B))[:, None] * rng.log_uniform(0.3, 1.5, B, 1, 1)
    ground = rng.uniform(0.3, 1.0, B, 1, 3) * rng.log_uniform(0.08, 0.6, B, 1, 1)
    maps = horizon + (sky - horizon) * up.clamp_min(0.0).sqrt()
    maps = maps + (ground - maps) * torch.sigmoid(-up * 12.0)  # [B, N, 3]
    for _ in range(4):
        center = _lamp_direction(rng, B)  # [B, 3]
        sharpness = rng.log_uniform(6.0, 300.0, B, 1)
        lobe = ((center @ directions.T - 1) * sharpness).exp()[..., None]  # [B, N, 1]
        bright = rng.log_uniform(1.0, 40.0, B, 1, 1) * rng.bernoulli(0.5, B, 1, 1)
        maps = maps + lobe * bright * _color_temperature(rng.normal(0.1, 0.3, B))[:, None]
    return maps.view(B, *_MAP_HW, 3)  # [B, 32, 64, 3]


def _lamp_direction(rng: Rng, B: int) -> Tensor:
    """Draw directions of lamps, [B, 3], mostly from above."""
    azimuth, height = rng.uniform(-math.pi, math.pi, B), rng.uniform(-0.15, 0.95, B)
    flat = (1 - height**2).clamp_min(0.0).sqrt()
    return torch.stack([flat * azimuth.cos(), flat * azimuth.sin(), height], dim=1)


def _color_temperature(amount: Tensor) -> Tensor:
    """Return the color of light from cold (negative) to warm (positive), [B] -> [B, 3], mean about 1."""
    amount = amount.clamp(-0.7, 0.9)
    return torch.stack([1 + 0.45 * amount, 1 + 0.05 * amount, 1 - 0.6 * amount], dim=-1).clamp_min(0.05)


def _white_balance(light: Tensor, tint: Tensor | None, rng: Rng) -> Tensor:
    """Draw gains [B, 3] of a camera that corrects most of the color of the light."""
    B = len(light)
    cast = light / light.mean(dim=1, keepdim=True)
    gains = cast.clamp_min(0.05) ** -rng.uniform(0.7, 1.0, B, 1)
    if tint is not None:
        wanted = (tint / tint.mean(dim=1, keepdim=True).clamp_min(1e-3)).clamp(0.6, 1.6)
        gains = gains * wanted ** rng.uniform(0.0, 0.35, B, 1)
    return gains * (rng.normal(0.0, 0.05, B, 3)).exp()


# ------------------------------------------------------------------------------------------------------- shadows


@dataclass(frozen=True)
class ShadowMap:
    """The depth that a light sees in each of B images. The lit region has a center and a radius."""

    depth: Tensor  # [B, S, S] meters from the light; very far where there is nothing
    rotation: Tensor  # [B, 3, 3] world to light
    center: Tensor  # [B, 3]
    radius: Tensor  # [B]

    @property
    def texel(self) -> Tensor:
        """Size of a texel, [B] meters."""
        return 2.2 * self.radius / self.depth.shape[-1]

    def project(self, points: Tensor, image_index: Tensor) -> Tensor:
        """World points [N, 3] of images [N] -> x, y in texels and depth, [N, 3]."""
        rotated = rotate(points - self.center[image_index], self.rotation[image_index])
        return _to_screen(rotated, self.radius[image_index], self.depth.shape[-1])

    def lit(self, at: Tensor, image_index: Tensor, *, bias: Tensor) -> Tensor:
        """Percentage-closer filtering: lit share [N] of the four texels around positions [N, 3]; outside is lit."""
        S = self.depth.shape[-1]
        corner = at[:, :2].floor()
        across, down = (at[:, :2] - corner).unbind(1)
        left, top = corner.long().unbind(1)
        flat = self.depth.flatten()
        total = torch.zeros_like(across)
        for dy, wy in ((0, 1 - down), (1, down)):
            for dx, wx in ((0, 1 - across), (1, across)):
                x, y = left + dx, top + dy
                inside = (x >= 0) & (x < S) & (y >= 0) & (y < S)
                depth = flat[(image_index * S + y.clamp(0, S - 1)) * S + x.clamp(0, S - 1)]
                total = total + wx * wy * ((depth > at[:, 2] - bias) | ~inside)
        return total

    def soft_shadow(self, points: Tensor, image_index: Tensor, *, softness: Tensor, rng: Rng, taps: int) -> Tensor:
        """Percentage-closer soft shadows: lit share [N] of points [N, 3]; `softness` [B] is the radius of the light."""
        at = self.project(points, image_index)  # [N, 3]
        S = self.depth.shape[-1]
        texel = self.texel[image_index]  # meters
        bias = 0.003 + 0.5 * texel
        start = rng.uniform_field(len(at)) * 2 * math.pi
        # The penumbra widens with the distance to the occluder: estimate that first.
        reach = (softness[image_index] * 0.35 / texel).clamp(1.0, S / 8)
        flat = self.depth.flatten()
        occluders, gap = torch.zeros_like(start), torch.zeros_like(start)
        for k in range(taps):
            near = at[:, :2] + _disc_point(k, taps, start) * reach[:, None]
            x, y = near.round().long().clamp(0, S - 1).unbind(1)
            depth = flat[(image_index * S + y) * S + x]
            blocks = depth < at[:, 2] - bias
            occluders = occluders + blocks
            gap = gap + torch.where(blocks, at[:, 2] - depth, 0.0)
        gap = gap / occluders.clamp_min(1.0)
        penumbra = (softness[image_index] * gap / texel).clamp_min(0.7).minimum(reach)
        light = torch.zeros_like(start)
        for k in range(taps):
            offset = _disc_point(k, taps, start) * penumbra[:, None]
            moved = torch.cat([at[:, :2] + offset, at[:, 2:]], dim=1)
            light = light + self.lit(moved, image_index, bias=bias + 0.3 * penumbra * texel)
        return light / taps


def _disc_point(k: int, count: int, start: Tensor) -> Tensor:
    """Return the k-th of `count` points that fill a unit disc evenly, rotated by [N] radians: [N, 2]."""
    radius, angle = math.sqrt((k + 0.5) / count), k * _GOLDEN_ANGLE
    return torch.stack([(start + angle).cos(), (start + angle).sin()], dim=1) * radius


def _to_screen(rotated: Tensor, radius: Tensor, size: int) -> Tensor:
    """Points in light axes around the center -> x, y in texels and depth; the region fills 1/1.1 of the map."""
    depth = rotated[..., 2] + _LIGHT_DISTANCE * radius
    scale = size / 2.2 * _LIGHT_DISTANCE / depth.clamp_min(1e-3)
    xy = rotated[..., :2] * scale[..., None] + (size - 1) / 2
    return torch.cat([xy, depth[..., None]], dim=-1)


def render_shadow_map(
    meshes: Meshes, direction: Tensor, center: Tensor, radius: Tensor, *, size: int, cutouts: Cutouts | None = None
) -> ShadowMap:
    """Render the depth that lights in `direction` [B, 3] (toward them) see around `center` [B, 3], `radius` [B]."""
    rotation = _look_at(direction)  # [B, 3, 3]
    index = meshes.image_index
    rotated = rotate(meshes.vertices - center[index][:, None], rotation[index][:, None])  # [P, V, 3]
    screen = _to_screen(rotated, radius[index][:, None], size)
    ids = rasterize(meshes, screen, (size, size), cutouts)
    return ShadowMap(depth_map(ids, screen, meshes.faces, empty=_FAR), rotation, center, radius)


def _look_at(direction: Tensor) -> Tensor:
    """Return rotations whose third axis points from the light to the scene, [B, 3] -> [B, 3, 3]."""
    forward = -direction
    x_axis, z_axis = torch.eye(3, device=direction.device)[[0, 2]]
    up = torch.where(direction[:, 2:].abs() > 0.9, x_axis, z_axis)
    right = F.normalize(torch.linalg.cross(up, forward), dim=1)
    return torch.stack([right, torch.linalg.cross(forward, right), forward], dim=1)  # [B, 3, 3]


@dataclass(frozen=True)
class AmbientOcclusion:
    """Ambient occlusion by shadow maps: K directions of the ambient light, each with its brightness."""

    directions: list[Tensor]  # [B, 3] each, toward the light
    maps: list[ShadowMap]
    brightness: list[Tensor]  # [B, 3] each

    def visibility(self, points: Tensor, normals: Tensor, image_index: Tensor) -> Tensor:
        """Share of the ambient light that reaches points [N, 3] with world normals [N, 3], per color: [N, 3]."""
        reached, possible = torch.zeros_like(points), torch.full_like(points, 1e-4)
        texel = self.maps[0].texel[image_index]  # [N] meters
        lifted = points + normals * texel[:, None]  # off the surface, which would shade itself in coarse maps
        bias = 0.005 + 0.5 * texel
        for direction, shadow, bright in zip(self.directions, self.maps, self.brightness, strict=True):
            # The cosine is widened a little, for surfaces that face none of the directions.
            cosine = ((normals * direction[image_index]).sum(dim=1) + 0.25).clamp_min(0.0)
            weight = cosine[:, None] * bright[image_index]  # [N, 3]
            lit = shadow.lit(shadow.project(lifted, image_index), image_index, bias=bias)
            reached = reached + weight * lit[:, None]
            possible = possible + weight
        return reached / possible


def render_ambient_occlusion(
    meshes: Meshes, lights: Lights, center: Tensor, radius: Tensor, *, directions: int, size: int, rng: Rng
) -> AmbientOcclusion:
    """Draw shadow maps from evenly spaced directions; regions as for `render_shadow_map`."""
    start = rng.uniform(0.0, 2 * math.pi, meshes.image_count)  # [B]
    every = torch.arange(meshes.image_count, device=start.device)
    shadows = AmbientOcclusion([], [], [])
    for k in range(directions):
        height = 1 - 1.6 * (k + 0.5) / directions  # the lowest part of the sphere is left out: the ground is there
        flat, azimuth = math.sqrt(1 - height**2), start + k * _GOLDEN_ANGLE
        direction = torch.stack([flat * azimuth.cos(), flat * azimuth.sin(), torch.full_like(azimuth, height)], dim=1)
        shadows.directions.append(direction)
        shadows.maps.append(render_shadow_map(meshes, direction, center, radius, size=size))
        shadows.brightness.append(sample_environment(lights.rough, direction, every) + 0.1)
    return shadows
