"""Textures: how a pack stores them, their gray copies, procedural ones, and bilinear lookup in a mipmap pyramid."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitruvian.errors import CheckpointError
from vitruvian.images.srgb import linear_to_srgb, srgb_to_linear

_TEXTURE_SIZE = 512
GRAY_MEAN = 0.62  # mean linear value of a gray copy: a tint of color / GRAY_MEAN gives that color on average
_MIN_SIDE = 16


# ------------------------------------------------------------------------------------------------------- mipmaps


@dataclass(frozen=True)
class TexturePyramid:
    """T square textures at L sizes, each half the one before, in one array of X texels."""

    texels: Tensor  # [X, 4] uint8, sRGB + alpha
    alpha: Tensor  # [X] uint8, a contiguous copy of the last column
    starts: Tensor  # [L] int64: first texel of a level; texture t begins side² · t later
    sides: Tensor  # [L] int64

    def base(self, texture: Tensor, level: Tensor) -> Tensor:
        """Return the first texel of textures [N] at levels [N], int64."""
        return self.starts[level] + texture * self.sides[level] ** 2


def build_pyramid(textures: Tensor) -> TexturePyramid:
    """Halve textures [T, S, S, 4] uint8 repeatedly. Colors are weighted by alpha, so that holes do not bleed in."""
    device = textures.device
    levels = [textures]
    while levels[-1].shape[1] > _MIN_SIDE:
        levels.append(torch.cat([_halve_textures(part) for part in torch.split(levels[-1], 16)]))
    counts = torch.tensor([level[..., 0].numel() for level in levels])
    texels = torch.cat([level.reshape(-1, 4) for level in levels])  # [X, 4]
    sides = torch.tensor([level.shape[1] for level in levels], device=device)
    return TexturePyramid(texels, texels[:, 3].contiguous(), (counts.cumsum(0) - counts).to(device), sides)


def _halve_textures(textures: Tensor) -> Tensor:
    """[T, S, S, 4] uint8 -> [T, S/2, S/2, 4] uint8."""
    values = textures.permute(0, 3, 1, 2).float()  # [T, 4, S, S]
    alpha = F.avg_pool2d(values[:, 3:], 2)
    weighted = F.avg_pool2d(values[:, :3] * (values[:, 3:] + 0.5), 2) / (alpha + 0.5)
    return torch.cat([weighted, alpha], dim=1).round().clamp(0, 255).byte().permute(0, 2, 3, 1)  # [T, S/2, S/2, 4]


def face_levels(screen: Tensor, faces: Tensor, face_uv: Tensor, *, side: int, levels: int) -> Tensor:
    """Return the pyramid level at which a texel is about as large as a sample, for each face: [P, F] int64."""
    P, V, _ = screen.shape
    corner = (faces + torch.arange(P, device=faces.device)[:, None, None] * V).flatten(0, 1)  # [P·F, 3]
    xy = screen.flatten(0, 1)[:, :2][corner]  # [P·F, 3, 2]
    ratio = _doubled_area(face_uv.flatten(0, 1)) * side**2 / _doubled_area(xy).clamp_min(1e-3)  # [P·F]
    level = (0.5 * ratio.clamp_min(1e-6).log2() - 0.2).round().clamp(0, levels - 1)
    return level.nan_to_num(0.0).long().view(faces.shape[:2])


def _doubled_area(corners: Tensor) -> Tensor:
    """Twice the area of triangles, [N, 3, 2] -> [N]."""
    a, b = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    return (a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]).abs()


def bilinear_lookup(table: Tensor, base: Tensor, size_hw: tuple[Tensor | int, Tensor | int], yx: Tensor) -> Tensor:
    """Interpolate images that lie one after the other in `table` [X, C]; they repeat in both directions.

    `base` [N] is the first row of an image in the table, `yx` [N, 2] a position in its pixels: [N, C].
    """
    H, W = size_hw
    corner = yx.floor()
    down, across = torch.split(yx - corner, 1, dim=1)  # [N, 1] each
    top, left = corner.long().unbind(1)
    (a, b), (c, d) = (
        [table[base + (top + dy) % H * W + (left + dx) % W].float() for dx in (0, 1)] for dy in (0, 1)
    )  # [N, C] each
    upper, lower = a + (b - a) * across, c + (d - c) * across
    return torch.lerp(upper, lower, down)


def sample_texture(pyramid: TexturePyramid, texture: Tensor, level: Tensor, uv: Tensor) -> Tensor:
    """Look textures up, bilinear and repeating: texture [N], level [N], uv [N, 2] (v upwards) -> RGBA [N, 4] 0..1."""
    side = pyramid.sides[level]  # [N]
    u, v = (uv - uv.floor()).unbind(1)
    position = torch.stack([1.0 - v, u], dim=1) * side[:, None] - 0.5  # [N, 2]
    return bilinear_lookup(pyramid.texels, pyramid.base(texture, level), (side, side), position) / 255.0


# --------------------------------------------------------------------------------------- stored and procedural ones


def decode_textures(rgb: Sequence[bytes], alpha: Sequence[bytes]) -> Tensor:
    """Decode JPEG or PNG files as [T, 512, 512, 4] uint8; without bytes of alpha a texture is opaque."""
    out = np.full((len(rgb), _TEXTURE_SIZE, _TEXTURE_SIZE, 4), 255, np.uint8)
    for index, (color, holes) in enumerate(zip(rgb, alpha, strict=True)):
        out[index, ..., :3] = _decode(color, "RGB")
        if holes:
            out[index, ..., 3] = _decode(holes, "L")
    return torch.from_numpy(out)


def _decode(data: bytes, mode: str) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(data)) as image:
            resized = image.convert(mode).resize((_TEXTURE_SIZE, _TEXTURE_SIZE), Image.Resampling.BICUBIC)
    except OSError as error:
        raise CheckpointError(f"pack: expected readable textures, got {error}. Build the pack again.") from error
    return np.asarray(resized)


def gray_copy(texture: Tensor) -> Tensor:
    """Remove the color of [512, 512, 4] uint8, and scale it so that its linear mean, where opaque, is GRAY_MEAN."""
    values = texture.float() / 255
    linear = srgb_to_linear(values[..., :3]) @ torch.tensor([0.2126, 0.7152, 0.0722])  # [512, 512]
    weight = values[..., 3] + 1e-3
    mean = (linear * weight).sum() / weight.sum()
    level = (linear / mean.clamp_min(1e-3)).clamp(0.15, 1 / GRAY_MEAN) * GRAY_MEAN  # contrast stays as a ratio
    level = level * GRAY_MEAN / ((level * weight).sum() / weight.sum())
    gray = linear_to_srgb(level.clamp(0, 1))[..., None].expand(-1, -1, 3)
    return (torch.cat([gray, values[..., 3:]], -1) * 255).round().byte()  # [512, 512, 4]


def _opaque(colors: Tensor) -> Tensor:
    """Add an opaque alpha to colors [..., 3] in 0..1: uint8 [..., 4]."""
    return (torch.cat([colors.clamp(0, 1), torch.ones_like(colors[..., :1])], -1) * 255).round().byte()


def procedural_fabrics() -> Tensor:
    """Draw three plain gray fabrics that tile: cotton, ribbed knit and twill. [3, 512, 512, 4] uint8."""
    generator = torch.Generator().manual_seed(7)
    y, x = torch.meshgrid(torch.arange(_TEXTURE_SIZE), torch.arange(_TEXTURE_SIZE), indexing="ij")
    turn = 2 * torch.pi / _TEXTURE_SIZE
    cotton = _tiling_noise(generator, cells=64)
    knit = torch.sin(turn * 40 * x) * 0.6 + torch.sin(turn * 80 * y + 2 * torch.sin(turn * 40 * x)) * 0.4
    twill = torch.sin(turn * 60 * (x + y)) * 0.7 + _tiling_noise(generator, cells=128)
    levels = [
        GRAY_MEAN * (1 + strength * weave + 0.06 * _tiling_noise(generator, cells=6))
        for weave, strength in ((cotton, 0.05), (knit, 0.10), (twill, 0.08))
    ]
    return _opaque(linear_to_srgb(torch.stack(levels).clamp(0, 1))[..., None].expand(-1, -1, -1, 3))


def procedural_skins() -> Tensor:
    """Draw light, medium and dark skin with faint blotches. [3, 512, 512, 4] uint8."""
    generator = torch.Generator().manual_seed(11)
    skins = []
    for color in ((0.86, 0.67, 0.57), (0.66, 0.47, 0.36), (0.36, 0.24, 0.18)):
        noise = torch.stack([_tiling_noise(generator, cells=cells) / cells**0.5 for cells in (8, 24, 96)]).sum(0)
        skins.append(torch.tensor(color) * (1 + 0.12 * noise[..., None] * torch.tensor([0.7, 1.0, 1.1])))
    return _opaque(torch.stack(skins))


def procedural_eye() -> Tensor:
    """Draw a brown eye: white, iris and pupil around the center. [512, 512, 4] uint8."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, _TEXTURE_SIZE), torch.linspace(-1, 1, _TEXTURE_SIZE), indexing="ij")
    radius = torch.hypot(x, y)[..., None]
    white, brown, black = torch.tensor([0.93, 0.91, 0.89]), torch.tensor([0.32, 0.2, 0.11]), torch.tensor([0.02] * 3)
    return _opaque(torch.where(radius < 0.07, black, torch.where(radius < 0.17, brown, white)))


def _tiling_noise(generator: torch.Generator, *, cells: int) -> Tensor:
    """Draw smooth noise of mean 0 and about unit size that repeats without a seam: [512, 512]."""
    coarse = F.pad(torch.randn(1, 1, cells, cells, generator=generator), (2, 2, 2, 2), mode="circular")
    step = _TEXTURE_SIZE // cells
    fine = F.interpolate(coarse, scale_factor=step, mode="bicubic", align_corners=False)[0, 0]
    size = step * cells
    repeats = -(-_TEXTURE_SIZE // size)
    tile = fine[2 * step : 2 * step + size, 2 * step : 2 * step + size]
    return tile.repeat(repeats, repeats)[:_TEXTURE_SIZE, :_TEXTURE_SIZE]
