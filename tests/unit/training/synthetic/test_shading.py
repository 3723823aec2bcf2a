"""How light falls on people, seen in whole images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.unit.training.synthetic.shapes import front_camera, person, render_shapes, sphere
from vitruvian.errors import InputError
from vitruvian.training.synthetic.lighting import Lights, _irradiance_harmonics
from vitruvian.training.synthetic.render import GroundTruth, RenderOptions
from vitruvian.training.synthetic.shading import Surface, shade_surface

SIZE = (48, 48)
PLAIN = RenderOptions(
    size_hw=SIZE, surroundings=3, surroundings_size=24, shadow_size=64, folds=0.0, occluders=0.0, camera_effects=False
)


def lights(*, ambient: float, key: float, direction: tuple[float, float, float] = (0.0, 0.0, 1.0)) -> Lights:
    """Even surroundings of one brightness and a white key light."""
    maps = torch.full((1, 32, 64, 3), ambient)
    towards = F.normalize(torch.tensor([direction]), dim=1)
    return Lights(
        harmonics=_irradiance_harmonics(maps),
        glossy=maps,
        rough=maps[:, :16, :32],
        key_direction=towards,
        key_color=torch.full((1, 3), key),
        key_softness=torch.tensor([0.05]),
        fill_direction=towards,
        fill_color=torch.zeros(1, 3),
        flash_color=torch.zeros(1, 3),
    )


def matte(count: int, *, albedo: float, skin: bool = False) -> Surface:
    """Cloth that faces all ways, seen from straight ahead of it."""
    normal = F.normalize(torch.randn(count, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    none = torch.zeros(count, dtype=torch.int64)
    return Surface(
        person=none,
        image_index=none,
        part=none + 23,
        albedo=torch.full((count, 3), albedo),
        gloss=torch.zeros(count),
        skin=torch.full((count,), skin),
        hair=torch.zeros(count, dtype=torch.bool),
        position=torch.zeros(count, 3),
        normal=normal,
        strand_normal=normal,
        view=normal,
    )


def ball(part: int, light: Lights, options: RenderOptions = PLAIN, seed: int = 0) -> GroundTruth:
    points, faces = sphere(radius=0.5, rings=40, sectors=80)
    camera = front_camera(distance=2.0, focal=70.0, size_hw=SIZE)
    someone = person([(points, faces, part)])
    generator = torch.Generator().manual_seed(seed)
    return render_shapes(someone, camera, generator=generator, options=options, lights=light)


def test_matte_surface_in_uniform_light_has_the_radiance_of_its_albedo() -> None:
    for albedo in (0.2, 0.9):
        surface = matte(200, albedo=albedo)
        radiance = shade_surface(
            surface, lights(ambient=1.0, key=0.0), key_light=torch.ones(200), ambient_share=torch.ones(200, 3)
        )
        assert (radiance - albedo).abs().max() < 0.05  # a little is reflected by the surface itself


def test_key_light_follows_the_cosine_and_wraps_around_skin() -> None:
    for skin in (False, True):
        surface = matte(400, albedo=0.5, skin=skin)
        radiance = shade_surface(
            surface, lights(ambient=0.0, key=2.0), key_light=torch.ones(400), ambient_share=torch.ones(400, 3)
        )
        cosine = surface.normal[:, 2]
        if not skin:
            assert (radiance - cosine.clamp_min(0)[:, None]).abs().max() < 0.12
        behind = (cosine < -0.05) & (cosine > -0.2)
        assert bool((radiance[behind, 0] > 0.001).all()) == skin
        assert bool((radiance[behind, 0] > radiance[behind, 2]).all()) == skin  # red light goes farther in skin


def test_shadows_are_dark() -> None:
    surface = matte(50, albedo=0.5)
    dark = shade_surface(
        surface, lights(ambient=1.0, key=1.0), key_light=torch.zeros(50), ambient_share=torch.zeros(50, 3)
    )
    assert dark.max() < 0.01


def test_surfaces_facing_the_light_are_brighter() -> None:
    for x, bright in ((-1.0, slice(0, 20)), (1.0, slice(28, 48))):
        truth = ball(23, lights(ambient=0.2, key=2.0, direction=(x, 0.0, 0.3)))
        gray = truth.image.mean(dim=1)[0]
        there = truth.alpha[0, 0] == 1
        side = torch.zeros_like(there)
        side[:, bright] = True
        assert gray[there & side].mean() > gray[there & ~side].mean() + 0.15


def test_folds_change_normals_of_clothes_only() -> None:
    light = lights(ambient=1.0, key=1.0)
    folded = replace(PLAIN, folds=0.5)
    for part, bends in ((23, True), (3, False)):
        change = (ball(part, light, folded).normals - ball(part, light).normals).abs().max()
        assert (change > 0.1) == bends


def test_hair_strands_change_shading_but_not_normals() -> None:
    light = lights(ambient=0.5, key=1.0, direction=(0.3, -1.0, 0.5))
    hair, cloth = ball(4, light), ball(23, light)
    inner = cloth.alpha[0, 0] == 1
    assert torch.allclose(hair.normals, cloth.normals, atol=1e-6)
    assert hair.albedo[0, 0][inner].std() > 2 * cloth.albedo[0, 0][inner].std()


def test_autocast_does_not_change_the_output() -> None:
    light = lights(ambient=0.5, key=1.0)
    plain = ball(3, light)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        around = ball(3, light)
    assert torch.equal(plain.image, around.image)
    assert torch.equal(plain.pointmap, around.pointmap)
    assert not plain.image.requires_grad


def test_invalid_options_raise() -> None:
    with pytest.raises(InputError, match="sides of at least 8 pixels"):
        RenderOptions(size_hw=(4, 40))
