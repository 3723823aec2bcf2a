"""What lenses, sensors and files do to images: blur, color, noise and JPEG, with other settings for each image."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.tensor_cache import constant
from vitruvian.training.synthetic.rng import Rng

_RADIUS = 7  # kernels are 15 x 15


def _gaussian_kernels(sigma: Tensor) -> Tensor:
    """Return Gaussian kernels of `sigma` [B] pixels, [B, 15, 15]; 0 is the identity."""
    _, _, distance = _kernel_grid(sigma)
    return _normalized((-0.5 * (distance / sigma.clamp_min(0.05)[:, None, None]) ** 2).exp())


def _disc_kernels(radius: Tensor) -> Tensor:
    """Return kernels of defocus: discs of `radius` [B] pixels, [B, 15, 15]."""
    _, _, distance = _kernel_grid(radius)
    return _normalized((radius[:, None, None] - distance + 0.5).clamp(0.0, 1.0) + 1e-6 * (distance == 0))


def _motion_kernels(length: Tensor, angle: Tensor) -> Tensor:
    """Return kernels of motion blur along lines of `length` [B] pixels at `angle` [B], [B, 15, 15]."""
    x, y, _ = _kernel_grid(length)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    along, across = x * cos + y * sin, y * cos - x * sin
    beyond = (along.abs() - length[:, None, None] / 2).clamp_min(0.0)
    return _normalized((1.0 - torch.hypot(beyond, across)).clamp_min(0.0))


def _kernel_grid(like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, y and the distance from the middle, each [1, 15, 15]."""
    step = torch.arange(-_RADIUS, _RADIUS + 1, device=like.device, dtype=torch.float32)
    y, x = torch.meshgrid(step, step, indexing="ij")
    return x[None], y[None], torch.hypot(x, y)[None]


def _normalized(kernels: Tensor) -> Tensor:
    return kernels / kernels.sum(dim=(1, 2), keepdim=True)


def blur(images: Tensor, kernels: Tensor) -> Tensor:
    """Filter images [B, C, H, W] with one kernel each, [B, 15, 15]; borders repeat."""
    B, C, H, W = images.shape
    padded = F.pad(images, (_RADIUS,) * 4, mode="replicate").reshape(1, B * C, H + 2 * _RADIUS, W + 2 * _RADIUS)
    weights = kernels.repeat_interleave(C, dim=0)[:, None]  # [B·C, 1, 15, 15]
    return F.conv2d(padded, weights, groups=B * C).view(B, C, H, W)


def defocus(images: Tensor, radius: Tensor) -> Tensor:
    """Defocus by `radius` [B] pixels of any size; large discs are applied at a quarter of the resolution."""
    H, W = images.shape[-2:]
    small = F.interpolate(images, size=(max(H // 4, 1), max(W // 4, 1)), mode="area")
    small = blur(small, _disc_kernels((radius / 4).clamp_max(_RADIUS)))
    large = F.interpolate(small, size=(H, W), mode="bilinear", align_corners=False)
    near = blur(images, _disc_kernels(radius.clamp_max(_RADIUS)))
    return torch.where((radius > _RADIUS - 1)[:, None, None, None], large, near)


_LUMA_TABLE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)  # ITU-T T.81, table K.1


_CHROMA_TABLE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8 for _ in range(4)),
)  # ITU-T T.81, table K.2


def sample_grading(B: int, *, rng: Rng) -> Callable[[Tensor], Tensor]:
    """Draw the color grading of B images [B, 3, H, W] in 0..1; a few are black and white."""
    shape = (B, 1, 1, 1)
    gamma, contrast = rng.normal(0.0, 0.14, *shape).exp(), rng.normal(1.0, 0.12, *shape).clamp(0.6, 1.5)
    saturation = rng.normal(0.95, 0.18, *shape).clamp(0.2, 1.5) * ~rng.bernoulli(0.03, *shape)
    gains = rng.normal(0.0, 0.04, B, 3, 1, 1).exp()
    vignette = rng.uniform(0.0, 0.45, *shape) * rng.bernoulli(0.3, *shape)  # how dark the corners are, 0..1

    def grade(images: Tensor) -> Tensor:
        H, W = images.shape[-2:]
        y = torch.linspace(-1, 1, H, device=images.device).view(1, 1, H, 1)
        x = torch.linspace(-1, 1, W, device=images.device).view(1, 1, 1, W)
        images = images.clamp(1e-5, 1.0) ** gamma * gains * (1 - vignette * (x**2 + y**2) / 2)
        images = (images - 0.45) * contrast + 0.45
        gray = images.mean(dim=1, keepdim=True)
        return (gray + (images - gray) * saturation).clamp(0.0, 1.0)

    return grade


def sample_blur(B: int, *, rng: Rng, reach: float, probability: float) -> Tensor:
    """Draw kernels [B, 15, 15]: soft lens, defocus or motion of up to `reach` pixels for some images, else none."""
    sigma, radius = rng.uniform(0.2, reach / 2, B), rng.uniform(0.3, reach, B)
    kinds = torch.stack(
        [
            _gaussian_kernels(torch.zeros(B, device=rng.device)),
            _gaussian_kernels(sigma),
            _disc_kernels(radius),
            _motion_kernels(radius * 2, rng.uniform(0.0, math.pi, B)),
        ]
    )  # [4, B, 15, 15]
    kind = rng.categorical((1 - probability, probability / 2, probability / 4, probability / 4), B)
    return kinds[kind, torch.arange(B, device=rng.device)]


def add_noise_and_jpeg(images: Tensor, *, rng: Rng, sharpen: float) -> Tensor:
    """Apply noise, sharpening with probability `sharpen`, and JPEG, [B, 3, H, W] in steps of 1/255."""
    B = len(images)
    images = _add_noise(images, level=rng.log_uniform(0.002, 0.03, B) * rng.bernoulli(0.85, B), rng=rng)
    crisp = images + (images - blur(images, _gaussian_kernels(torch.full((B,), 1.0, device=images.device))))
    amount = (rng.uniform(0.1, 2 * sharpen, B) * rng.bernoulli(sharpen, B))[:, None, None, None]
    images = (images + (crisp - images) * amount).clamp(0.0, 1.0)
    coded = _jpeg(images, quality=rng.uniform(30.0, 95.0, B))
    images = torch.where(rng.bernoulli(0.8, B)[:, None, None, None], coded, images)
    return (images.clamp(0.0, 1.0) * 255.0).round() / 255.0


def _add_noise(images: Tensor, *, level: Tensor, rng: Rng) -> Tensor:
    """Add sensor noise of `level` [B] at mid-gray: stronger in bright areas, partly colored, partly smoothed."""
    B, _, H, W = images.shape
    grain = rng.normal_field(B, 3, H, W)
    smoothed = F.avg_pool2d(F.pad(grain, (1, 1, 1, 1), mode="replicate"), 3, stride=1) * 2.0
    grain = grain + (smoothed - grain) * rng.uniform(0.0, 0.8, B, 1, 1, 1)
    gray = grain.mean(dim=1, keepdim=True) * 1.6
    grain = gray + (grain - gray) * rng.uniform(0.1, 0.8, B, 1, 1, 1)
    strength = level[:, None, None, None] * (0.5 + images.clamp(0.0, 1.0).sqrt() * 0.7)
    return (images + grain * strength).clamp(0.0, 1.0)


def _jpeg(images: Tensor, *, quality: Tensor) -> Tensor:
    """Encode and decode as JPEG of `quality` [B] (1..100) with halved chroma, [B, 3, H, W] -> [B, 3, H, W]."""
    H, W = images.shape[-2:]
    padded = F.pad(images, (0, -W % 16, 0, -H % 16), mode="replicate")
    r, g, b = (padded * 255.0).unbind(dim=1)
    luma = 0.299 * r + 0.587 * g + 0.114 * b
    chroma = torch.stack([(b - luma) * 0.564334, (r - luma) * 0.713267], dim=1)  # [B, 2, H, W]
    factor = torch.where(quality < 50, 5000.0 / quality.clamp_min(1.0), 200.0 - 2.0 * quality) / 100.0  # [B]
    luma = _quantize_blocks(luma[:, None] - 128.0, _LUMA_TABLE, factor)[:, 0] + 128.0
    half = _quantize_blocks(F.avg_pool2d(chroma, 2), _CHROMA_TABLE, factor)
    blue, red = F.interpolate(half, scale_factor=2, mode="bilinear", align_corners=False).unbind(dim=1)
    decoded = torch.stack([luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue], dim=1)
    return (decoded[..., :H, :W] / 255.0).clamp(0.0, 1.0)


def _quantize_blocks(planes: Tensor, table: tuple[tuple[int, ...], ...], factor: Tensor) -> Tensor:
    """Quantize the 8 x 8 cosine coefficients of planes [B, C, H, W] to multiples of the table."""
    B, C, H, W = planes.shape
    n = torch.arange(8, dtype=torch.float32, device=planes.device)
    basis = torch.cos((2 * n[None] + 1) * n[:, None] * math.pi / 16) / 2  # [8, 8]
    basis[0] *= math.sqrt(0.5)
    steps = constant(table, planes.device)  # [8, 8]
    steps = (steps * factor[:, None, None]).clamp(1.0, 255.0).round()[:, None, None, None]  # [B, 1, 1, 1, 8, 8]
    blocks = planes.view(B, C, H // 8, 8, W // 8, 8).transpose(3, 4)  # [B, C, h, w, 8, 8]
    rounded = ((basis @ blocks @ basis.T) / steps).round() * steps
    return (basis.T @ rounded @ basis).transpose(3, 4).reshape(B, C, H, W)
