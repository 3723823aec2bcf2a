"""Random changes of images as cameras and files make them: light, color, blur, resolution, noise and JPEG.

Everything runs on the device of the images. Which images change is drawn on the CPU: nothing synchronizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.training.datasets.labels import LabeledImages
from vitruvian.training.synthetic.camera_effects import add_noise_and_jpeg, defocus
from vitruvian.training.synthetic.rng import Rng

_SHRINK = {1: 0.5, 2: 0.15, 3: 0.11, 4: 0.1, 6: 0.08, 8: 0.06}  # factor: probability
_SHARPEN = 0.6  # probability of sharpening small people
_TINTED = 0.35  # probability that low light has a color


@dataclass(frozen=True)
class Photometric:
    """How much `photometric` changes: a strength s is a random factor from 1 / (1 + s) to 1 + s.

    `gray`, `dark` (low light, by night or on a stage), `blur`, `defocus` and `noise` are probabilities.
    """

    exposure: float = 0.5
    contrast: float = 0.5
    saturation: float = 0.75
    tint: float = 0.14
    gamma: float = 0.33
    gray: float = 0.08
    dark: float = 0.1
    blur: float = 0.35
    defocus: float = 0.07
    noise: float = 0.4

    @classmethod
    def colors_only(cls, strength: float, gray: float) -> Photometric:
        """Return changes of light and color of one strength, without blur and noise."""
        return cls(strength, strength, strength, strength / 2, 0.0, gray, 0.0, 0.0, 0.0, 0.0)


def photometric(images: LabeledImages, rng: Rng, options: Photometric) -> LabeledImages:
    """Change light and color of images and their foreground alike, then blur and noise of the images.

    Pixels outside an image, which are black, stay black.
    """
    n, shape = len(images), (len(images), 1, 1, 1)

    def factor(strength: float, *size: int) -> Tensor:
        return rng.log_uniform(1 / (1 + strength), 1 + strength, *(size or shape))

    exposure = factor(options.exposure) * _low_light(n, rng, options.dark)
    mean = (images.image * exposure).mean(dim=(1, 2, 3), keepdim=True)
    contrast, tint, gamma = factor(options.contrast), factor(options.tint, n, 3, 1, 1), factor(options.gamma)
    saturation = torch.where(rng.bernoulli(options.gray, *shape), 0.0, factor(options.saturation))

    def grade(color: Tensor) -> Tensor:
        color = mean + (color * exposure - mean) * contrast
        gray = color.mean(dim=1, keepdim=True)
        return ((gray + (color - gray) * saturation) * tint).clamp(0, 1) ** gamma

    inside = (images.image > 0).any(dim=1, keepdim=True)
    image = grade(images.image)
    if options.blur:
        soft = F.avg_pool2d(image, 3, stride=1, padding=1, count_include_pad=False)
        softer = F.avg_pool2d(soft, 5, stride=1, padding=2, count_include_pad=False)
        draw = rng.uniform(0.0, 1.0, *shape)
        image = torch.where(draw < options.blur / 3, softer, torch.where(draw < options.blur, soft, image))
    index = rng.subset(n, options.defocus)
    if len(index):
        radius = rng.log_uniform(0.012, 0.05, len(index)) * max(images.size_hw)
        image = image.index_copy(0, index, defocus(image[index], radius))
    if options.noise:
        level = rng.uniform(0.0, 0.05, *shape) * rng.bernoulli(options.noise, *shape)
        image = (image + level * rng.normal_field(*image.shape)).clamp(0, 1)
    foreground = images.foreground
    if foreground is not None and images.alpha is not None:
        foreground = grade(foreground / images.alpha.clamp_min(1e-3)) * images.alpha
    return replace(images, image=image * inside, foreground=foreground)


def _low_light(n: int, rng: Rng, probability: float) -> Tensor:
    """Draw gains [n, 3, 1, 1]: below 1 for some images, sometimes in one color, as by night or on a stage."""
    color = torch.where(rng.bernoulli(_TINTED, n, 1, 1, 1), rng.log_uniform(0.3, 1.0, n, 3, 1, 1), 1.0)
    return torch.where(rng.bernoulli(probability, n, 1, 1, 1), rng.log_uniform(0.08, 0.6, n, 1, 1, 1) * color, 1.0)


def degrade(images: LabeledImages, rng: Rng, *, shrink: bool) -> LabeledImages:
    """Add noise and JPEG; with `shrink` to some images, at a lower resolution, as crops of small people are."""
    if not shrink:
        return replace(images, image=add_noise_and_jpeg(images.image, rng=rng, sharpen=_SHARPEN))
    image, (H, W) = images.image, images.size_hw
    probabilities = torch.tensor(list(_SHRINK.values()), device=rng.generator.device)
    draw = torch.multinomial(probabilities, len(image), replacement=True, generator=rng.generator)
    for number, factor in enumerate(_SHRINK):
        rows = (draw == number).nonzero()[:, 0]
        if factor == 1 or not len(rows):
            continue
        index = rows.to(image.device, non_blocking=True)
        size, chosen = (H // factor, W // factor), image[index]
        area = F.interpolate(chosen, size=size, mode="area")
        cubic = F.interpolate(chosen, size=size, mode="bicubic", antialias=True)
        small = torch.lerp(area, cubic, rng.uniform(0.0, 1.0, len(rows), 1, 1, 1)).clamp(0, 1)
        small = add_noise_and_jpeg(small, rng=rng, sharpen=_SHARPEN)
        large = F.interpolate(small, size=(H, W), mode="bicubic", align_corners=False).clamp(0, 1)
        image = image.index_copy(0, index, large * (chosen > 0).any(dim=1, keepdim=True))
    return replace(images, image=image)
