"""Augmentation of images."""

from dataclasses import replace

import torch
from torch import Tensor

from tests.unit.training.synthetic.shapes import rng
from vitruvian.training.datasets.augmentation import Photometric, _low_light, degrade, photometric
from vitruvian.training.datasets.labels import LabeledImages

NOTHING = Photometric.colors_only(0.0, 0.0)


def noise(count: int, height: int = 16, width: int = 12) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(0)) * 0.9 + 0.05


def test_photometric_is_in_range_and_depends_on_the_seed() -> None:
    images = LabeledImages(noise(4))
    before = images.image.clone()
    first, same, other = (photometric(images, rng(seed), Photometric()).image for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert 0 <= first.min() < first.max() <= 1
    assert torch.equal(images.image, before)
    torch.testing.assert_close(photometric(images, rng(), NOTHING).image, before)


def test_images_and_foreground_change_alike() -> None:
    color, alpha = noise(8), torch.full((8, 1, 16, 12), 0.7)
    images = LabeledImages(color, foreground=color * alpha, alpha=alpha)
    changed = photometric(images, rng(4), Photometric.colors_only(0.3, 0.0))
    assert not torch.allclose(changed.image, color, atol=0.02)
    torch.testing.assert_close(changed.foreground, changed.image * alpha)
    gray = photometric(images, rng(), replace(NOTHING, gray=1.0)).image
    assert (gray.amax(1) - gray.amin(1)).max() < 1e-5


def test_lower_resolution_keeps_mean_colors() -> None:
    images = LabeledImages(noise(64, 48, 48))
    found = degrade(images, rng(1), shrink=True).image
    same = (found == images.image).flatten(1).all(1)
    assert 20 < same.sum() < 54  # about half
    detail = (found[..., 1:] - found[..., :-1]).abs().mean(dim=(1, 2, 3))
    assert detail[~same].max() < 0.6 * detail[same].min()
    torch.testing.assert_close(found.mean(dim=(2, 3)), images.image.mean(dim=(2, 3)), rtol=0, atol=0.05)
    assert torch.equal(found, degrade(images, rng(1), shrink=True).image)
    assert (degrade(images, rng(1), shrink=False).image != images.image).flatten(1).any(1).all()


def test_pixels_outside_the_image_stay_black() -> None:
    images = LabeledImages(noise(24, 64, 48))
    images.image[:, :, 40:] = 0.0
    found = photometric(degrade(images, rng(1), shrink=True), rng(2), Photometric()).image
    assert (found[:, :, 40:] == 0).all()
    assert (found[:, :, :40] != images.image[:, :, :40]).any(dim=(1, 2, 3)).all()


def test_low_light_changes_a_tenth_of_the_images() -> None:
    gain = _low_light(2000, rng(1), 0.1)[:, :, 0, 0]  # [n, 3]
    dark = gain.amin(1) < 1
    assert (gain[~dark] == 1).all()
    assert 0.07 < dark.float().mean() < 0.13
    assert gain.amin() < 0.16
    assert gain[dark].amax() > 0.5
    ratio = gain[dark].amax(1) / gain[dark].amin(1)
    assert 0.2 < (ratio > 1.001).float().mean() < 0.5


def test_defocus_keeps_brightness() -> None:
    images = torch.full((300, 3, 48, 36), 1e-4)
    images[:, :, 24, 18] = 1.0  # a point of light becomes a disc
    found = photometric(LabeledImages(images), rng(1), replace(NOTHING, defocus=0.07)).image
    changed = (found - images).abs().flatten(1).amax(1) > 1e-3
    assert 0.03 < changed.float().mean() < 0.12
    assert found[changed].amax() < 0.9
    torch.testing.assert_close(found.sum((2, 3)), images.sum((2, 3)), rtol=1e-3, atol=1e-3)
