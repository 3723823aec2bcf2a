"""Light, shadows and color against what is known without a renderer."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.unit.training.synthetic.shapes import card, rng, sphere
from vitruvian.training.synthetic.lighting import (
    Lights,
    _blur_maps,
    _harmonic_basis,
    _irradiance_harmonics,
    _map_directions,
    _split_sun,
    render_ambient_occlusion,
    render_shadow_map,
    sample_environment,
    sample_lights,
)
from vitruvian.training.synthetic.materials import Pattern
from vitruvian.training.synthetic.rasterizer import Meshes
from vitruvian.training.synthetic.shading import _pattern_weight, _value_noise, tone_map, vertex_normals
from vitruvian.training.synthetic.textures import (
    build_pyramid,
    face_levels,
    sample_texture,
)


def test_solid_angles_sum_to_the_sphere() -> None:
    directions, angles = _map_directions(32, 64, device="cpu")
    assert angles.sum().item() == pytest.approx(4 * math.pi, rel=1e-3)
    assert torch.allclose((directions * angles[:, None]).sum(dim=0), torch.zeros(3), atol=1e-4)


def test_spherical_harmonics_of_a_half_bright_sky() -> None:
    directions, _ = _map_directions(32, 64, device="cpu")
    sky = (directions[:, 2] > 0).float().view(1, 32, 64, 1).expand(-1, -1, -1, 3)
    coefficients = _irradiance_harmonics(sky)[0]  # [9, 3]
    normals = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    light = _harmonic_basis(normals) @ coefficients
    # Irradiance over π of a white half sphere is (1 + cos) / 2.
    assert torch.allclose(light[:, 0], torch.tensor([1.0, 0.5, 0.0]), atol=0.01)


def test_sample_environment_by_direction() -> None:
    directions, _ = _map_directions(16, 32, device="cpu")
    maps = directions.view(1, 16, 32, 3).repeat(2, 1, 1, 1)
    maps[1] = 5.0
    read = sample_environment(maps, directions, torch.zeros(len(directions), dtype=torch.int64))
    assert torch.allclose(read, directions, atol=1e-4)
    assert (sample_environment(maps, directions, torch.ones(len(directions), dtype=torch.int64)) == 5).all()
    blurred = _blur_maps(maps, power=100.0, size_hw=(16, 32))[0].view(-1, 3)
    assert (F.normalize(blurred, dim=1) * directions).sum(dim=1).min() > 0.99


def test_sun_is_split_from_the_environment() -> None:
    directions, angles = _map_directions(32, 64, device="cpu")
    maps = torch.ones(1, 32 * 64, 3)
    spot = 300
    maps[0, spot] = 1000.0
    rest, direction, color = _split_sun(maps.view(1, 32, 64, 3))
    assert (direction[0] * directions[spot]).sum() > 0.99
    assert rest.max() < 10
    assert color[0, 0].item() == pytest.approx(1000 * angles[spot].item() / math.pi, rel=0.05)
    flat, _, nothing = _split_sun(torch.ones(1, 32, 64, 3))
    assert nothing.abs().max() == 0
    assert torch.equal(flat, torch.ones(1, 32, 64, 3))


def test_sampled_lights_are_finite_and_about_as_bright_as_each_other() -> None:
    for environments in (torch.zeros(0, 64, 128, 3), torch.rand(3, 64, 128, 3) ** 4 * 50):
        lights = sample_lights(environments, 12, rng=rng(1), tint=torch.rand(12, 3))
        assert torch.allclose(lights.key_direction.norm(dim=1), torch.ones(12), atol=1e-5)
        assert (lights.key_direction[:, 2] > 0).all()
        up = torch.tensor([[0.0, 0.0, 1.0]]).expand(12, 3)
        light = lights.ambient(up, torch.arange(12))
        assert torch.isfinite(light).all()
        assert light.min() > 0.05
        assert light.max() < 20
        assert lights.select(torch.tensor([4])).key_color.tolist() == lights.key_color[4:5].tolist()


def over_and_under() -> Meshes:
    """A small card above a wide floor card, both level."""
    points, faces = card()
    level = points[:, [0, 2, 1]]  # lies flat
    low, high = level * torch.tensor([4.0, 4.0, 1.0]), level + torch.tensor([0.0, 0.0, 1.0])
    return Meshes(
        vertices=torch.cat([low, high])[None],
        faces=torch.cat([faces, faces + 4])[None],
        present=torch.ones(1, 4, dtype=torch.bool),
        image_index=torch.tensor([0]),
        image_count=1,
    )


def test_shadow_falls_away_from_the_light() -> None:
    light = F.normalize(torch.tensor([[1.0, 0.0, 1.0]]), dim=1)
    shadow = render_shadow_map(over_and_under(), light, torch.zeros(1, 3), torch.tensor([2.5]), size=128)
    points = torch.tensor([[-1.0, 0.0, 0.02], [0.6, 0.0, 0.02], [0.0, 0.0, 1.02], [0.0, 0.0, 0.85]])
    image = torch.zeros(4, dtype=torch.int64)
    lit = shadow.soft_shadow(points, image, softness=torch.tensor([0.02]), rng=rng(), taps=8)
    # The card is 1 m up and the light at 45°, so its shadow lies 1 m to the other side.
    assert lit[0] < 0.05
    assert lit[1] > 0.95
    assert lit[2] > 0.95
    assert lit[3] < 0.05


def test_softer_lights_have_wider_penumbras() -> None:
    light = torch.tensor([[0.0, 0.0, 1.0]])
    shadow = render_shadow_map(over_and_under(), light, torch.zeros(1, 3), torch.tensor([2.5]), size=256)
    x = torch.linspace(-1.2, 1.2, 200)
    points = torch.stack([x, torch.zeros(200), torch.full((200,), 0.02)], dim=1)
    image = torch.zeros(200, dtype=torch.int64)
    gray = []
    for softness in (0.02, 0.3):
        lit = shadow.soft_shadow(points, image, softness=torch.tensor([softness]), rng=rng(), taps=16)
        gray.append(int(((lit > 0.1) & (lit < 0.9)).sum()))
    assert gray[1] > 2 * gray[0]


def test_ambient_occlusion_beneath_a_roof() -> None:
    one = torch.ones(1, 3)
    lights = Lights(
        harmonics=torch.ones(1, 9, 3),
        glossy=torch.ones(1, 32, 64, 3),
        rough=torch.ones(1, 16, 32, 3),
        key_direction=torch.tensor([[0.0, 0.0, 1.0]]),
        key_color=one,
        key_softness=torch.ones(1),
        fill_direction=one,
        fill_color=one,
        flash_color=one,
    )
    region = torch.zeros(1, 3), torch.tensor([2.5])
    around = render_ambient_occlusion(over_and_under(), lights, *region, directions=12, size=64, rng=rng())
    points = torch.tensor([[0.0, 0.0, 0.0], [1.8, 0.0, 0.0], [0.0, 0.0, 1.0]])
    up = torch.tensor([[0.0, 0.0, 1.0]]).expand(3, 3)
    share = around.visibility(points, up, torch.zeros(3, dtype=torch.int64))
    assert share[0].max() < 0.9 * share[1].min()
    assert share[2].min() > 0.95


def test_smooth_normals_of_a_sphere_point_outwards() -> None:
    points, faces = sphere()
    normals = vertex_normals(points[None], faces[None])[0]
    used = points[:, 2].abs() < 0.99
    assert (normals * F.normalize(points, dim=1)).sum(dim=1)[used].min() > 0.999


def test_exposure_depends_on_light_and_not_on_albedo() -> None:
    alpha = torch.ones(2, 1, 8, 8)
    albedo = torch.stack([torch.full((3, 8, 8), 0.6), torch.full((3, 8, 8), 0.06)])
    means = []
    for strength in (0.5, 40.0):
        image = tone_map(albedo * strength, alpha, albedo=albedo, target=torch.tensor([0.8, 0.8]), rng=rng())
        means.append(image.mean(dim=(1, 2, 3)))
    assert torch.allclose(means[0], means[1], atol=0.02)
    assert means[0][0] > means[0][1] + 0.3


def test_texture_lookup_reads_texels_and_wraps() -> None:
    texture = torch.randint(0, 256, (2, 32, 32, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pyramid = build_pyramid(texture)
    assert pyramid.sides.tolist() == [32, 16]
    row, column = torch.tensor([0, 5, 31]), torch.tensor([0, 9, 31])
    uv = torch.stack([(column + 0.5) / 32, 1 - (row + 0.5) / 32], dim=1)
    level = torch.zeros(3, dtype=torch.int64)
    for shift in (0.0, 1.0, -2.0):
        read = sample_texture(pyramid, torch.ones(3, dtype=torch.int64), level, uv + shift)
        assert torch.allclose(read * 255, texture[1, row, column].float(), atol=0.05)
    half = sample_texture(pyramid, torch.tensor([0]), torch.tensor([0]), torch.tensor([[1 / 32, 1 - 0.5 / 32]]))
    assert torch.allclose(half * 255, texture[0, 0, :2].float().mean(dim=0)[None], atol=0.05)


def test_smaller_levels_do_not_mix_in_the_color_of_holes() -> None:
    texture = torch.zeros(1, 32, 32, 4, dtype=torch.uint8)
    texture[:, ::2] = torch.tensor([200, 100, 50, 255], dtype=torch.uint8)
    pyramid = build_pyramid(texture)
    small = pyramid.texels[pyramid.starts[1] :]
    assert (small[:, :3].float() - torch.tensor([200.0, 100.0, 50.0])).abs().max() <= 1
    assert (small[:, 3].float() - 127.5).abs().max() <= 1
    assert torch.equal(pyramid.alpha, pyramid.texels[:, 3])


def test_levels_halve_the_texture_as_the_image_shrinks() -> None:
    uv = torch.tensor([[[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]]])
    faces = torch.tensor([[[0, 1, 2]]])
    corner = torch.tensor([[[0.0, 0.0, 1.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]])
    found = [int(face_levels(corner * size, faces, uv, side=512, levels=6)) for size in (512, 256, 128, 64, 1)]
    assert found == [0, 1, 2, 3, 5]


def test_patterns_follow_their_definitions() -> None:
    grid = torch.linspace(-0.5, 0.5, 41) + 0.0031
    x, z = torch.meshgrid(grid, grid, indexing="ij")
    rest = torch.stack([x.flatten(), torch.zeros(x.numel()), z.flatten()], dim=1)
    count = len(rest)
    frequency, angle, width, phase = 5.0, 0.4, 0.3, 0.2
    parameters = torch.tensor([[frequency, angle, width, phase]]).expand(count, 4)
    u = rest[:, 0] * math.cos(angle) + rest[:, 2] * math.sin(angle)
    v = rest[:, 2] * math.cos(angle) - rest[:, 0] * math.sin(angle)

    def fraction(t: torch.Tensor) -> torch.Tensor:
        return t - t.floor()

    stripe_u = (fraction(frequency * u + phase) < width).float()
    stripe_v = (fraction(frequency * v + phase) < width).float()
    off = torch.hypot(fraction(frequency * u + phase) - 0.5, fraction(frequency * v) - 0.5)
    expected = {
        Pattern.STRIPES: stripe_u,
        Pattern.CHECKS: (stripe_u + stripe_v) / 2,
        Pattern.DOTS: (off < width / 2).float(),
        Pattern.GRADIENT: torch.sigmoid(frequency * (rest[:, 2] - phase)),
    }
    for pattern, answer in expected.items():
        found = _pattern_weight(torch.full((count,), pattern), parameters, rest, torch.zeros(count))
        assert (found - answer).abs().mean() < 0.03, pattern
        assert ((found - answer).abs() < 0.01).float().mean() > 0.85, pattern
    for wide, low, high in ((0.1, 0.0, 0.15), (0.9, 0.85, 1.0)):
        parameters = torch.tensor([[frequency, angle, wide, phase]]).expand(count, 4)
        share = _pattern_weight(torch.full((count,), Pattern.NOISE), parameters, rest, torch.zeros(count)).mean()
        assert low <= share <= high
    assert (_pattern_weight(torch.zeros(count, dtype=torch.int64), parameters, rest, torch.zeros(count)) == 0).all()


def test_noise_is_smooth_and_fills_its_range() -> None:
    points = torch.rand(4000, 3, generator=torch.Generator().manual_seed(1)) * 40 - 20
    values = _value_noise(points)
    assert values.min() >= 0
    assert values.max() <= 1
    assert values.std() > 0.1
    assert (_value_noise(points + 1e-3) - values).abs().max() < 0.01
