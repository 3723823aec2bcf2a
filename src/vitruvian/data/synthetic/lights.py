"""Light: environment maps (measured or made up) and lamps.

    environment [B, 32, 64, 3] ──▶ soft part: irradiance as 9 spherical harmonics, two blurred maps for reflections
                               └─▶ sun: the direction and strength of what is far brighter than the rest

World axes, z up. Row 0 of a map is straight up; column c looks along azimuth 2π (c + ½) / 64 - π.
Colours are linear; a light of colour 1 turns a white matte surface that faces it into radiance 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.data.synthetic.chance import Chance

MAP_HW = (32, 64)
SHARP_HW, DULL_HW = (32, 64), (16, 32)
SHARP_POWER, DULL_POWER = 160.0, 12.0
SUN_EXCESS = 6.0  # times the mean brightness: what is above belongs to the sun


@dataclass(frozen=True)
class Lights:
    """The light of B pictures: surroundings, one key light that casts shadows, one fill light, one flash."""

    harmonics: Tensor  # [B, 9, 3] of irradiance / π
    sharp: Tensor  # [B, 32, 64, 3] surroundings, slightly blurred
    dull: Tensor  # [B, 16, 32, 3] surroundings, strongly blurred
    key_direction: Tensor  # [B, 3] unit, towards the light
    key_colour: Tensor  # [B, 3]
    key_softness: Tensor  # [B] apparent radius of the light, radians
    fill_direction: Tensor  # [B, 3] unit
    fill_colour: Tensor  # [B, 3]
    flash_colour: Tensor  # [B, 3] light at the camera, as it arrives at the subject

    def pick(self, index: Tensor) -> Lights:
        """The lights of some pictures, index [b] int64."""
        return Lights(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def ambient(self, normals: Tensor, picture: Tensor) -> Tensor:
        """Irradiance / π of the surroundings on surfaces: world normals [N, 3], picture [N] -> [N, 3]."""
        basis = harmonic_basis(normals)  # [N, 9]
        return (basis[..., None] * self.harmonics[picture]).sum(dim=1).clamp_min(0.0)


def map_directions(height: int, width: int, *, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Unit directions [H·W, 3] of a map's cells, and their solid angles [H·W]."""
    polar = (torch.arange(height, device=device) + 0.5) / height * math.pi
    azimuth = (torch.arange(width, device=device) + 0.5) / width * 2 * math.pi - math.pi
    polar, azimuth = torch.meshgrid(polar, azimuth, indexing="ij")  # [H, W]
    directions = torch.stack([polar.sin() * azimuth.cos(), polar.sin() * azimuth.sin(), polar.cos()], dim=-1)
    angles = polar.sin() * (math.pi / height) * (2 * math.pi / width)
    return directions.flatten(0, 1), angles.flatten()  # [H·W, 3], [H·W]


def look_up(maps: Tensor, directions: Tensor, picture: Tensor) -> Tensor:
    """Bilinear lookup of maps [B, H, W, 3] along directions [N, 3] for pictures [N] -> [N, 3]."""
    _, H, W, _ = maps.shape
    row = torch.acos(directions[:, 2].clamp(-1, 1)) / math.pi * H - 0.5
    column = (torch.atan2(directions[:, 1], directions[:, 0]) + math.pi) / (2 * math.pi) * W - 0.5
    top, left = row.floor(), column.floor()
    down, across = (row - top)[:, None], (column - left)[:, None]
    rows = [(top.long() + step).clamp(0, H - 1) for step in (0, 1)]
    columns = [(left.long() + step) % W for step in (0, 1)]
    flat = maps.reshape(-1, 3)
    taps = [[flat[(picture * H + r) * W + c] for c in columns] for r in rows]  # [N, 3] each
    upper = taps[0][0] + (taps[0][1] - taps[0][0]) * across
    lower = taps[1][0] + (taps[1][1] - taps[1][0]) * across
    return upper + (lower - upper) * down


def harmonic_basis(directions: Tensor) -> Tensor:
    """The nine real spherical harmonics up to degree 2, [..., 3] -> [..., 9]."""
    x, y, z = directions.unbind(-1)
    return torch.stack(
        [
            torch.full_like(x, 0.282095),
            0.488603 * y,
            0.488603 * z,
            0.488603 * x,
            1.092548 * x * y,
            1.092548 * y * z,
            0.315392 * (3 * z * z - 1),
            1.092548 * x * z,
            0.546274 * (x * x - y * y),
        ],
        dim=-1,
    )


def irradiance_harmonics(maps: Tensor) -> Tensor:
    """Project maps [B, H, W, 3] onto harmonics of irradiance / π, [B, 9, 3]."""
    directions, angles = map_directions(maps.shape[1], maps.shape[2], device=maps.device)
    basis = harmonic_basis(directions) * angles[:, None]  # [H·W, 9]
    coefficients = torch.einsum("nk,bnc->bkc", basis, maps.flatten(1, 2))
    # A matte surface gathers light with a cosine; per degree that is the factor π, 2π/3, π/4, here over π.
    cosine = torch.tensor([1.0] + [2 / 3] * 3 + [1 / 4] * 5, device=maps.device)
    return coefficients * cosine[:, None]  # [B, 9, 3]


def blur_maps(maps: Tensor, *, power: float, size_hw: tuple[int, int]) -> Tensor:
    """Average maps [B, H, W, 3] with the lobe cos^power around each direction of a smaller map, [B, h, w, 3]."""
    lobe = _lobes((maps.shape[1], maps.shape[2]), size_hw, power, str(maps.device))  # [h·w, H·W]
    return torch.einsum("mn,bnc->bmc", lobe, maps.flatten(1, 2)).view(-1, *size_hw, 3)  # [B, h, w, 3]


@lru_cache(maxsize=8)
def _lobes(source_hw: tuple[int, int], target_hw: tuple[int, int], power: float, device: str) -> Tensor:
    """How much each direction of a large map counts for each of a small one, [h·w, H·W]; rows sum to 1."""
    source, angles = map_directions(*source_hw, device=device)
    target, _ = map_directions(*target_hw, device=device)
    lobe = (target @ source.T).clamp_min(0.0) ** power * angles
    return lobe / lobe.sum(dim=1, keepdim=True)


def split_sun(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take what outshines the rest out of maps [B, H, W, 3]: the rest, the sun's direction [B, 3] and colour [B, 3]."""
    directions, angles = map_directions(maps.shape[1], maps.shape[2], device=maps.device)
    flat = maps.flatten(1, 2)  # [B, H·W, 3]
    level = flat.mean(dim=-1)  # [B, H·W]
    typical = (level.sqrt() * angles).sum(dim=1, keepdim=True) / angles.sum()
    limit = SUN_EXCESS * typical**2
    keep = (limit / level.clamp_min(1e-6)).clamp_max(1.0)[..., None]  # [B, H·W, 1]
    excess = flat * (1 - keep) * angles[:, None]
    weight = excess.mean(dim=-1)  # [B, H·W]
    # Several lamps would average to a place where none is: the mean is taken around the brightest only.
    peak = directions[weight.argmax(dim=1)]  # [B, 3]
    close = ((directions @ peak.T).T > 0.8).float() * weight  # [B, H·W]
    direction = F.normalize(close @ directions + 1e-6 * peak, dim=1)
    colour = excess.sum(dim=1) / math.pi
    return (flat * keep).view_as(maps), direction, colour


def sample_lights(environments: Tensor, pictures: int, *, chance: Chance, tint: Tensor | None = None) -> Lights:
    """Light B pictures: measured surroundings [E, H, W, 3] (E may be 0) or made-up ones, turned and mixed with lamps.

    `tint` [B, 3] pulls the colour of the light towards that of the background (mean linear colour).
    """
    B = pictures
    maps = _made_up_maps(B, chance)  # [B, 32, 64, 3]
    if len(environments):
        chosen = environments[chance.integers(len(environments), B).to(environments.device)].to(chance.device)
        small = F.adaptive_avg_pool2d(chosen.permute(0, 3, 1, 2), MAP_HW).permute(0, 2, 3, 1)  # [B, 32, 64, 3]
        measured = chance.flip(0.7, B)[:, None, None, None]
        maps = torch.where(measured, _turned(small, chance), maps)
    maps, sun, sun_colour = split_sun(maps)
    soft = irradiance_harmonics(maps)  # [B, 9, 3]
    level = soft[:, 0].mean(dim=1) * 0.282095 + 1e-4  # mean irradiance / π over all directions
    gain = (1.0 / level)[:, None]

    # Sunlight may outshine the surroundings a hundredfold; pictures keep both in range, so it is held to a few times.
    strength = (sun_colour * gain).mean(dim=1)
    hue = sun_colour / sun_colour.mean(dim=1, keepdim=True).clamp_min(1e-6)
    has_sun = strength > 0.05
    lamp = _lamp_direction(chance, B)
    lamp_hue = _warmth(chance.normal(0.1, 0.35, B))
    use_lamp = (~has_sun & chance.flip(0.6, B)) | chance.flip(0.15, B)
    direction = torch.where(use_lamp[:, None], lamp, torch.where(has_sun[:, None], sun, lamp))
    direction = F.normalize(torch.cat([direction[:, :2], direction[:, 2:].clamp_min(0.05)], dim=1), dim=1)
    held = 5.0 * (1 - (-strength / 5.0).exp())
    power = torch.where(use_lamp, chance.log_uniform(0.4, 5.0, B), held * chance.log_uniform(0.5, 1.5, B))
    key = torch.where(use_lamp[:, None], lamp_hue, hue) * power[:, None]
    softness = torch.where(use_lamp, chance.log_uniform(0.03, 0.5, B), chance.log_uniform(0.02, 0.15, B))

    fill = _warmth(chance.normal(0.0, 0.4, B)) * (chance.log_uniform(0.1, 1.2, B) * chance.flip(0.35, B))[:, None]
    flash = _warmth(chance.normal(0.0, 0.1, B)) * (chance.log_uniform(0.3, 4.0, B) * chance.flip(0.12, B))[:, None]
    balance = _white_balance(soft[:, 0] * 0.282095 * gain + 0.3 * key, tint, chance)  # [B, 3]
    scaled = maps * (gain * balance)[:, None, None]
    return Lights(
        harmonics=soft * (gain * balance)[:, None],
        sharp=blur_maps(scaled, power=SHARP_POWER, size_hw=SHARP_HW),
        dull=blur_maps(scaled, power=DULL_POWER, size_hw=DULL_HW),
        key_direction=direction,
        key_colour=key * balance,
        key_softness=softness,
        fill_direction=_lamp_direction(chance, B),
        fill_colour=fill * balance,
        flash_colour=flash * balance,
    )


def _turned(maps: Tensor, chance: Chance) -> Tensor:
    """Turn each map [B, H, W, 3] about the vertical, and mirror half of them."""
    B, _, W, _ = maps.shape
    columns = torch.arange(W, device=maps.device)[None]  # [1, W]
    columns = torch.where(chance.flip(0.5, B, 1), W - 1 - columns, columns)
    columns = (columns + chance.integers(W, B, 1)) % W  # [B, W]
    return maps.gather(2, columns[:, None, :, None].expand(-1, maps.shape[1], -1, 3))


def _made_up_maps(B: int, chance: Chance) -> Tensor:
    """Ground, horizon and sky colours with a few bright windows or lamps, [B, 32, 64, 3]."""
    directions, _ = map_directions(*MAP_HW, device=chance.device)  # [N, 3]
    up = directions[:, 2][None, :, None]  # [1, N, 1]
    sky = _warmth(chance.normal(-0.2, 0.3, B))[:, None] * chance.log_uniform(0.5, 2.0, B, 1, 1)
    horizon = _warmth(chance.normal(0.0, 0.2, B))[:, None] * chance.log_uniform(0.3, 1.5, B, 1, 1)
    ground = chance.uniform(0.3, 1.0, B, 1, 3) * chance.log_uniform(0.08, 0.6, B, 1, 1)
    maps = horizon + (sky - horizon) * up.clamp_min(0.0).sqrt()
    maps = maps + (ground - maps) * torch.sigmoid(-up * 12.0)  # [B, N, 3]
    for _ in range(4):
        centre = _lamp_direction(chance, B)  # [B, 3]
        sharpness = chance.log_uniform(6.0, 300.0, B, 1)
        lobe = ((centre @ directions.T - 1) * sharpness).exp()[..., None]  # [B, N, 1]
        bright = chance.log_uniform(1.0, 40.0, B, 1, 1) * chance.flip(0.5, B, 1, 1)
        maps = maps + lobe * bright * _warmth(chance.normal(0.1, 0.3, B))[:, None]
    return maps.view(B, *MAP_HW, 3)  # [B, 32, 64, 3]


def _lamp_direction(chance: Chance, B: int) -> Tensor:
    """Directions a lamp may shine from, [B, 3]: around, mostly from above."""
    azimuth, rise = chance.uniform(-math.pi, math.pi, B), chance.uniform(-0.15, 0.95, B)
    flat = (1 - rise**2).clamp_min(0.0).sqrt()
    return torch.stack([flat * azimuth.cos(), flat * azimuth.sin(), rise], dim=1)


def _warmth(amount: Tensor) -> Tensor:
    """Colour of light from cold (negative) to warm (positive), [B] -> [B, 3], mean about 1."""
    amount = amount.clamp(-0.7, 0.9)
    return torch.stack([1 + 0.45 * amount, 1 + 0.05 * amount, 1 - 0.6 * amount], dim=-1).clamp_min(0.05)


def _white_balance(light: Tensor, tint: Tensor | None, chance: Chance) -> Tensor:
    """Gains [B, 3] of a camera that corrects most of the colour of the light, then errs a little."""
    B = len(light)
    cast = light / light.mean(dim=1, keepdim=True)
    gains = cast.clamp_min(0.05) ** -chance.uniform(0.7, 1.0, B, 1)
    if tint is not None:
        wanted = (tint / tint.mean(dim=1, keepdim=True).clamp_min(1e-3)).clamp(0.6, 1.6)
        gains = gains * wanted ** chance.uniform(0.0, 0.35, B, 1)
    return gains * (chance.normal(0.0, 0.05, B, 3)).exp()
