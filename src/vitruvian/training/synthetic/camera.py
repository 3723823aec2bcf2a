"""Where people stand, and the cameras that see them.

    PeoplePlacement: person p ──yaw, offset──▶ world of image `image_index[p]` (x right, y away, z up)
    Cameras:   world ──rotation, translation──▶ camera (x right, y down, z forward) ──K──▶ pixels

The center of pixel (x, y) is the point (x, y), so the middle of a W-pixel row is at (W - 1) / 2.
Letters: P people, B images, J points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.types import SizeHW
from vitruvian.losses.pointmap import pixel_rays
from vitruvian.models.sapiens2.configuration import CANONICAL_FOCAL
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.tensor_batch import TensorBatch

_NEAREST = 0.4  # meters: no point of a person comes nearer to the camera
_FULL_BODY, _UPPER_BODY, _HEAD, _FACE = range(4)
_HEAD_POINTS = (0, 1, 2, 3, 4, 69)  # nose, eyes, ears, neck
_FACE_POINTS = _HEAD_POINTS[:5]
_UPPER_POINTS = (0, 1, 2, 3, 4, 5, 6, 9, 10)  # and shoulders, hips


def rotate(points: Tensor, rotation: Tensor) -> Tensor:
    """Rotate points [..., 3] by rotations [..., 3, 3], shapes broadcast. In full precision, whatever TF32 is set to."""
    x, y, z = points.unbind(-1)
    rows = [rotation[..., i, 0] * x + rotation[..., i, 1] * y + rotation[..., i, 2] * z for i in range(3)]
    return torch.stack(rows, dim=-1)


@dataclass(frozen=True)
class PeoplePlacement(TensorBatch):
    """Where each of P people stands, and in which image."""

    image_index: Tensor  # [P] int64
    yaw: Tensor  # [P] radians about the vertical
    offset: Tensor  # [P, 3] meters
    image_count: int  # B

    def place(self, points: Tensor) -> Tensor:
        """Move the points of each person into the world of its image, [P, J, 3] -> [P, J, 3]."""
        sin, cos = self.yaw.sin()[:, None], self.yaw.cos()[:, None]
        x, y, z = points.unbind(-1)
        rotated = torch.stack([cos * x - sin * y, sin * x + cos * y, z], dim=-1)  # [P, J, 3]
        return rotated + self.offset[:, None]


@dataclass(frozen=True)
class Cameras(TensorBatch):
    """B pinhole cameras for images of one size."""

    intrinsics: Tensor  # [B, 3, 3] pixels
    rotation: Tensor  # [B, 3, 3] world to camera
    translation: Tensor  # [B, 3] meters, in camera axes
    size_hw: SizeHW

    @property
    def focal(self) -> Tensor:
        """Focal length in pixels, [B]."""
        return self.intrinsics[:, 0, 0]

    @property
    def position(self) -> Tensor:
        """Positions in the world, [B, 3]."""
        return -rotate(self.translation, self.rotation.transpose(1, 2))

    @property
    def scale(self) -> Tensor:
        """Canonical focal length over the actual one, [B, 1]."""
        return CANONICAL_FOCAL * self.size_hw[0] / self.focal[:, None]

    def to_camera(self, points: Tensor, image_index: Tensor) -> Tensor:
        """World to camera axes, [P, J, 3] and image_index [P] -> [P, J, 3]."""
        return rotate(points, self.rotation[image_index][:, None]) + self.translation[image_index][:, None]

    def project(self, points: Tensor, image_index: Tensor, *, samples: int = 1) -> Tensor:
        """Camera points to x, y in samples (`samples` per pixel side) and depth, [P, J, 3] -> [P, J, 3]."""
        K = self.intrinsics[image_index][:, None]  # [P, 1, 3, 3]
        depth = points[..., 2]
        safe = torch.where(depth.abs() < 1e-6, 1e-6, depth)
        x = K[..., 0, 0] * points[..., 0] / safe + K[..., 0, 2]
        y = K[..., 1, 1] * points[..., 1] / safe + K[..., 1, 2]
        return torch.stack([(x + 0.5) * samples - 0.5, (y + 0.5) * samples - 0.5, depth], dim=-1)  # [P, J, 3]

    def pixel_rays(self) -> Tensor:
        """World directions through the pixel centers, with depth 1 along the camera's axis: [B, H·W, 3]."""
        H, W = self.size_hw
        ones = torch.ones(len(self), H, W, device=self.intrinsics.device)
        rays = points_from_depth(ones, self.intrinsics).flatten(2).transpose(1, 2)  # [B, H·W, 3]
        return rotate(rays, self.rotation.transpose(1, 2)[:, None])


def person_ranks(image_index: Tensor) -> Tensor:
    """Number the people of each image from 0 in order, [P] -> [P]."""
    same = image_index[:, None] == image_index[None, :]  # [P, P]
    return same.tril(diagonal=-1).sum(dim=1)


def sample_placement(people: int, image_count: int, *, rng: Rng) -> PeoplePlacement:
    """Put one person in each image and the rest beside and behind them in random images."""
    if not 1 <= image_count <= people:
        raise InputError(
            f"image_count: expected 1 to {people} for {people} people, got {image_count}. Every image needs a person."
        )
    extra = people - image_count
    image_index = torch.cat([torch.arange(image_count, device=rng.device), rng.integers(image_count, extra)])  # [P]
    rank = person_ranks(image_index)  # [P]
    side = torch.where(rank % 2 == 1, 1.0, -1.0) * rng.sign(image_count)[image_index]
    step = ((rank + 1) // 2).float()
    x = side * step * rng.uniform(0.4, 0.85, people) * (rank > 0)
    y = rng.uniform(-0.35, 1.2, people) * (rank > 0)
    yaw = torch.where(rank > 0, rng.normal(0.0, 0.9, people), torch.zeros(people, device=rng.device))
    return PeoplePlacement(image_index, yaw, torch.stack([x, y, torch.zeros_like(x)], dim=1), image_count)


def sample_cameras(
    keypoints: Tensor,
    placement: PeoplePlacement,
    *,
    stature_m: Tensor,
    size_hw: SizeHW,
    rng: Rng,
    known: Tensor,
    framing_weights: Sequence[float] = (0.42, 0.29, 0.14, 0.15),
) -> Cameras:
    """Aim a camera at the people of each image.

    `keypoints` [P, 308, 3] before placement, `stature_m` [P], `known` [P, 308] bool; `framing_weights` are for full
    body, upper body, head and shoulders, and face. Focal length, height of the camera, tilt, roll and crop are random;
    the camera then moves until the chosen part of the people fills a random share of the image.
    """
    B = placement.image_count
    device = rng.device
    framing = rng.categorical(framing_weights, B)  # [B]
    # Some bodies have a head, but no face.
    framing = torch.where(known[:, list(_FACE_POINTS)].any(), framing, framing.clamp_max(_HEAD))
    world = placement.place(keypoints)  # [P, J, 3]
    wanted = _framed_points(framing, placement, keypoints.shape[1], rng)  # [P, J]
    usable = known & torch.isfinite(world).all(dim=-1)  # [P, J]
    wanted = wanted & usable
    world = world.nan_to_num(0.0)
    pad = torch.tensor([0.13, 0.16, 0.12, 0.11], device=device)[framing][placement.image_index] * stature_m / 1.7  # [P]

    rotation = _sample_rotation(framing, rng)  # [B, 3, 3]
    rotated = rotate(world, rotation[placement.image_index][:, None])  # [P, J, 3]
    low, high = _bounds(rotated, wanted, placement)  # [B, 3]
    center = (low + high) / 2
    rotated = rotated - center[placement.image_index][:, None]

    H, W = size_hw
    low_focal = torch.tensor([0.7, 0.8, 1.0, 1.2], device=device)[framing]
    # Fields of view from 71 degrees (whole bodies) or 45 (faces) down to a third of that, most of them in between.
    focal = low_focal * H * (rng.uniform(0.0, 1.0, B, 2).mean(dim=1) * math.log(3.2)).exp()  # [B]
    fill_low = torch.tensor([0.62, 0.7, 0.38, 0.8], device=device)[framing]
    fill_high = torch.tensor([1.08, 1.25, 1.0, 1.7], device=device)[framing]
    fill = fill_low + (fill_high - fill_low) * rng.uniform(0.0, 1.0, B)
    slack = (1.1 - fill).clamp_min(0.1)[:, None] * 0.5 * torch.tensor([W, H], device=device)  # [B, 2]
    aim = rng.uniform(-1.0, 1.0, B, 2) * slack
    # A crop away from the middle of the original image moves the principal point.
    crop = rng.normal(0.0, 0.08, B, 2) * rng.bernoulli(0.3, B, 1) * torch.tensor([W, H], device=device)
    size = torch.tensor([W, H], dtype=torch.float32, device=device)
    middle = (size - 1) / 2 + crop  # [B, 2]

    t = torch.stack([torch.zeros_like(focal), torch.zeros_like(focal), 2.0 * focal / H], dim=1)  # [B, 3]
    for _ in range(6):
        points = rotated + t[placement.image_index][:, None]  # [P, J, 3]
        nearest, _ = _bounds(points, usable, placement)
        push = (_NEAREST - nearest[:, 2] + pad.max()).clamp_min(0.0)
        focal = focal * (t[:, 2] + push) / t[:, 2]
        t = torch.cat([t[:, :2], (t[:, 2] + push)[:, None]], dim=1)
        depth = (points[..., 2] + push[placement.image_index][:, None]).clamp_min(0.1)
        at = points[..., :2] / depth[..., None] * focal[placement.image_index][:, None, None]  # [P, J, 2]
        margin = (pad[:, None] / depth * focal[placement.image_index][:, None])[..., None]
        low2, _ = _bounds(at - margin, wanted, placement)
        _, high2 = _bounds(at + margin, wanted, placement)
        share = ((high2 - low2) / size).amax(dim=1)  # [B]
        off = (low2 + high2) / 2 + crop - aim  # [B, 2]
        t_xy = t[:, :2] - off * (t[:, 2] / focal)[:, None]
        t = torch.cat([t_xy, (t[:, 2] * (share / fill).clamp(0.3, 3.0))[:, None]], dim=1)

    zero, one = torch.zeros_like(focal), torch.ones_like(focal)
    K = torch.stack([focal, zero, middle[:, 0], zero, focal, middle[:, 1], zero, zero, one], dim=1).view(B, 3, 3)
    return Cameras(K, rotation, t - center, size_hw)


def _framed_points(framing: Tensor, placement: PeoplePlacement, joints: int, rng: Rng) -> Tensor:
    """Return which keypoints the image is to contain, [P, J] bool."""
    table = torch.zeros(4, joints, dtype=torch.bool, device=rng.device)
    table[_FULL_BODY] = True
    for kind, points in ((_UPPER_BODY, _UPPER_POINTS), (_HEAD, _HEAD_POINTS), (_FACE, _FACE_POINTS)):
        table[kind, list(points)] = True
    # The first person of an image is its subject; half of the images frame the others as well.
    people = torch.arange(len(placement), device=rng.device)
    subject = torch.full((placement.image_count,), len(people), device=rng.device).scatter_reduce_(
        0, placement.image_index, people, "amin"
    )
    everyone = (
        rng.bernoulli(0.5, placement.image_count)[placement.image_index] & (framing < _HEAD)[placement.image_index]
    )
    framed = everyone | (subject[placement.image_index] == people)  # [P]
    return table[framing[placement.image_index]] & framed[:, None]


def _sample_rotation(framing: Tensor, rng: Rng) -> Tensor:
    """Draw world-to-camera rotations, [B, 3, 3]: azimuth, then elevation, then roll."""
    B = len(framing)
    azimuth = torch.where(rng.bernoulli(0.55, B), rng.normal(0.0, 0.6, B), rng.uniform(-math.pi, math.pi, B))
    azimuth = azimuth * torch.tensor([1.0, 1.0, 0.8, 0.5], device=rng.device)[framing]
    elevation = torch.where(rng.bernoulli(0.8, B), rng.normal(0.06, 0.14, B), rng.uniform(-0.5, 0.9, B))
    roll = torch.where(rng.bernoulli(0.85, B), rng.normal(0.0, 0.05, B), rng.uniform(-0.6, 0.6, B))
    zero, one = torch.zeros(B, device=rng.device), torch.ones(B, device=rng.device)
    ca, sa, ce, se, cr, sr = azimuth.cos(), azimuth.sin(), elevation.cos(), elevation.sin(), roll.cos(), roll.sin()
    heading = torch.stack([ca, -sa, zero, sa, ca, zero, zero, zero, one], dim=1).view(B, 3, 3)
    tilt = torch.stack([one, zero, zero, zero, -se, -ce, zero, ce, -se], dim=1).view(B, 3, 3)
    rolled = torch.stack([cr, -sr, zero, sr, cr, zero, zero, zero, one], dim=1).view(B, 3, 3)
    return (rolled.double() @ tilt.double() @ heading.double()).float()


def _bounds(points: Tensor, mask: Tensor, placement: PeoplePlacement) -> tuple[Tensor, Tensor]:
    """Lowest and highest corner of the masked points of each image_index, [P, J, D] -> two [B, D]."""
    B, D = placement.image_count, points.shape[-1]
    low = torch.where(mask[..., None], points, math.inf).amin(dim=1)  # [P, D]
    high = torch.where(mask[..., None], points, -math.inf).amax(dim=1)  # [P, D]
    where = placement.image_index[:, None].expand(-1, D)
    start = torch.full((B, D), math.inf, device=points.device)
    lowest = start.scatter_reduce(0, where, low, "amin")
    highest = (-start).scatter_reduce(0, where, high, "amax")
    empty = lowest > highest
    return torch.where(empty, 0.0, lowest), torch.where(empty, 0.0, highest)


def points_from_depth(depth: Tensor, intrinsics: Tensor) -> Tensor:
    """Unproject depth: [B, H, W] and [B, 3, 3] -> points [B, 3, H, W], zero where depth is zero."""
    depth = depth[:, None]  # [B, 1, H, W]
    rays_xy = pixel_rays(intrinsics, size_hw=(depth.shape[2], depth.shape[3]))  # [B, 2, H, W]
    return torch.cat([rays_xy * depth, depth], dim=1)  # [B, 3, H, W]
