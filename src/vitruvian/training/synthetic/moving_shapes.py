"""Clips of drawn shapes that move over a background and cross each other: data for small video models and tests.

    shapes: outline (polygon, ellipse, star, blob), texture, path, rotation, depth ─┐
    background: texture that drifts ────────────────────────────────────────────────┴─▶ frames and visible masks

Everything is a function of pixel coordinates, so all clips of a batch are drawn together, on any device.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vitruvian.images.types import SizeHW

_WAVES = 3  # of a texture
_HARMONICS = 5  # of the outline of a blob
_EDGE = 0.35  # width of the blended border of a shape in pixels, on either side
_NOISE = 0.02


class Clips(NamedTuple):
    """B clips of T frames with O objects.

    Attributes:
        frames: RGB values from 0 to 1 [B, T, 3, H, W].
        masks: The visible pixels of each object, bool [B, T, O, H, W].
    """

    frames: Tensor
    masks: Tensor


def draw_clips(
    generator: torch.Generator,
    *,
    count: int,
    size_hw: SizeHW,
    length: int = 8,
    objects: int = 2,
    saturation: tuple[float, float] = (0.25, 0.7),
) -> Clips:
    """Draw clips in which shapes start apart, meet near the center about halfway and part again.

    All objects are visible in the first frame. Later ones may be hidden by others for some frames.

    Args:
        generator: Source of random numbers; its device is that of the clips.
        count: B.
        size_hw: Height and width of frames.
        length: T.
        objects: O.
        saturation: Lowest and highest saturation of shapes, from 0 to 1. Below 0.5 some look like the background.
    """
    side = min(size_hw)
    random = _Random(generator, (count, objects))
    time = torch.linspace(-1, 1, length, device=generator.device)  # [T]
    grid = _grid(size_hw, generator.device)  # [2, H, W]
    center = _paths(random, time) * side + grid.new_tensor(size_hw[::-1]) / 2  # [B, O, T, 2]
    turn = random.uniform(-math.pi, math.pi)[..., None] + random.uniform(-1.2, 1.2)[..., None] * time  # [B, O, T]
    growth = 1 + random.uniform(-0.15, 0.15)[..., None] * time
    radius = random.uniform(0.14, 0.23)[..., None] * side * growth  # [B, O, T]
    local = _rotate(grid - center[..., None, None], turn)  # [B, O, T, 2, H, W]
    squeeze = random.uniform(0.7, 1.0)[..., None, None, None]  # of one axis
    x, y = local[:, :, :, 0], local[:, :, :, 1] / squeeze
    distance = (x.square() + y.square()).sqrt()  # [B, O, T, H, W]
    outline = _outline(random, torch.atan2(y, x))  # relative to the radius
    inside = radius[..., None, None] * outline - distance  # pixels
    coordinates = local / side
    colors = _texture(random, coordinates, base=_spread_colors(random, saturation), contrast=random.uniform(0.0, 0.25))
    background = _background(generator, count, grid / side, time)  # [B, T, 3, H, W]
    return _compose(background, colors, inside, generator)


class _Random:
    """Random numbers of the shapes [B, O]."""

    def __init__(self, generator: torch.Generator, shape: tuple[int, ...]) -> None:
        self.generator, self.shape = generator, shape

    def uniform(self, low: float, high: float, *extra: int) -> Tensor:
        """Draw [B, O, *extra] between two numbers."""
        drawn = torch.rand(*self.shape, *extra, generator=self.generator, device=self.generator.device)
        return low + (high - low) * drawn

    def shared(self, low: float, high: float, *extra: int) -> Tensor:
        """Draw [B, 1, *extra]: the same for all shapes of a clip."""
        return _Random(self.generator, (self.shape[0], 1)).uniform(low, high, *extra)


def _grid(size_hw: SizeHW, device: torch.device) -> Tensor:
    """x and y of pixel centers [2, H, W]."""
    y, x = torch.meshgrid(*(torch.arange(side, device=device) + 0.5 for side in size_hw), indexing="ij")
    return torch.stack((x, y))


def _paths(random: _Random, time: Tensor) -> Tensor:
    """Centers of shapes relative to the center of the frame, in sides of it [B, O, T, 2]."""
    count = random.shape[1]
    number = torch.arange(count, device=time.device)
    sector = math.pi / max(2, count)  # shapes come from different sides, and leave on others
    angle = random.shared(0, 2 * math.pi) + (2 * number + random.uniform(-0.4, 0.4)) * sector  # [B, O]
    direction = torch.stack((angle.cos(), angle.sin()), dim=-1)[:, :, None]  # [B, O, 1, 2]
    across = torch.stack((-angle.sin(), angle.cos()), dim=-1)[:, :, None]
    speed = random.uniform(0.26, 0.36)[..., None, None]
    progress = -(time - random.uniform(-0.15, 0.15)[..., None])[..., None]  # [B, O, T, 1], from about 1 to -1
    bend = random.uniform(-0.12, 0.12)[..., None, None] * (1 - progress.square())
    meeting = random.shared(-0.06, 0.06, 1, 2)
    # Opposite paths would swap places along one line: a sideways drift lets the shapes part.
    drift = random.uniform(-0.1, 0.1)[..., None, None] * (1 - progress)
    return meeting + speed * progress * direction + (bend + drift) * across


def _outline(random: _Random, angle: Tensor) -> Tensor:
    """Distance of the outline from the center by angle [B, O, T, H, W]: a polygon, an ellipse, a star or a blob."""
    kind = random.uniform(0, 1)[..., None, None, None]
    corners = random.uniform(3, 7).floor()[..., None, None, None]
    sector = 2 * math.pi / corners
    polygon = (math.pi / corners).cos() / ((angle % sector) - sector / 2).cos()
    star = 0.82 + 0.18 * (angle * corners).cos()
    phase = random.uniform(0, 2 * math.pi, _HARMONICS)
    size = random.uniform(0, 0.22, _HARMONICS) / torch.arange(1, _HARMONICS + 1, device=angle.device)
    blob = torch.full_like(angle, 0.85)
    for k in range(_HARMONICS):
        blob += size[..., k, None, None, None] * ((k + 1) * angle + phase[..., k, None, None, None]).cos()
    ellipse = torch.full_like(angle, 0.9)
    return torch.where(kind < 0.35, polygon, torch.where(kind < 0.55, ellipse, torch.where(kind < 0.7, star, blob)))


def _spread_colors(random: _Random, saturation: tuple[float, float]) -> Tensor:
    """Colors of shapes, different from each other [B, O, 3]: hues spread around the circle."""
    count = random.shape[1]
    hue = (
        random.shared(0, 1) + (torch.arange(count, device=random.generator.device) + random.uniform(-0.2, 0.2)) / count
    )
    channel = torch.arange(3, device=hue.device) / 3
    wheel = 0.5 + 0.5 * (2 * math.pi * (hue[..., None] - channel)).cos()  # [B, O, 3]
    return random.uniform(*saturation)[..., None] * (wheel - 0.5) + random.uniform(0.3, 0.7)[..., None]


def _texture(random: _Random, coordinates: Tensor, *, base: Tensor, contrast: Tensor) -> Tensor:
    """A color with waves over coordinates [B, O, T, 2, H, W]: [B, O, T, 3, H, W]."""
    color = base[:, :, None, :, None, None].expand(-1, -1, coordinates.shape[2], -1, *coordinates.shape[-2:])
    for _ in range(_WAVES):
        angle = random.uniform(0, math.pi)
        frequency = random.uniform(2, 30)
        wave_xy = torch.stack((angle.cos(), angle.sin()), dim=-1) * frequency[..., None]  # [B, O, 2]
        phase = (coordinates * wave_xy[:, :, None, :, None, None]).sum(3) + random.uniform(0, 6.3)[
            ..., None, None, None
        ]
        weight = random.uniform(-1, 1, 3) * contrast[..., None]  # [B, O, 3]
        color = color + phase.sin()[:, :, :, None] * weight[:, :, None, :, None, None]
    return color


def _background(generator: torch.Generator, count: int, grid: Tensor, time: Tensor) -> Tensor:
    """A texture that drifts [B, T, 3, H, W]."""
    random = _Random(generator, (count, 1))
    drift = random.uniform(-0.15, 0.15, 2)[:, :, None] * time[:, None]  # [B, 1, T, 2]
    coordinates = grid + drift[..., None, None]  # [B, 1, T, 2, H, W]
    gray = random.uniform(0.2, 0.8)[..., None]
    base = (gray + random.uniform(-0.12, 0.12, 3)).clamp(0, 1)
    return _texture(random, coordinates, base=base, contrast=random.uniform(0.0, 0.15))[:, 0]


def _rotate(offset: Tensor, turn: Tensor) -> Tensor:
    """Rotate offsets [B, O, T, 2, H, W] by angles [B, O, T]."""
    cos, sin = turn.cos()[..., None, None], turn.sin()[..., None, None]
    x, y = offset.unbind(3)
    return torch.stack((cos * x + sin * y, cos * y - sin * x), dim=3)


def _compose(background: Tensor, colors: Tensor, inside: Tensor, generator: torch.Generator) -> Clips:
    """Draw shapes over a background, the last in front.

    Args:
        background: [B, T, 3, H, W].
        colors: Of shapes [B, O, T, 3, H, W].
        inside: Distance from the outline in pixels, positive inside [B, O, T, H, W].
        generator: Of the noise.
    """
    frames, masks = background, []
    opacity = ((inside + _EDGE) / (2 * _EDGE)).clamp(0, 1)[:, :, :, None]  # [B, O, T, 1, H, W]
    covered = inside > 0
    for number in range(colors.shape[1]):
        frames = torch.lerp(frames, colors[:, number], opacity[:, number])
        masks.append(covered[:, number] & ~covered[:, number + 1 :].any(1))
    noise = torch.randn(frames.shape, generator=generator, device=frames.device) * _NOISE
    return Clips((frames + noise).clamp(0, 1), torch.stack(masks, dim=2))
