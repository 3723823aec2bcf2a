"""Augmentation of composed images."""

import torch

from vitruvian.training.datasets.augmentation import (
    _darken,
    _lower_resolution,
    _random_defocus,
    degrade_crops,
    photometric,
)
from vitruvian.training.synthetic.rng import Rng


def test_photometric_is_in_range_and_depends_on_the_seed() -> None:
    images = torch.rand(4, 3, 16, 12)
    before = images.clone()
    one = photometric(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    same = photometric(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    other = photometric(images, Rng(torch.Generator().manual_seed(2), "cpu"))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.min() >= 0
    assert one.max() <= 1
    assert torch.equal(images, before)


def test_lower_resolution_keeps_mean_colors():
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(64, 3, 48, 48, generator=draw)
    images[:, 0] += 1
    images = images / 2
    found = _lower_resolution(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    same = (found == images).flatten(1).all(1)
    assert 24 < same.sum() < 54  # about six in ten
    detail = (found[..., 1:] - found[..., :-1]).abs().mean(dim=(1, 2, 3))
    assert detail[~same].max() < 0.6 * detail[same].min()
    torch.testing.assert_close(found.mean(dim=(2, 3)), images.mean(dim=(2, 3)), rtol=0, atol=0.02)
    again = _lower_resolution(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    assert torch.equal(found, again)


def test_degraded_crops_stay_black_outside_the_image():
    images = torch.rand(24, 3, 64, 48, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
    images[:, :, 40:] = 0.0
    found = degrade_crops(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    assert (found[:, :, 40:] == 0).all()
    assert (found[:, :, :40] != images[:, :, :40]).any(dim=(1, 2, 3)).all()


def test_darken_changes_a_tenth_of_the_images():
    images = torch.full((2000, 3, 1, 1), 0.5)
    found = _darken(images, Rng(torch.Generator().manual_seed(1), "cpu"))[:, :, 0, 0]  # [n, 3]
    dark = found.amax(1) < 0.5
    assert (found[~dark] == 0.5).all()
    assert 0.07 < dark.float().mean() < 0.13
    assert found.amin() < 0.08
    assert found[dark].amax() > 0.25
    spread = found[dark].amax(1) / found[dark].amin(1)
    assert 0.2 < (spread > 1.001).float().mean() < 0.5


def test_random_defocus_keeps_brightness():
    images = torch.zeros(300, 3, 48, 36)
    images[:, :, 24, 18] = 1.0  # a point of light becomes a disc
    found = _random_defocus(images, Rng(torch.Generator().manual_seed(1), "cpu"))
    changed = (found != images).flatten(1).any(1)
    assert 0.03 < changed.float().mean() < 0.12
    assert found[changed].amax() < 0.9
    torch.testing.assert_close(found.sum((2, 3)), images.sum((2, 3)), rtol=1e-3, atol=1e-3)
