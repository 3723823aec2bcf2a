"""Backgrounds: crops of photos, blurred panoramas, and procedural backdrops and rooms."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.images.srgb import linear_to_srgb
from vitruvian.images.types import SizeHW
from vitruvian.training.synthetic.asset_pack import Scenery
from vitruvian.training.synthetic.camera import Cameras
from vitruvian.training.synthetic.camera_effects import defocus, sample_grading
from vitruvian.training.synthetic.lighting import sample_environment
from vitruvian.training.synthetic.rng import Rng


def sample_backgrounds(scenery: Scenery, cameras: Cameras, *, rng: Rng) -> Tensor:
    """Draw one background for each camera, sRGB [B, 3, H, W]."""
    H, W = cameras.size_hw
    B = len(cameras)
    has_photos, has_probes = len(scenery.backgrounds) > 0, len(scenery.environments) > 0
    draw: list[tuple[float, Callable[[Cameras], Tensor]]] = [  # probabilities and kinds
        (0.62 * has_photos, lambda some: photo_crops(scenery.backgrounds, len(some), (H, W), rng=rng)),
        (0.08 * has_probes, lambda some: _panoramas(scenery.environments, some, rng)),
        (0.14, lambda some: _backdrops(len(some), (H, W), rng)),
        (0.16, lambda some: _rooms(len(some), (H, W), rng)),
    ]
    kinds = rng.categorical([weight for weight, _ in draw], B)  # [B]
    images = torch.zeros(B, 3, H, W, device=rng.device)
    for number, (_, kind) in enumerate(draw):
        chosen = (kinds == number).nonzero()[:, 0]  # [b]
        if len(chosen):
            images[chosen] = kind(cameras.select(chosen))
    strength = rng.categorical((0.35, 0.4, 0.25), B)
    reach = torch.tensor([0.0015, 0.008, 0.045], device=rng.device)[strength] * H
    images = defocus(images, reach * rng.uniform(0.3, 1.0, B))
    return sample_grading(B, rng=rng)(images * rng.log_uniform(0.75, 1.2, B, 1, 1, 1))


def photo_crops(
    photos: Tensor, count: int, size_hw: SizeHW, *, rng: Rng, zoom: tuple[float, float] = (0.6, 1.0)
) -> Tensor:
    """Crop square photos [G, S, S, 3] uint8 at random, mirrored and slightly rotated: [count, 3, H, W] sRGB.

    The long side of a crop is a share of the photo's side, drawn from `zoom`.
    """
    H, W = size_hw
    chosen = photos[rng.integers(len(photos), count).to(photos.device)].to(rng.device)
    images = chosen.permute(0, 3, 1, 2).float() / 255.0  # [B, 3, S, S]
    largest = min(1.0, W / H), min(1.0, H / W)  # width, height of the crop as a share of the square
    share = rng.uniform(*zoom, count)
    lean = rng.normal(0.0, 0.04, count)
    mirror = torch.where(rng.bernoulli(0.5, count), -1.0, 1.0)
    half_w, half_h = share * largest[0], share * largest[1]
    shift_x = rng.uniform(-1.0, 1.0, count) * (1 - half_w)
    shift_y = rng.uniform(-1.0, 1.0, count) * (1 - half_h)
    cos, sin = lean.cos(), lean.sin()
    theta = [mirror * cos * half_w, -sin * half_h, shift_x, mirror * sin * half_w, cos * half_h, shift_y]
    grid = F.affine_grid(torch.stack(theta, dim=1).view(count, 2, 3), [count, 3, H, W], align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def _panoramas(environments: Tensor, cameras: Cameras, rng: Rng) -> Tensor:
    """Render the view of each camera into a light probe, exposed for its middle tones."""
    B, (H, W) = len(cameras), cameras.size_hw
    maps = environments[rng.integers(len(environments), B).to(environments.device)].to(rng.device)
    rays = cameras.pixel_rays()  # [B, H·W, 3]
    angle = rng.uniform(0.0, 2 * math.pi, B, 1)
    x, y, z = F.normalize(rays, dim=-1).unbind(-1)
    rotated = torch.stack([angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y, z], dim=-1)
    image_index = torch.arange(B, device=maps.device).repeat_interleave(H * W)
    radiance = (
        sample_environment(maps, rotated.flatten(0, 1), image_index).view(B, H, W, 3).permute(0, 3, 1, 2)
    )  # [B, 3, H, W]
    exposure = 0.2 / radiance.mean(dim=1).flatten(1).median(dim=1).values.clamp_min(1e-3)
    exposed = radiance * exposure[:, None, None, None]
    return linear_to_srgb((exposed / (1 + 0.5 * exposed)).clamp(0.0, 1.0))


def _grid(size_hw: SizeHW, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return x and y [1, 1, H, W]; y runs from -1 to 1, x in the same unit."""
    H, W = size_hw
    y = (torch.arange(H, device=device) + 0.5) / H * 2 - 1
    x = ((torch.arange(W, device=device) + 0.5) / W * 2 - 1) * (W / H)
    return x.view(1, 1, 1, W), y.view(1, 1, H, 1)


def _colors(B: int, rng: Rng, *, gray: float = 0.6) -> Tensor:
    """Draw colors [B, 3, 1, 1], with probability `gray` of low saturation."""
    level, color = rng.uniform(0.05, 0.95, B, 1), rng.uniform(0.0, 1.0, B, 3)
    plain = (level + 0.12 * (color - 0.5)).clamp(0.0, 1.0)
    color = color + (color.mean(dim=1, keepdim=True) - color) * rng.uniform(0.1, 0.8, B, 1)
    return torch.where(rng.bernoulli(gray, B, 1), plain, color)[:, :, None, None]


def _backdrops(B: int, size_hw: SizeHW, rng: Rng) -> Tensor:
    """Draw studio backdrops: two similar colors in a linear or radial gradient."""
    x, y = _grid(size_hw, rng.device)
    angle = rng.uniform(0.0, 2 * math.pi, B, 1, 1, 1)
    straight = 0.5 + 0.4 * (x * angle.cos() + y * angle.sin())
    center_x, center_y = rng.normal(0.0, 0.4, B, 1, 1, 1), rng.normal(0.0, 0.4, B, 1, 1, 1)
    round_ = torch.hypot(x - center_x, y - center_y) / rng.uniform(0.8, 2.5, B, 1, 1, 1)
    t = torch.where(rng.bernoulli(0.5, B, 1, 1, 1), straight, round_).clamp(0.0, 1.0)
    first = _colors(B, rng)
    second = (first * rng.uniform(0.3, 1.3, B, 1, 1, 1) + rng.normal(0.0, 0.05, B, 3, 1, 1)).clamp(0.0, 1.0)
    return first + (second - first) * t


def colored_noise(B: int, size_hw: SizeHW, *, rng: Rng) -> Tensor:
    """Draw colored noise of several octaves, [B, 3, H, W] in 0..1."""
    H, W = size_hw
    total = torch.zeros(B, 3, H, W, device=rng.device)
    fade = rng.uniform(0.35, 0.9, B, 1, 1, 1)
    weight = torch.ones(B, 1, 1, 1, device=rng.device)
    for octave in range(6):
        h, w = min(3 * 2**octave, H), min(3 * 2**octave, W)
        gray = rng.uniform_field(B, 1, h, w) - 0.5
        color = (rng.uniform_field(B, 3, h, w) - 0.5) * 0.35
        total = total + weight * F.interpolate(gray + color, size=size_hw, mode="bicubic", align_corners=False)
        weight = weight * fade
    return (_colors(B, rng) + total * rng.uniform(0.1, 0.6, B, 1, 1, 1)).clamp(0.0, 1.0)


def soft_shape(
    B: int, size_hw: SizeHW, *, rng: Rng, radius: tuple[float, float] = (0.04, 0.6), upright: bool = False
) -> Tensor:
    """Draw the coverage [B, 1, H, W] of one random box or ellipse per image, `radius` in half heights of the image."""
    x, y = _grid(size_hw, rng.device)
    aspect = size_hw[1] / size_hw[0]
    x, y = x - rng.uniform(-aspect, aspect, B, 1, 1, 1), y - rng.uniform(-1.0, 1.0, B, 1, 1, 1)
    angle = rng.uniform(-math.pi, math.pi, B, 1, 1, 1) * (0.0 if upright else 1.0)
    u, v = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    half_u, half_v = rng.log_uniform(*radius, B, 1, 1, 1), rng.log_uniform(*radius, B, 1, 1, 1)
    box = torch.maximum(u.abs() - half_u, v.abs() - half_v)
    ellipse = (torch.hypot(u / half_u, v / half_v) - 1) * torch.minimum(half_u, half_v)
    distance = torch.where(rng.bernoulli(0.3 if upright else 0.5, B, 1, 1, 1), ellipse, box)
    return (0.5 - distance * size_hw[0] / 2 / rng.log_uniform(1.0, 6.0, B, 1, 1, 1)).clamp(0.0, 1.0)


def _rooms(B: int, size_hw: SizeHW, rng: Rng) -> Tensor:
    """Draw a wall with frames and windows, a floor of boards or tiles, sometimes a second wall."""
    x, y = _grid(size_hw, rng.device)
    wall = _backdrops(B, size_hw, rng)
    for _ in range(5):
        cover = soft_shape(B, size_hw, rng=rng, upright=True) * rng.bernoulli(0.6, B, 1, 1, 1)
        wall = wall + cover * (_backdrops(B, size_hw, rng) - wall)
    corner = rng.uniform(-0.8, 0.8, B, 1, 1, 1)
    second = wall * rng.uniform(0.5, 0.95, B, 1, 1, 1)
    wall = torch.where((x > corner) & rng.bernoulli(0.5, B, 1, 1, 1), second, wall)
    line = rng.uniform(-0.1, 0.9, B, 1, 1, 1) + rng.normal(0.0, 0.15, B, 1, 1, 1) * x
    depth = 1.0 / (y - line + 0.25).clamp_min(0.05)
    boards = torch.sin(x * depth * rng.log_uniform(4.0, 20.0, B, 1, 1, 1)) * torch.where(
        rng.bernoulli(0.5, B, 1, 1, 1), torch.sin(depth * rng.log_uniform(4.0, 20.0, B, 1, 1, 1)), 1.0
    )
    floor = _colors(B, rng, gray=0.7) * (1 + rng.uniform(0.0, 0.25, B, 1, 1, 1) * boards.sign())
    floor = floor * (1 + 0.2 * (y - line))
    floor = floor + 0.06 * (colored_noise(B, size_hw, rng=rng) - 0.5)
    return torch.where(y > line, floor, wall).clamp(0.0, 1.0)
