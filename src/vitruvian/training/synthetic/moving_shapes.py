"""Clips of drawn shapes that move over a plain background and cross each other: data for tests of video models."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_CORNERS = (0, 3, 4, 6)  # of shapes; 0 for a circle
_COLORS = ((0.9, 0.15, 0.1), (0.1, 0.7, 0.2), (0.15, 0.25, 0.95), (0.95, 0.85, 0.1))  # of shapes
_BACKGROUND = 0.45


class Clip(NamedTuple):
    """A clip of T frames with O objects.

    Attributes:
        frames: RGB values from 0 to 1 [T, 3, H, W].
        masks: The visible pixels of each object, bool [T, O, H, W].
    """

    frames: Tensor
    masks: Tensor


def draw_clip(generator: torch.Generator, *, size_hw: tuple[int, int], length: int = 8, objects: int = 2) -> Clip:
    """Draw a clip in which all shapes meet near the center halfway, later objects in front of earlier ones.

    Args:
        generator: Source of random numbers, on the CPU.
        size_hw: Height and width of frames.
        length: T.
        objects: O, at most 4.
    """
    height, width = size_hw
    side = min(size_hw)
    colors = _colors(generator, objects)
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    slope = _uniform(generator, 3, -0.15, 0.15)
    shade = (x / width - 0.5)[None] * slope[:, None, None]  # [3, H, W]
    background = _BACKGROUND + shade
    frames = background.expand(length, -1, -1, -1).clone()
    masks = torch.zeros(length, objects, height, width, dtype=torch.bool)
    meeting = torch.tensor([width / 2, height / 2]) + _uniform(generator, 2, -0.08, 0.08) * side
    base = float(_uniform(generator, 1, 0, 2 * math.pi))  # directions differ, so that shapes part again
    for number in range(objects):
        angle = base + number * math.pi * float(_uniform(generator, 1, 0.4, 0.7))
        distance = float(_uniform(generator, 1, 0.28, 0.34)) * side
        step = torch.tensor([math.cos(angle), math.sin(angle)]) * distance
        corners = _CORNERS[int(torch.randint(len(_CORNERS), (1,), generator=generator))]
        radius = float(_uniform(generator, 1, 0.15, 0.22)) * side
        turn = _uniform(generator, 2, -math.pi, math.pi)
        for frame in range(length):
            progress = 2 * frame / max(1, length - 1) - 1  # from -1 to 1
            center = meeting + step * progress
            rotation = float(turn[0]) + float(turn[1]) * 0.3 * progress
            inside = _inside(x - center[0], y - center[1], corners=corners, radius=radius, rotation=rotation)
            frames[frame] = torch.where(inside, colors[number][:, None, None], frames[frame])
            masks[frame] &= ~inside
            masks[frame, number] = inside
    noise = torch.randn(frames.shape, generator=generator) * 0.02
    return Clip((frames + noise).clamp(0, 1), masks)


def _inside(x: Tensor, y: Tensor, *, corners: int, radius: float, rotation: float) -> Tensor:
    """Tell which pixels lie in a regular polygon, or in a circle, around the origin [H, W]."""
    distance = (x * x + y * y).sqrt()
    if corners == 0:
        return distance <= radius * 0.9
    sector = 2 * math.pi / corners
    angle = (torch.atan2(y, x) - rotation) % sector - sector / 2
    return distance * angle.cos() <= radius * math.cos(math.pi / corners)


def _colors(generator: torch.Generator, count: int) -> list[Tensor]:
    """Choose different colors [3], with small changes."""
    order = torch.randperm(len(_COLORS), generator=generator)[:count]
    return [torch.tensor(_COLORS[index]) + _uniform(generator, 3, -0.06, 0.06) for index in order.tolist()]


def _uniform(generator: torch.Generator, count: int, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=generator)
