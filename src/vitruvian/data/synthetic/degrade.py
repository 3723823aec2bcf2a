"""What cameras, lenses and files do to a picture, and things that stand in front of people. Batched, on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.data.synthetic.background import Scenery, clouds, photo_crops, soft_shape
from vitruvian.data.synthetic.chance import Chance
from vitruvian.data.synthetic.filters import blur, disc_kernels, gaussian_kernels, motion_kernels
from vitruvian.data.synthetic.truth import HIDDEN, VISIBLE, Truth, masks_and_boxes
from vitruvian.ops.cache import constant

LUMA_TABLE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)  # ITU-T T.81, table K.1
CHROMA_TABLE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8 for _ in range(4)),
)  # ITU-T T.81, table K.2


@dataclass(frozen=True)
class ColourChange:
    """One look a picture: gamma, contrast, saturation, gains, and darker corners."""

    gamma: Tensor  # [B, 1, 1, 1]
    contrast: Tensor  # [B, 1, 1, 1]
    saturation: Tensor  # [B, 1, 1, 1]
    gains: Tensor  # [B, 3, 1, 1]
    vignette: Tensor  # [B, 1, 1, 1] how dark the corners are, 0..1

    def __call__(self, images: Tensor) -> Tensor:
        """Change pictures [B, 3, H, W] in 0..1; the same change for people and background keeps them one picture."""
        H, W = images.shape[-2:]
        y = torch.linspace(-1, 1, H, device=images.device).view(1, 1, H, 1)
        x = torch.linspace(-1, 1, W, device=images.device).view(1, 1, 1, W)
        images = images.clamp(1e-5, 1.0) ** self.gamma * self.gains * (1 - self.vignette * (x**2 + y**2) / 2)
        images = (images - 0.45) * self.contrast + 0.45
        grey = images.mean(dim=1, keepdim=True)
        return (grey + (images - grey) * self.saturation).clamp(0.0, 1.0)


def sample_colour(B: int, *, chance: Chance) -> ColourChange:
    """Draw the look of B pictures; a few are black and white."""
    mono = chance.flip(0.03, B, 1, 1, 1)
    return ColourChange(
        gamma=chance.normal(0.0, 0.14, B, 1, 1, 1).exp(),
        contrast=chance.normal(1.0, 0.12, B, 1, 1, 1).clamp(0.6, 1.5),
        saturation=torch.where(mono, 0.0, chance.normal(0.95, 0.18, B, 1, 1, 1).clamp(0.2, 1.5)),
        gains=chance.normal(0.0, 0.04, B, 3, 1, 1).exp(),
        vignette=chance.uniform(0.0, 0.45, B, 1, 1, 1) * chance.flip(0.3, B, 1, 1, 1),
    )


def sample_blur(B: int, *, chance: Chance, reach: float, often: float) -> Tensor:
    """Kernels [B, 15, 15]: soft lens, defocus or motion up to `reach` pixels for `often` of the pictures, else none."""
    sigma, radius = chance.uniform(0.2, reach / 2, B), chance.uniform(0.3, reach, B)
    kinds = torch.stack(
        [
            gaussian_kernels(torch.zeros(B, device=chance.device)),
            gaussian_kernels(sigma),
            disc_kernels(radius),
            motion_kernels(radius * 2, chance.uniform(0.0, math.pi, B)),
        ]
    )  # [4, B, 15, 15]
    kind = chance.choice((1 - often, often / 2, often / 4, often / 4), B)
    return kinds[kind, torch.arange(B, device=chance.device)]


def add_occluders(truth: Truth, scenery: Scenery, *, chance: Chance, often: float) -> Truth:
    """Put textured boxes and ellipses in front of `often` of the pictures, and correct every truth behind them."""
    B, _, H, W = truth.image.shape
    chosen = chance.flip(often, B, 1, 1, 1)
    cover = torch.zeros(B, 1, H, W, device=truth.image.device)
    for _ in range(2):
        cover = torch.maximum(cover, soft_shape(B, (H, W), chance=chance, largest=0.35))
    cover = cover * chosen
    paint = clouds(B, (H, W), chance=chance)
    if len(scenery.backgrounds):
        photo = photo_crops(scenery.backgrounds, B, (H, W), chance=chance)
        paint = torch.where(chance.flip(0.6, B, 1, 1, 1), photo, paint)
    slope = chance.normal(0.0, 0.25, B, 1, 1, 1) * torch.linspace(-1, 1, W, device=paint.device)
    paint = (paint * (chance.uniform(0.4, 1.1, B, 1, 1, 1) + slope)).clamp(0.0, 1.0)
    hidden = cover[:, 0] > 0.5  # [B, H, W]
    seen = ~hidden[:, None]
    shown = torch.where(hidden[:, None], False, truth.instance_masks)
    slots = torch.where(shown.any(dim=1), shown.float().argmax(dim=1), -1)
    masks, boxes = masks_and_boxes(slots, shown.shape[1])
    x = truth.keypoints[..., 0].round().long().clamp(0, W - 1)
    y = truth.keypoints[..., 1].round().long().clamp(0, H - 1)
    behind = hidden[torch.arange(B, device=x.device)[:, None, None], y, x] & (truth.keypoints[..., 2] == VISIBLE)
    state = torch.where(behind, HIDDEN, truth.keypoints[..., 2])
    return replace(
        truth,
        image=truth.image + cover * (paint - truth.image),
        alpha=truth.alpha * (1 - cover),
        foreground=truth.foreground * (1 - cover),
        albedo=truth.albedo * seen,
        normals=truth.normals * seen,
        pointmap=truth.pointmap * seen,
        parts=torch.where(hidden, 0, truth.parts),
        keypoints=torch.cat([truth.keypoints[..., :2], state[..., None]], dim=-1),
        boxes_xywh=boxes,
        instance_masks=masks,
    )


def lens(truth: Truth, *, chance: Chance) -> Truth:
    """Blur picture, foreground and alpha alike, as the lens does."""
    kernels = sample_blur(len(truth), chance=chance, reach=1.6, often=0.6)
    together = blur(torch.cat([truth.image, truth.foreground, truth.alpha], dim=1), kernels)  # [B, 7, H, W]
    return replace(truth, image=together[:, :3], foreground=together[:, 3:6], alpha=together[:, 6:].clamp(0.0, 1.0))


def sensor_and_file(images: Tensor, *, chance: Chance) -> Tensor:
    """Low resolution, noise, sharpening and JPEG, [B, 3, H, W] -> [B, 3, H, W] in steps of 1/255."""
    images = _rescaled(images, chance.choice((0.65, 0.2, 0.1, 0.05), len(images)))
    return developed(images, chance=chance, sharp=0.35)


def developed(images: Tensor, *, chance: Chance, sharp: float) -> Tensor:
    """Noise, sharpening of `sharp` of the pictures, and JPEG, [B, 3, H, W] -> [B, 3, H, W] in steps of 1/255."""
    B = len(images)
    images = add_noise(images, level=chance.log_uniform(0.002, 0.03, B) * chance.flip(0.85, B), chance=chance)
    crisp = images + (images - blur(images, gaussian_kernels(torch.full((B,), 1.0, device=images.device))))
    amount = (chance.uniform(0.1, 2 * sharp, B) * chance.flip(sharp, B))[:, None, None, None]
    images = (images + (crisp - images) * amount).clamp(0.0, 1.0)
    coded = jpeg(images, quality=chance.uniform(30.0, 95.0, B))
    images = torch.where(chance.flip(0.8, B)[:, None, None, None], coded, images)
    return (images.clamp(0.0, 1.0) * 255.0).round() / 255.0


def _rescaled(images: Tensor, choice: Tensor) -> Tensor:
    """Shrink and enlarge again by the chosen of four factors [B]; the first is none at all."""
    H, W = images.shape[-2:]
    result = images
    for number, factor in ((1, 0.75), (2, 0.5), (3, 0.36)):
        chosen = (choice == number).nonzero()[:, 0]
        if len(chosen):
            size = (max(round(H * factor), 1), max(round(W * factor), 1))
            small = F.interpolate(images[chosen], size=size, mode="bilinear", antialias=True, align_corners=False)
            large = F.interpolate(small, size=(H, W), mode="bicubic", align_corners=False).clamp(0.0, 1.0)
            result = result.index_copy(0, chosen, large)
    return result


def add_noise(images: Tensor, *, level: Tensor, chance: Chance) -> Tensor:
    """Sensor noise of `level` [B] at mid-grey: stronger where it is bright, partly coloured, partly smeared."""
    B, _, H, W = images.shape
    grain = chance.normal_field(B, 3, H, W)
    smeared = F.avg_pool2d(F.pad(grain, (1, 1, 1, 1), mode="replicate"), 3, stride=1) * 2.0
    grain = grain + (smeared - grain) * chance.uniform(0.0, 0.8, B, 1, 1, 1)
    grey = grain.mean(dim=1, keepdim=True) * 1.6
    grain = grey + (grain - grey) * chance.uniform(0.1, 0.8, B, 1, 1, 1)
    strength = level[:, None, None, None] * (0.5 + images.clamp(0.0, 1.0).sqrt() * 0.7)
    return (images + grain * strength).clamp(0.0, 1.0)


def jpeg(images: Tensor, *, quality: Tensor) -> Tensor:
    """Code and decode as JPEG of `quality` [B] (1..100) with halved colour resolution, [B, 3, H, W] -> [B, 3, H, W]."""
    H, W = images.shape[-2:]
    padded = F.pad(images, (0, -W % 16, 0, -H % 16), mode="replicate")
    r, g, b = (padded * 255.0).unbind(dim=1)
    luma = 0.299 * r + 0.587 * g + 0.114 * b
    chroma = torch.stack([(b - luma) * 0.564334, (r - luma) * 0.713267], dim=1)  # [B, 2, H, W]
    factor = torch.where(quality < 50, 5000.0 / quality.clamp_min(1.0), 200.0 - 2.0 * quality) / 100.0  # [B]
    luma = _coded(luma[:, None] - 128.0, LUMA_TABLE, factor)[:, 0] + 128.0
    half = _coded(F.avg_pool2d(chroma, 2), CHROMA_TABLE, factor)
    blue, red = F.interpolate(half, scale_factor=2, mode="bilinear", align_corners=False).unbind(dim=1)
    decoded = torch.stack([luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue], dim=1)
    return (decoded[..., :H, :W] / 255.0).clamp(0.0, 1.0)


def _coded(planes: Tensor, table: tuple[tuple[int, ...], ...], factor: Tensor) -> Tensor:
    """Round the 8 x 8 cosine coefficients of planes [B, C, H, W] to multiples of the table."""
    B, C, H, W = planes.shape
    n = torch.arange(8, dtype=torch.float32, device=planes.device)
    basis = torch.cos((2 * n[None] + 1) * n[:, None] * math.pi / 16) / 2  # [8, 8]
    basis[0] *= math.sqrt(0.5)
    steps = constant(table, planes.device)  # [8, 8]
    steps = (steps * factor[:, None, None]).clamp(1.0, 255.0).round()[:, None, None, None]  # [B, 1, 1, 1, 8, 8]
    blocks = planes.view(B, C, H // 8, 8, W // 8, 8).transpose(3, 4)  # [B, C, h, w, 8, 8]
    rounded = ((basis @ blocks @ basis.T) / steps).round() * steps
    return (basis.T @ rounded @ basis).transpose(3, 4).reshape(B, C, H, W)
