"""Colours of surface points: texture pyramids, tints and procedural patterns, all for flat lists of N samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.data.synthetic.people import (
    PATTERN_CHECKS,
    PATTERN_DOTS,
    PATTERN_GRADIENT,
    PATTERN_NOISE,
    PATTERN_STRIPES,
)

SMALLEST_LEVEL = 16


@dataclass(frozen=True)
class TexturePyramid:
    """T square textures at L sizes, each half the one before, laid out one after the other. X texels."""

    texels: Tensor  # [X, 4] uint8, sRGB + alpha
    alpha: Tensor  # [X] uint8, the last column on its own
    starts: Tensor  # [L] int64: first texel of a level; texture t begins side² · t later
    sides: Tensor  # [L] int64

    def base(self, texture: Tensor, level: Tensor) -> Tensor:
        """First texel of textures [N] at levels [N], int64."""
        return self.starts[level] + texture * self.sides[level] ** 2


def build_pyramid(textures: Tensor) -> TexturePyramid:
    """Shrink [T, S, S, 4] uint8 by halves; colours are weighted by alpha, so that holes do not bleed in."""
    device = textures.device
    if not len(textures):
        # One white texture, never shown: lookups need not ask whether there are any.
        textures = torch.full((1, SMALLEST_LEVEL, SMALLEST_LEVEL, 4), 255, dtype=torch.uint8, device=device)
    levels, sides = [textures.reshape(-1, 4)], [textures.shape[1]]  # [T·S·S, 4]
    current = textures
    while current.shape[1] > SMALLEST_LEVEL:
        current = torch.cat([_halved(part) for part in torch.split(current, 16)])
        levels.append(current.reshape(-1, 4))
        sides.append(current.shape[1])
    counts = [len(level) for level in levels]
    starts = torch.tensor([sum(counts[:i]) for i in range(len(counts))], device=device)
    texels = torch.cat(levels)  # [X, 4]
    return TexturePyramid(texels, texels[:, 3].contiguous(), starts, torch.tensor(sides, device=device))


def _halved(textures: Tensor) -> Tensor:
    """[T, S, S, 4] uint8 -> [T, S/2, S/2, 4] uint8."""
    values = textures.permute(0, 3, 1, 2).float()  # [T, 4, S, S]
    alpha = F.avg_pool2d(values[:, 3:], 2)
    weighted = F.avg_pool2d(values[:, :3] * (values[:, 3:] + 0.5), 2) / (alpha + 0.5)
    return torch.cat([weighted, alpha], dim=1).round().clamp(0, 255).byte().permute(0, 2, 3, 1)  # [T, S/2, S/2, 4]


def face_levels(screen: Tensor, faces: Tensor, face_uv: Tensor, *, side: int, levels: int) -> Tensor:
    """The pyramid level at which a texel is about a sample, for each face: [P, F] int64."""
    P, V, _ = screen.shape
    corner = (faces + torch.arange(P, device=faces.device)[:, None, None] * V).flatten(0, 1)  # [P·F, 3]
    xy = screen.flatten(0, 1)[:, :2][corner]  # [P·F, 3, 2]
    ratio = _area(face_uv.flatten(0, 1)) * side**2 / _area(xy).clamp_min(1e-3)  # [P·F]
    level = (0.5 * ratio.clamp_min(1e-6).log2() - 0.2).round().clamp(0, levels - 1)
    return level.nan_to_num(0.0).long().view(faces.shape[:2])


def _area(corners: Tensor) -> Tensor:
    """Twice the area of triangles, [N, 3, 2] -> [N]."""
    a, b = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    return (a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]).abs()


def sample_texture(pyramid: TexturePyramid, texture: Tensor, level: Tensor, uv: Tensor) -> Tensor:
    """Bilinear, wrapping lookup: texture [N], level [N], uv [N, 2] (v upwards) -> sRGB + alpha [N, 4] float 0..1."""
    side = pyramid.sides[level]  # [N]
    base = pyramid.base(texture, level)
    u = (uv[:, 0] - uv[:, 0].floor()) * side - 0.5
    v = (1.0 - (uv[:, 1] - uv[:, 1].floor())) * side - 0.5
    left, top = u.floor(), v.floor()
    across, down = (u - left)[:, None], (v - top)[:, None]  # [N, 1]
    columns = [(left.long() + step) % side for step in (0, 1)]
    rows = [(top.long() + step) % side for step in (0, 1)]
    taps = [[pyramid.texels[base + row * side + column].float() for column in columns] for row in rows]  # [N, 4] each
    upper = taps[0][0] + (taps[0][1] - taps[0][0]) * across
    lower = taps[1][0] + (taps[1][1] - taps[1][0]) * across
    return (upper + (lower - upper) * down) / 255.0  # [N, 4]


def pattern_weight(pattern: Tensor, parameters: Tensor, rest: Tensor, footprint: Tensor) -> Tensor:
    """How much of the second colour a point has: pattern [N], parameters [N, 4], rest positions [N, 3] -> [N] in 0..1.

    `footprint` [N] is the size of a sample in metres: edges are softened to it, so that fine patterns do not flicker.
    """
    frequency, angle, width, phase = parameters.unbind(1)
    x, _, z = rest.unbind(1)
    u = x * angle.cos() + z * angle.sin()
    v = z * angle.cos() - x * angle.sin()
    soft = (frequency * footprint).clamp(0.03, 1.0)
    along, across = frequency * u + phase, frequency * v
    stripe_u, stripe_v = _stripe(along, width, soft), _stripe(frequency * v + phase, width, soft)
    off_u, off_v = along - along.floor() - 0.5, across - across.floor() - 0.5
    dots = ((width / 2 - torch.hypot(off_u, off_v)) / soft + 0.5).clamp(0.0, 1.0)
    noisy = pattern == PATTERN_NOISE
    speckle = torch.zeros_like(u)
    if bool(noisy.any()):
        value = value_noise(rest[noisy] * frequency[noisy, None] + phase[noisy, None])
        speckle[noisy] = ((value - 1.0 + width[noisy]) * 5.0 + 0.5).clamp(0.0, 1.0)
    weight = torch.zeros_like(u)
    for number, value in (
        (PATTERN_STRIPES, stripe_u),
        (PATTERN_CHECKS, (stripe_u + stripe_v) / 2),
        (PATTERN_DOTS, dots),
        (PATTERN_NOISE, speckle),
        (PATTERN_GRADIENT, torch.sigmoid(frequency * (z - phase))),
    ):
        weight = torch.where(pattern == number, value, weight)
    return weight


def _stripe(t: Tensor, width: Tensor, soft: Tensor) -> Tensor:
    """1 where frac(t) < width, with edges `soft` periods wide."""
    shifted = t - width / 2 + 0.5
    distance = (shifted - shifted.floor() - 0.5).abs()
    return ((width / 2 - distance) / soft + 0.5).clamp(0.0, 1.0)


def value_noise(points: Tensor) -> Tensor:
    """Smooth noise with a lattice of 1: points [N, 3] -> [N] in 0..1."""
    cell = points.floor()
    t = points - cell
    t = t * t * (3.0 - 2.0 * t)
    corner = cell.long()  # [N, 3]
    total = torch.zeros(len(points), device=points.device)
    for dx in (0, 1):
        for dy in (0, 1):
            for dz in (0, 1):
                weight = (
                    (t[:, 0] if dx else 1 - t[:, 0])
                    * (t[:, 1] if dy else 1 - t[:, 1])
                    * (t[:, 2] if dz else 1 - t[:, 2])
                )
                total = total + weight * _hashed(corner[:, 0] + dx, corner[:, 1] + dy, corner[:, 2] + dz)
    return total


def _hashed(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """A number in 0..1 for each lattice point."""
    mixed = ((x * 73856093) ^ (y * 19349663) ^ (z * 83492791)) & 0x7FFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 73244475) & 0x7FFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 73244475) & 0x7FFFFFFF
    return (mixed ^ (mixed >> 16)).float() / 2147483648.0


def srgb_to_linear(value: Tensor) -> Tensor:
    """Display values 0..1 to linear light."""
    return torch.where(value <= 0.04045, value / 12.92, ((value.clamp_min(0.0) + 0.055) / 1.055) ** 2.4)


def linear_to_srgb(value: Tensor) -> Tensor:
    """Linear light to display values."""
    return torch.where(value <= 0.0031308, value * 12.92, 1.055 * value.clamp_min(1e-8) ** (1 / 2.4) - 0.055)
