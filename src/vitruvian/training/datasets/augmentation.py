"""Random changes of images: crops, colors, light, blur and noise."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.training.config import AugmentConfig
from vitruvian.training.datasets.crop_window import CropWindow
from vitruvian.training.datasets.labels import LabeledImages
from vitruvian.training.synthetic.camera_effects import add_noise_and_jpeg, defocus
from vitruvian.training.synthetic.rng import Rng


def random_crop(crop: CropWindow, augment: AugmentConfig, generator: torch.Generator) -> CropWindow:
    """Zoom, shift and mirror a crop at random."""
    draw = 2 * torch.rand(4, generator=generator) - 1
    scale = math.exp(float(draw[0]) * math.log1p(augment.scale))
    return _adjust_crop(
        crop, scale=scale, shift_xy=draw[1:3] * augment.shift, flipped=(draw[3:] + 1) / 2 < augment.flip
    )


def _adjust_crop(crop: CropWindow, *, scale: float, shift_xy: Tensor, flipped: Tensor) -> CropWindow:
    """Zoom about the middle by `scale`, shift by shares [2] of the crop, and mirror where `flipped` [1]."""
    size = torch.tensor([crop.size_hw[1], crop.size_hw[0]])
    middle = (size - 1) / 2
    start = crop.start_xy + crop.step_xy * (middle - (middle + shift_xy * size) / scale)
    return replace(crop, start_xy=start, step_xy=crop.step_xy / scale, flipped=flipped)


def color_jitter(images: LabeledImages, augment: AugmentConfig, generator: torch.Generator) -> LabeledImages:
    """Change brightness, contrast, saturation and tint of images and their foreground alike.

    The change is c ↦ A c + b, under which an image stays foreground + (1 − alpha) · background.
    """
    draw = (2 * torch.rand(6, generator=generator) - 1) * augment.color
    gray = float(torch.rand(1, generator=generator)) < augment.gray
    if augment.color == 0 and not gray:
        return images
    saturation = 0.0 if gray else 1 + float(draw[0])
    weights = torch.tensor([0.299, 0.587, 0.114])
    matrix = saturation * torch.eye(3) + (1 - saturation) * weights.expand(3, 3)
    contrast = 1 + float(draw[1])
    matrix = (1 + 0.5 * draw[2:5])[:, None] * matrix * contrast  # rows are outputs
    offset = (0.5 * (1 - contrast) + 0.5 * draw[5]).expand(3)[:, None, None]  # [3, 1, 1]
    image = (torch.einsum("ij,bjhw->bihw", matrix, images.image) + offset).clamp(0, 1)
    foreground = images.foreground
    if foreground is not None and images.alpha is not None:
        changed = torch.einsum("ij,bjhw->bihw", matrix, foreground) + images.alpha * offset
        foreground = changed.clamp_min(0).minimum(images.alpha)
    return replace(images, image=image, foreground=foreground)


# ----------------------------------------------------------------------------- augmentation of composed images
# Of images [n, 3, H, W] in 0..1, on their device. Which images change is drawn on the CPU: nothing synchronizes.

_SHRINK = {1: 0.5, 2: 0.15, 3: 0.11, 4: 0.1, 6: 0.08, 8: 0.06}  # factor: probability
SHARPEN = 0.6  # probability of sharpening small people
_DARK, _TINTED = 0.1, 0.35  # probability of low light, and of a color of that light
_DEFOCUSED = 0.07


def degrade_crops(images: Tensor, rng: Rng) -> Tensor:
    """Degrade crops as cameras and files do; pixels outside the image stay black."""
    inside = (images > 0).any(dim=1, keepdim=True)
    return photometric(_lower_resolution(images, rng), rng) * inside


def _lower_resolution(images: Tensor, rng: Rng) -> Tensor:
    """Shrink some images, add noise and JPEG, and enlarge them again, as crops of small people are."""
    H, W = images.shape[-2:]
    probabilities = torch.tensor(list(_SHRINK.values()), device=rng.generator.device)
    kind = torch.multinomial(probabilities, len(images), replacement=True, generator=rng.generator)
    for number, factor in enumerate(_SHRINK):
        chosen = (kind == number).nonzero()[:, 0]
        if factor == 1 or not len(chosen):
            continue
        index = chosen.to(images.device, non_blocking=True)
        size, some = (H // factor, W // factor), images[index]
        area = F.interpolate(some, size=size, mode="area")
        cubic = F.interpolate(some, size=size, mode="bicubic", antialias=True)
        small = torch.lerp(area, cubic, rng.uniform(0.0, 1.0, len(chosen))[:, None, None, None]).clamp(0, 1)
        small = add_noise_and_jpeg(small, rng=rng, sharpen=SHARPEN)
        large = F.interpolate(small, size=(H, W), mode="bicubic", align_corners=False).clamp(0, 1)
        images = images.index_copy(0, index, large)
    return images


def photometric(images: Tensor, rng: Rng) -> Tensor:
    """Change light, color, sharpness and noise."""
    n = len(images)
    shape = (n, 1, 1, 1)
    images = _darken(images * rng.log_uniform(0.65, 1.5, n).view(shape), rng)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + (images - mean) * rng.log_uniform(0.65, 1.45, n).view(shape)
    gray = images.mean(dim=1, keepdim=True)
    saturation = torch.where(rng.bernoulli(0.08, n), 0.0, rng.log_uniform(0.5, 1.6, n)).view(shape)
    images = gray + (images - gray) * saturation
    images = images * rng.log_uniform(0.88, 1.14, n, 3)[:, :, None, None]
    images = images.clamp(0, 1) ** rng.log_uniform(0.75, 1.33, n).view(shape)
    soft = F.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)
    softer = F.avg_pool2d(soft, 5, stride=1, padding=2, count_include_pad=False)
    blur = rng.uniform(0.0, 1.0, n).view(shape)
    images = torch.where(blur < 0.12, softer, torch.where(blur < 0.35, soft, images))
    images = _random_defocus(images, rng)
    noise = rng.uniform(0.0, 0.05, n) * rng.bernoulli(0.4, n)
    return (images + noise.view(shape) * rng.normal_field(*images.shape)).clamp(0, 1)


def _darken(images: Tensor, rng: Rng) -> Tensor:
    """Reduce the light of some images, sometimes in one color, as by night or on a stage."""
    n = len(images)
    color = torch.where(rng.bernoulli(_TINTED, n, 1), rng.log_uniform(0.3, 1.0, n, 3), 1.0)
    gain = torch.where(rng.bernoulli(_DARK, n, 1), rng.log_uniform(0.08, 0.6, n, 1) * color, 1.0)
    return images * gain[:, :, None, None]


def _random_defocus(images: Tensor, rng: Rng) -> Tensor:
    """Defocus some images."""
    index = rng.subset(len(images), _DEFOCUSED)
    if not len(index):
        return images
    radius = rng.log_uniform(0.012, 0.05, len(index)) * max(images.shape[-2:])
    return images.index_copy(0, index, defocus(images[index], radius))
