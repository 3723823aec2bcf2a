"""Where people stand and from where they are seen.

    Placement: person p ──yaw, offset──▶ world of picture `picture[p]` (x right, y away, z up)
    Cameras:   world ──rotation, translation──▶ camera (x right, y down, z forward) ──K──▶ pixels

The centre of pixel (x, y) is the point (x, y), so the middle of a W-pixel row is at (W - 1) / 2.
Letters: P people, B pictures, J points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitruvian.data.synthetic.chance import Chance
from vitruvian.errors import InputError

CANONICAL_FOCAL = 0.75  # of the picture height: 768 pixels at 1024 x 768
NEAREST = 0.4  # metres: no point of a person comes nearer to the camera
FULL_BODY, UPPER_BODY, HEAD, FACE = range(4)
HEAD_POINTS = (0, 1, 2, 3, 4, 69)  # nose, eyes, ears, neck
FACE_POINTS = HEAD_POINTS[:5]
UPPER_POINTS = (0, 1, 2, 3, 4, 5, 6, 9, 10)  # and shoulders, hips


def turn(points: Tensor, rotation: Tensor) -> Tensor:
    """Rotate points [..., 3] by rotations [..., 3, 3], shapes broadcast.

    Written out, because a matrix product may be told to use few digits (TF32), and places need them all.
    """
    x, y, z = points.unbind(-1)
    rows = [rotation[..., i, 0] * x + rotation[..., i, 1] * y + rotation[..., i, 2] * z for i in range(3)]
    return torch.stack(rows, dim=-1)


@dataclass(frozen=True)
class Placement:
    """Where each of P people stands, and in which picture."""

    picture: Tensor  # [P] int64
    yaw: Tensor  # [P] radians about the vertical
    offset: Tensor  # [P, 3] metres
    pictures: int  # B

    def place(self, points: Tensor) -> Tensor:
        """Move the points of each person into its picture's world, [P, J, 3] -> [P, J, 3]."""
        sin, cos = self.yaw.sin()[:, None], self.yaw.cos()[:, None]
        x, y, z = points.unbind(-1)
        turned = torch.stack([cos * x - sin * y, sin * x + cos * y, z], dim=-1)  # [P, J, 3]
        return turned + self.offset[:, None]

    def to(self, device: torch.device | str) -> Placement:
        """Return the same placement on `device`."""
        return Placement(self.picture.to(device), self.yaw.to(device), self.offset.to(device), self.pictures)


@dataclass(frozen=True)
class Cameras:
    """B pinhole cameras for pictures of one size."""

    intrinsics: Tensor  # [B, 3, 3] pixels
    rotation: Tensor  # [B, 3, 3] world to camera
    translation: Tensor  # [B, 3] metres, in camera axes
    size_hw: tuple[int, int]

    @property
    def focal(self) -> Tensor:
        """Focal length in pixels, [B]."""
        return self.intrinsics[:, 0, 0]

    @property
    def position(self) -> Tensor:
        """Where the cameras are in the world, [B, 3]."""
        return -turn(self.translation, self.rotation.transpose(1, 2))

    @property
    def scale(self) -> Tensor:
        """Canonical focal length over the actual one, [B, 1]."""
        return CANONICAL_FOCAL * self.size_hw[0] / self.focal[:, None]

    def to_camera(self, points: Tensor, picture: Tensor) -> Tensor:
        """World to camera axes, [P, J, 3] and picture [P] -> [P, J, 3]."""
        return turn(points, self.rotation[picture][:, None]) + self.translation[picture][:, None]

    def project(self, points: Tensor, picture: Tensor, *, samples: int = 1) -> Tensor:
        """Camera points to x, y in samples (`samples` a pixel side) and depth, [P, J, 3] -> [P, J, 3]."""
        K = self.intrinsics[picture][:, None]  # [P, 1, 3, 3]
        depth = points[..., 2]
        safe = torch.where(depth.abs() < 1e-6, 1e-6, depth)
        x = K[..., 0, 0] * points[..., 0] / safe + K[..., 0, 2]
        y = K[..., 1, 1] * points[..., 1] / safe + K[..., 1, 2]
        return torch.stack([(x + 0.5) * samples - 0.5, (y + 0.5) * samples - 0.5, depth], dim=-1)  # [P, J, 3]

    def pick(self, index: Tensor) -> Cameras:
        """The cameras of some pictures, index [b] int64."""
        return Cameras(self.intrinsics[index], self.rotation[index], self.translation[index], self.size_hw)

    def to(self, device: torch.device | str) -> Cameras:
        """Return the same cameras on `device`."""
        return Cameras(self.intrinsics.to(device), self.rotation.to(device), self.translation.to(device), self.size_hw)


def sample_placement(people: int, pictures: int, *, chance: Chance) -> Placement:
    """Put one person in each picture and the rest beside and behind them in random pictures."""
    if not 1 <= pictures <= people:
        raise InputError(
            f"pictures: expected 1 to {people} for {people} people, got {pictures}. Every picture needs a person."
        )
    extra = people - pictures
    picture = torch.cat([torch.arange(pictures, device=chance.device), chance.integers(pictures, extra)])  # [P]
    same = picture[:, None] == picture[None, :]  # [P, P]
    slot = same.tril(diagonal=-1).sum(dim=1)  # [P] how many stand there already
    side = torch.where(slot % 2 == 1, 1.0, -1.0) * torch.where(chance.flip(0.5, pictures), 1.0, -1.0)[picture]
    step = ((slot + 1) // 2).float()
    x = side * step * chance.uniform(0.4, 0.85, people) * (slot > 0)
    y = chance.uniform(-0.35, 1.2, people) * (slot > 0)
    yaw = torch.where(slot > 0, chance.normal(0.0, 0.9, people), torch.zeros(people, device=chance.device))
    return Placement(picture, yaw, torch.stack([x, y, torch.zeros_like(x)], dim=1), pictures)


def sample_cameras(
    keypoints: Tensor,
    placement: Placement,
    *,
    height: Tensor,
    size_hw: tuple[int, int],
    chance: Chance,
    known: Tensor | None = None,
    framing_weights: Sequence[float] = (0.42, 0.29, 0.14, 0.15),
) -> Cameras:
    """Aim a camera at each picture's people.

    `keypoints` [P, 308, 3] as the people hold them, `height` [P] metres, `known` [308] bool; `framing_weights` are for
    full body, upper body, head and shoulders, and face. Focal length, height of the camera, tilt, roll and crop are
    drawn at random; the camera then moves until the chosen part of the people fills the wanted share of the picture.
    """
    B, P = placement.pictures, keypoints.shape[0]
    device = chance.device
    framing = chance.choice(framing_weights, B)  # [B]
    if known is not None and len(known) > max(FACE_POINTS):  # some bodies have a head, but no face
        framing = torch.where(known[list(FACE_POINTS)].any(), framing, framing.clamp_max(HEAD))
    world = placement.place(keypoints)  # [P, J, 3]
    wanted = _framed_points(framing, placement, keypoints.shape[1], chance)  # [P, J]
    usable = torch.isfinite(world).all(dim=-1) if known is None else known & torch.isfinite(world).all(dim=-1)  # [P, J]
    wanted = wanted & usable
    world = world.nan_to_num(0.0)
    pad = torch.tensor([0.13, 0.16, 0.12, 0.11], device=device)[framing][placement.picture] * height / 1.7  # [P]

    rotation = _sample_rotation(framing, chance)  # [B, 3, 3]
    turned = turn(world, rotation[placement.picture][:, None])  # [P, J, 3]
    low, high = _bounds(turned, wanted, placement)  # [B, 3]
    centre = (low + high) / 2
    turned = turned - centre[placement.picture][:, None]

    H, W = size_hw
    low_focal = torch.tensor([0.7, 0.8, 1.0, 1.2], device=device)[framing]
    # Fields of view from 71 degrees (whole bodies) or 45 (faces) down to a third of that, most of them in between.
    focal = low_focal * H * (chance.uniform(0.0, 1.0, B, 2).mean(dim=1) * math.log(3.2)).exp()  # [B]
    fill_low = torch.tensor([0.62, 0.7, 0.38, 0.8], device=device)[framing]
    fill_high = torch.tensor([1.08, 1.25, 1.0, 1.7], device=device)[framing]
    fill = fill_low + (fill_high - fill_low) * chance.uniform(0.0, 1.0, B)
    slack = (1.1 - fill).clamp_min(0.1)[:, None] * 0.5 * torch.tensor([W, H], device=device)  # [B, 2]
    aim = chance.uniform(-1.0, 1.0, B, 2) * slack
    # A crop away from the middle of the original picture moves the principal point.
    crop = chance.normal(0.0, 0.08, B, 2) * chance.flip(0.3, B, 1) * torch.tensor([W, H], device=device)
    size = torch.tensor([W, H], dtype=torch.float32, device=device)
    middle = (size - 1) / 2 + crop  # [B, 2]

    t = torch.stack([torch.zeros_like(focal), torch.zeros_like(focal), 2.0 * focal / H], dim=1)  # [B, 3]
    for _ in range(6):
        points = turned + t[placement.picture][:, None]  # [P, J, 3]
        nearest, _ = _bounds(points, usable.expand(P, -1), placement)
        push = (NEAREST - nearest[:, 2] + pad.max()).clamp_min(0.0)
        focal = focal * (t[:, 2] + push) / t[:, 2]
        t = torch.cat([t[:, :2], (t[:, 2] + push)[:, None]], dim=1)
        depth = (points[..., 2] + push[placement.picture][:, None]).clamp_min(0.1)
        at = points[..., :2] / depth[..., None] * focal[placement.picture][:, None, None]  # [P, J, 2]
        margin = (pad[:, None] / depth * focal[placement.picture][:, None])[..., None]
        low2, _ = _bounds(at - margin, wanted, placement)
        _, high2 = _bounds(at + margin, wanted, placement)
        share = ((high2 - low2) / size).amax(dim=1)  # [B]
        off = (low2 + high2) / 2 + crop - aim  # [B, 2]
        t_xy = t[:, :2] - off * (t[:, 2] / focal)[:, None]
        t = torch.cat([t_xy, (t[:, 2] * (share / fill).clamp(0.3, 3.0))[:, None]], dim=1)

    zero, one = torch.zeros_like(focal), torch.ones_like(focal)
    K = torch.stack([focal, zero, middle[:, 0], zero, focal, middle[:, 1], zero, zero, one], dim=1).view(B, 3, 3)
    return Cameras(K, rotation, t - centre, size_hw)


def _framed_points(framing: Tensor, placement: Placement, joints: int, chance: Chance) -> Tensor:
    """Which keypoints the picture is to hold, [P, J] bool."""
    table = torch.zeros(4, joints, dtype=torch.bool, device=chance.device)
    table[FULL_BODY] = True
    table[UPPER_BODY, [j for j in UPPER_POINTS if j < joints]] = True
    table[HEAD, [j for j in HEAD_POINTS if j < joints]] = True
    table[FACE, [j for j in FACE_POINTS if j < joints]] = True
    # The first person of a picture is its subject; half of the pictures frame the others as well.
    people = torch.arange(len(placement.picture), device=chance.device)
    subject = torch.full((placement.pictures,), len(people), device=chance.device).scatter_reduce_(
        0, placement.picture, people, "amin"
    )
    everyone = chance.flip(0.5, placement.pictures)[placement.picture] & (framing < HEAD)[placement.picture]
    framed = everyone | (subject[placement.picture] == people)  # [P]
    return table[framing[placement.picture]] & framed[:, None]


def _sample_rotation(framing: Tensor, chance: Chance) -> Tensor:
    """World to camera rotations, [B, 3, 3]: azimuth, then elevation, then roll."""
    B = len(framing)
    spread = torch.where(chance.flip(0.55, B), chance.normal(0.0, 0.6, B), chance.uniform(-math.pi, math.pi, B))
    azimuth = spread * torch.tensor([1.0, 1.0, 0.8, 0.5], device=chance.device)[framing]
    elevation = torch.where(chance.flip(0.8, B), chance.normal(0.06, 0.14, B), chance.uniform(-0.5, 0.9, B))
    roll = torch.where(chance.flip(0.85, B), chance.normal(0.0, 0.05, B), chance.uniform(-0.6, 0.6, B))
    zero, one = torch.zeros(B, device=chance.device), torch.ones(B, device=chance.device)
    ca, sa, ce, se, cr, sr = azimuth.cos(), azimuth.sin(), elevation.cos(), elevation.sin(), roll.cos(), roll.sin()
    swung = torch.stack([ca, -sa, zero, sa, ca, zero, zero, zero, one], dim=1).view(B, 3, 3)
    tilt = torch.stack([one, zero, zero, zero, -se, -ce, zero, ce, -se], dim=1).view(B, 3, 3)
    rolled = torch.stack([cr, -sr, zero, sr, cr, zero, zero, zero, one], dim=1).view(B, 3, 3)
    return (rolled.double() @ tilt.double() @ swung.double()).float()


def _bounds(points: Tensor, mask: Tensor, placement: Placement) -> tuple[Tensor, Tensor]:
    """Lowest and highest corner of the masked points of each picture, [P, J, D] -> two [B, D]."""
    B, D = placement.pictures, points.shape[-1]
    low = torch.where(mask[..., None], points, math.inf).amin(dim=1)  # [P, D]
    high = torch.where(mask[..., None], points, -math.inf).amax(dim=1)  # [P, D]
    where = placement.picture[:, None].expand(-1, D)
    start = torch.full((B, D), math.inf, device=points.device)
    lowest = start.scatter_reduce(0, where, low, "amin")
    highest = (-start).scatter_reduce(0, where, high, "amax")
    empty = lowest > highest
    return torch.where(empty, 0.0, lowest), torch.where(empty, 0.0, highest)


def points_from_depth(depth: Tensor, intrinsics: Tensor) -> Tensor:
    """Put depth on the rays of its pixels: [B, H, W] and [B, 3, 3] -> points [B, 3, H, W], zero where depth is zero."""
    _, H, W = depth.shape
    K = intrinsics[:, :, :, None, None]  # [B, 3, 3, 1, 1]
    x = torch.arange(W, device=depth.device, dtype=torch.float32)  # [W]
    y = torch.arange(H, device=depth.device, dtype=torch.float32)[:, None]  # [H, 1]
    return torch.stack(
        [(x - K[:, 0, 2]) / K[:, 0, 0] * depth, (y - K[:, 1, 2]) / K[:, 1, 1] * depth, depth], dim=1
    )  # [B, 3, H, W]
