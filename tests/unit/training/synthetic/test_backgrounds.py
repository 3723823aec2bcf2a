"""Backgrounds, scenery files, and what cameras do to images."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image

from tests.unit.training.synthetic.shapes import front_camera, person, render_shapes, rng, sphere
from vitruvian.training.synthetic.asset_pack import Scenery
from vitruvian.training.synthetic.backgrounds import sample_backgrounds
from vitruvian.training.synthetic.camera import sample_cameras, sample_placement
from vitruvian.training.synthetic.camera_effects import (
    _add_noise,
    _disc_kernels,
    _gaussian_kernels,
    _jpeg,
    _motion_kernels,
    add_noise_and_jpeg,
    blur,
    defocus,
    sample_grading,
)
from vitruvian.training.synthetic.render import RenderOptions, _add_occluders


def test_backgrounds_of_all_kinds_are_images() -> None:
    points = torch.rand(60, 308, 3)
    placement = sample_placement(60, 60, rng=rng())
    known = torch.ones(60, 308, dtype=torch.bool)
    cameras = sample_cameras(points, placement, stature_m=torch.ones(60), size_hw=(32, 24), rng=rng(), known=known)
    full = Scenery(torch.rand(2, 64, 128, 3), torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8))
    for scenery in (Scenery.empty(), full):
        images = sample_backgrounds(scenery, cameras, rng=rng(1))
        assert images.shape == (60, 3, 32, 24)
        assert torch.isfinite(images).all()
        assert 0 <= images.min() < images.max() <= 1
        flat = images.flatten(1)
        assert (flat[:, None] - flat[None]).abs().mean(dim=2).fill_diagonal_(1).min() > 0.01  # no two alike


def test_pixel_rays_invert_projection() -> None:
    camera = front_camera(distance=3.0, focal=40.0, size_hw=(24, 32))
    rays = camera.pixel_rays().view(24, 32, 3)
    point = camera.position[0] + 2.5 * rays[7, 20]
    seen = camera.project(camera.to_camera(point[None, None], torch.tensor([0])), torch.tensor([0]))[0, 0]
    assert torch.allclose(seen, torch.tensor([20.0, 7.0, 2.5]), atol=1e-3)


def test_blur_kernels_keep_brightness_and_have_their_width() -> None:
    dot = torch.zeros(3, 2, 31, 31)
    dot[:, :, 15, 15] = 1.0
    size = torch.tensor([0.0, 1.5, 3.0])
    for kernels in (_gaussian_kernels(size), _disc_kernels(size), _motion_kernels(size, torch.zeros(3))):
        spread = blur(dot, kernels)
        assert torch.allclose(spread.sum(dim=(2, 3)), torch.ones(3, 2), atol=1e-4)
        assert torch.allclose(spread[0], dot[0], atol=1e-4)
        assert spread[1].max() > spread[2].max()
    streak = blur(dot, _motion_kernels(torch.full((3,), 6.0), torch.full((3,), torch.pi / 2)))[0, 0]
    assert streak[:, 15].sum() > 0.99
    wide = defocus(torch.eye(64)[None, None].repeat(2, 3, 1, 1), torch.tensor([0.0, 20.0]))
    assert torch.allclose(wide[0], torch.eye(64).expand(3, 64, 64), atol=1e-4)
    assert wide[1].max() < 0.1


def reference_jpeg(image: torch.Tensor, quality: int) -> torch.Tensor:
    source = Image.fromarray((image.permute(1, 2, 0) * 255).round().byte().numpy())
    buffer = io.BytesIO()
    source.save(buffer, format="JPEG", quality=quality, subsampling=2)
    return torch.from_numpy(np.asarray(Image.open(buffer)).copy()).permute(2, 0, 1).float() / 255


def test_jpeg_error_is_that_of_pillow() -> None:
    y, x = torch.meshgrid(torch.arange(40), torch.arange(56), indexing="ij")
    image = torch.stack([torch.sin(x / 5) * 0.4 + 0.5, torch.cos(y / 3) * 0.3 + 0.5, (x + y) / 96.0])
    image = _add_noise(image[None], level=torch.tensor([0.05]), rng=rng())[0]
    for quality in (20, 60, 90):
        ours = _jpeg(image[None], quality=torch.tensor([float(quality)]))[0]
        theirs = reference_jpeg(image, quality)
        assert (ours - theirs).abs().mean() < 0.4 * (theirs - image).abs().mean() + 0.003, quality
        assert (ours - image).abs().mean() > 0.5 * (theirs - image).abs().mean(), quality


def test_noise_has_the_level_it_was_given() -> None:
    gray = torch.full((2, 3, 64, 64), 0.5)
    noisy = _add_noise(gray, level=torch.tensor([0.0, 0.04]), rng=rng())
    assert torch.equal(noisy[0], gray[0])
    assert 0.015 < noisy[1].std().item() < 0.08


def test_camera_effects_keep_images_in_range() -> None:
    images = torch.rand(16, 3, 40, 30)
    changed = sample_grading(16, rng=rng())(images)
    assert 0 <= changed.min() < changed.max() <= 1
    filed = add_noise_and_jpeg(changed, rng=rng(), sharpen=0.35)
    assert filed.shape == images.shape
    assert torch.equal((filed * 255).round() / 255, filed)
    assert (filed - changed).abs().mean() < 0.2


def test_occluders_correct_all_ground_truth() -> None:
    points, faces = sphere(radius=0.6, rings=24, sectors=48)
    keypoints = (
        torch.nn.functional.normalize(torch.randn(60, 3, generator=torch.Generator().manual_seed(1)), dim=1) * 0.6
    )
    someone = person([(points, faces, 3)], keypoints=keypoints)
    options = RenderOptions(
        size_hw=(64, 48), surroundings=2, surroundings_size=16, shadow_size=32, occluders=0.0, camera_effects=False
    )
    camera = front_camera(distance=2.0, focal=70.0, size_hw=(64, 48))
    before = render_shapes(someone, camera, options=options)
    for seed in range(60):
        after = _add_occluders(before, Scenery.empty(), rng=rng(seed), probability=1.0)
        if 60 < (after.parts != before.parts).sum() < 1000 and not torch.equal(after.boxes_xywh, before.boxes_xywh):
            break
    gone = (after.parts == 0) & (before.parts > 0)
    assert gone.sum() > 60
    for field in ("normals", "pointmap", "albedo"):
        assert (getattr(after, field).abs().sum(dim=1)[gone] == 0).all()
    assert (after.alpha[:, 0][gone] <= 0.5).all()
    assert torch.equal(after.instance_masks[:, 0], after.parts > 0)
    y, x = after.instance_masks[0, 0].nonzero(as_tuple=True)
    assert after.boxes_xywh[0, 0].tolist() == [
        x.min(), y.min(), x.max() - x.min() + 1, y.max() - y.min() + 1
    ]  # fmt: skip
    newly = (before.keypoints[0, 0, :, 2] == 2) & (after.keypoints[0, 0, :, 2] == 1)
    assert newly.any()
    column, row = after.keypoints[0, 0, newly, :2].round().long().unbind(1)
    assert (after.parts[0, row, column] == 0).all()
    assert (after.image != before.image).any()
