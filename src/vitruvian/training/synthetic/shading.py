"""Shading: surface color, normals and the light that covered samples send to the camera.

    Fragments ──▶ albedo (texture x tint x pattern) ─┐
              └─▶ normals (smooth, folds in cloth) ──┴─▶ radiance = ambient + key light + fill + flash + highlights
    radiance of an image ──tone_map──▶ sRGB

Functions take flat lists of N fragments; lighting is in world axes, results are in camera axes (OpenCV).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.images.srgb import linear_to_srgb, srgb_to_linear
from vitruvian.training.synthetic.camera import Cameras
from vitruvian.training.synthetic.lighting import Lights, ShadowMap, sample_environment
from vitruvian.training.synthetic.materials import Pattern
from vitruvian.training.synthetic.people_batch import PeopleBatch
from vitruvian.training.synthetic.rasterizer import Fragments, Meshes
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.synthetic.textures import TexturePyramid, sample_texture


def _pattern_weight(pattern: Tensor, parameters: Tensor, rest: Tensor, footprint: Tensor) -> Tensor:
    """Weight of the second color: pattern [N], parameters [N, 4], rest positions [N, 3] -> [N] in 0..1.

    `footprint` [N] is the size of a sample in meters, to which edges are softened against aliasing.
    """
    frequency, angle, width, phase = parameters.unbind(1)
    x, _, z = rest.unbind(1)
    u = x * angle.cos() + z * angle.sin()
    v = z * angle.cos() - x * angle.sin()
    soft = (frequency * footprint).clamp(0.03, 1.0)
    along, across = frequency * u + phase, frequency * v
    stripe_u, stripe_v = _stripe(along, width, soft), _stripe(frequency * v + phase, width, soft)
    off_u, off_v = along - along.floor() - 0.5, across - across.floor() - 0.5
    dots = ((width / 2 - torch.hypot(off_u, off_v)) / soft + 0.5).clamp(0.0, 1.0)
    noisy = pattern == Pattern.NOISE
    speckle = torch.zeros_like(u)
    if bool(noisy.any()):
        value = _value_noise(rest[noisy] * frequency[noisy, None] + phase[noisy, None])
        speckle[noisy] = ((value - 1.0 + width[noisy]) * 5.0 + 0.5).clamp(0.0, 1.0)
    weight = torch.zeros_like(u)
    for number, value in (
        (Pattern.STRIPES, stripe_u),
        (Pattern.CHECKS, (stripe_u + stripe_v) / 2),
        (Pattern.DOTS, dots),
        (Pattern.NOISE, speckle),
        (Pattern.GRADIENT, torch.sigmoid(frequency * (z - phase))),
    ):
        weight = torch.where(pattern == number, value, weight)
    return weight


def _stripe(t: Tensor, width: Tensor, soft: Tensor) -> Tensor:
    """1 where frac(t) < width, with edges `soft` periods wide."""
    shifted = t - width / 2 + 0.5
    distance = (shifted - shifted.floor() - 0.5).abs()
    return ((width / 2 - distance) / soft + 0.5).clamp(0.0, 1.0)


def _value_noise(points: Tensor) -> Tensor:
    """Smooth noise with a lattice of 1: points [N, 3] -> [N] in 0..1."""
    cell = points.floor()
    t = points - cell
    t = t * t * (3.0 - 2.0 * t)
    corner = cell.long()  # [N, 3]
    total = torch.zeros(len(points), device=points.device)
    for offset in itertools.product((0, 1), repeat=3):
        at = torch.tensor(offset, device=points.device)
        total = total + torch.where(at > 0, t, 1 - t).prod(dim=1) * _lattice_hash(*(corner + at).unbind(1))
    return total


def _lattice_hash(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """A number in 0..1 for each lattice point."""
    mixed = ((x * 73856093) ^ (y * 19349663) ^ (z * 83492791)) & 0x7FFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 73244475) & 0x7FFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 73244475) & 0x7FFFFFFF
    return (mixed ^ (mixed >> 16)).float() / 2147483648.0


_SKIN_CLASSES = (3, 5, 6, 7, 8, 11, 12, 14, 15, 16, 17, 20, 21, 22, 24, 25, 28)
_HAIR_CLASS = 4
_CLOTH_CLASSES = (13, 23)
_FOLD_WAVES = 6


@dataclass(frozen=True)
class Surface:
    """Attributes of N fragments before lighting, as in a G-buffer."""

    person: Tensor  # [N] int64
    image_index: Tensor  # [N] int64
    part: Tensor  # [N] int64, one of the 29 classes
    albedo: Tensor  # [N, 3] linear
    gloss: Tensor  # [N]
    skin: Tensor  # [N] bool
    hair: Tensor  # [N] bool: hair, brows, lashes
    position: Tensor  # [N, 3] world
    normal: Tensor  # [N, 3] world, unit, toward the camera's side
    strand_normal: Tensor  # [N, 3] the same with the unevenness of hair, for light only
    view: Tensor  # [N, 3] world, unit, toward the camera


def vertex_normals(vertices: Tensor, faces: Tensor) -> Tensor:
    """Area-weighted smooth normals, [P, V, 3] and [P, F, 3] -> [P, V, 3]; zero where no face touches."""
    P, V, _ = vertices.shape
    corner = faces + torch.arange(P, device=faces.device)[:, None, None] * V  # [P, F, 3]
    flat = vertices.reshape(-1, 3)
    a, b, c = (flat[corner[..., i]] for i in range(3))  # [P, F, 3] each
    across = torch.linalg.cross(b - a, c - a).reshape(-1, 3)  # [P·F, 3]
    total = torch.zeros_like(flat)
    for i in range(3):
        total.index_add_(0, corner[..., i].flatten(), across)
    return F.normalize(total, dim=-1, eps=1e-12).view(P, V, 3)


@dataclass(frozen=True)
class Scene:
    """The people of a few images in the world of those, and how they are rendered."""

    people: PeopleBatch
    meshes: Meshes  # without transparent faces
    cameras: Cameras
    pyramid: TexturePyramid
    screen: Tensor  # [P, V, 3] positions in samples, and depth
    levels: Tensor  # [P, F] texture level of each face


def surface_attributes(
    scene: Scene, fragments: Fragments, *, normals: Tensor, samples: int, folds: float, rng: Rng
) -> Surface:
    """Compute color, material and normal of each fragment; `normals` [P, V, 3] world.

    `folds` is the typical slope of folds in clothes, 0 for none.
    """
    people, meshes, cameras = scene.people, scene.meshes, scene.cameras
    faces_each, materials_each = people.faces.shape[1], people.materials.texture.shape[1]
    person = fragments.face.div(faces_each, rounding_mode="floor")  # [N]
    image_index = meshes.image_index[person]
    part = people.face_class.flatten()[fragments.face].long()
    material = people.face_material.flatten()[fragments.face] + person * materials_each  # [N]
    cutout = people.materials.cutout.flatten()[material]
    gloss = people.materials.gloss.flatten()[material]
    skin = _is_in(part, _SKIN_CLASSES) & ~cutout & (gloss < 0.75)
    hair = cutout | (part == _HAIR_CLASS)

    rest = fragments.interpolate(people.rest_vertices)  # [N, 3]
    footprint = fragments.depth / cameras.focal[image_index] / samples
    albedo = _albedo(scene, fragments, material, rest, footprint)
    albedo = torch.where(
        skin[:, None], _skin_color(albedo, rest), albedo * (1 + 0.08 * (_value_noise(rest * 400.0) - 0.5))[:, None]
    )

    position = fragments.interpolate(meshes.vertices)  # [N, 3]
    view = F.normalize(cameras.position[image_index] - position, dim=1)
    normal = _front_normals(fragments, meshes, fragments.interpolate(normals), view)
    if folds > 0:
        cloth = _is_in(part, _CLOTH_CLASSES).nonzero()[:, 0]
        normal[cloth] = _fold_normals(normal[cloth], position[cloth], person[cloth], len(people), folds, rng)
    # A smooth normal may point away from the camera near the outline: clamp it to the visible hemisphere.
    away = (normal * view).sum(dim=1, keepdim=True).clamp_max(0.0)
    normal = F.normalize(normal - 1.001 * away * view, dim=1)
    strand_normal = normal.clone()
    strands = (part == _HAIR_CLASS).nonzero()[:, 0]
    albedo[strands], strand_normal[strands] = _hair_strands(
        albedo[strands], normal[strands], rest[strands], person[strands]
    )
    return Surface(person, image_index, part, albedo, gloss, skin, hair, position, normal, strand_normal, view)


def _is_in(part: Tensor, classes: tuple[int, ...]) -> Tensor:
    return torch.isin(part, torch.tensor(classes, device=part.device))


def _albedo(scene: Scene, fragments: Fragments, material: Tensor, rest: Tensor, footprint: Tensor) -> Tensor:
    """Linear surface color, [N, 3]."""
    materials = scene.people.materials
    texture = materials.texture.flatten()[material]  # [N]
    uv = (scene.people.face_uv.flatten(0, 1)[fragments.face] * fragments.weights[..., None]).sum(dim=1)  # [N, 2]
    textured = texture >= 0
    texel = sample_texture(scene.pyramid, texture.clamp_min(0), scene.levels.flatten()[fragments.face], uv)[:, :3]
    color = torch.where(textured[:, None], srgb_to_linear(texel), 1.0)
    weight = _pattern_weight(
        materials.pattern.flatten()[material], materials.pattern_param.flatten(0, 1)[material], rest, footprint
    )
    tint, tint2 = materials.tint.flatten(0, 1)[material], materials.tint2.flatten(0, 1)[material]
    return (color * (tint + (tint2 - tint) * weight[:, None])).clamp(0.0, 1.0)


def _skin_color(albedo: Tensor, rest: Tensor) -> Tensor:
    """Vary the color of skin: slow changes of redness, and fine grain."""
    blotches, grain = _value_noise(rest * 22.0) - 0.5, _value_noise(rest * 260.0) - 0.5
    red = torch.stack([0.03 * blotches, -0.10 * blotches, -0.08 * blotches], dim=1)
    return (albedo * (1 + red + 0.035 * grain[:, None])).clamp(0.0, 1.0)


def _hair_strands(albedo: Tensor, normal: Tensor, rest: Tensor, person: Tensor) -> tuple[Tensor, Tensor]:
    """Add strands to hair: streaks of color [n, 3], and normals [n, 3] that vary across the strands."""
    people = int(person.max()) + 1 if len(person) else 1
    count = torch.zeros(people, 1, device=rest.device).index_add_(0, person, torch.ones_like(rest[:, :1]))
    crown = torch.zeros(people, 3, device=rest.device).index_add_(0, person, rest) / count.clamp_min(1.0)
    x, y, z = (rest - crown[person]).unbind(1)
    # Strands fall from the crown: across them the angle about the crown changes, along them the rest.
    around = torch.atan2(x, y) + 0.04 * torch.sin(z * 70.0)
    at = torch.stack([around * 34.0, torch.hypot(x, y) * 25.0, z * 25.0], dim=1) + 17.0 * person[:, None]
    streak, locks = _value_noise(at) - 0.5, _value_noise(at * 0.27 + 5.0) - 0.5
    up = torch.tensor([[0.0, 0.0, 1.0]], device=rest.device).expand_as(normal)
    side = F.normalize(torch.linalg.cross(normal, up), dim=1, eps=1e-3)
    varied = F.normalize(normal + side * (0.5 * streak + 0.5 * locks)[:, None], dim=1)
    return (albedo * (1 + 0.7 * streak + 0.5 * locks)[:, None]).clamp(0.0, 1.0), varied


def _front_normals(fragments: Fragments, meshes: Meshes, smooth: Tensor, view: Tensor) -> Tensor:
    """Flip smooth normals [N, 3] to the side of the face that the camera sees."""
    flat = meshes.vertices.flatten(0, 1)
    a, b, c = (flat[fragments.corners[:, i]] for i in range(3))
    flat_normal = torch.linalg.cross(b - a, c - a)
    faces_away = (flat_normal * view).sum(dim=1, keepdim=True) < 0
    missing = (smooth * smooth).sum(dim=1, keepdim=True) < 1e-8
    normal = F.normalize(torch.where(missing, flat_normal, smooth), dim=1, eps=1e-12)
    return torch.where(faces_away, -normal, normal)


def _fold_normals(normal: Tensor, position: Tensor, person: Tensor, people: int, folds: float, rng: Rng) -> Tensor:
    """Perturb normals [n, 3] by folds: a few bent waves per person, of varying strength."""
    direction = F.normalize(
        rng.normal(0.0, 1.0, people, _FOLD_WAVES, 3) * torch.tensor([1.0, 1.0, 0.6], device=normal.device), dim=-1
    )
    count = 2 * math.pi / rng.log_uniform(0.045, 0.22, people, _FOLD_WAVES, 1)  # radians per meter
    wave = (direction * count)[person]  # [n, 6, 3]
    phase = rng.uniform(0.0, 2 * math.pi, people, _FOLD_WAVES)[person]
    slope = (folds * rng.log_uniform(0.3, 1.6, people, 1)).expand(-1, _FOLD_WAVES)[person]  # [n, 6]
    bend = 0.05 * torch.sin(position[:, [1, 2, 0]] * 13.0 + phase[:, :3]) + 0.02 * torch.sin(
        position[:, [2, 0, 1]] * 37.0
    )
    angle = (wave * (position + bend)[:, None]).sum(dim=-1) + phase  # [n, 6]
    strength = torch.stack([_value_noise(position * 6.0 + 7.0 * k) for k in range(3)], dim=1).repeat(1, 2)  # [n, 6]
    amount = slope * ((strength - 0.35) * 2.5).clamp(0.0, 1.5)
    # Folds are narrow ridges between wide valleys: the slope of exp(sin) rather than of sin.
    ridge = angle.cos() * (1.2 * angle.sin() - 0.4).exp() * 0.8
    gradient = ((amount * ridge)[..., None] * F.normalize(wave, dim=-1)).sum(dim=1)  # [n, 3]
    along = gradient - (gradient * normal).sum(dim=1, keepdim=True) * normal
    return F.normalize(normal - along, dim=1)


def shade_surface(surface: Surface, lights: Lights, *, key_light: Tensor, ambient_share: Tensor) -> Tensor:
    """Radiance toward the camera, [N, 3] linear.

    `key_light` [N] is the share of the key light that arrives, `ambient_share` [N, 3] that of the ambient light.
    """
    image_index, normal, albedo = surface.image_index, surface.strand_normal, surface.albedo
    # Light bounces between bright surfaces: their shadows are less dark.
    share = ambient_share / (1 - albedo * (1 - ambient_share)).clamp_min(0.05)
    mean_share = ambient_share.mean(dim=1, keepdim=True)
    received = lights.ambient(normal, image_index) * share

    wrap = torch.tensor([0.28, 0.10, 0.05], device=normal.device) * surface.skin[:, None]
    wrap = wrap + 0.25 * surface.hair[:, None]
    passed = torch.tensor([0.75, 1.0, 1.1], device=normal.device)
    arriving = torch.where(surface.skin[:, None], key_light[:, None] ** passed, key_light[:, None])
    key = lights.key_color[image_index] * _wrap_diffuse(normal, lights.key_direction[image_index], wrap)
    fill = lights.fill_color[image_index] * _wrap_diffuse(normal, lights.fill_direction[image_index], wrap + 0.3)
    received = received + key * arriving + fill * mean_share
    facing = (normal * surface.view).sum(dim=1, keepdim=True).clamp(0.0, 1.0)
    received = received + lights.flash_color[image_index] * facing

    radiance = albedo * received
    fuzz = (~surface.skin & ~surface.hair & (surface.gloss < 0.3)).float()[:, None]
    radiance = radiance + fuzz * 0.12 * (1 - facing) ** 4 * albedo.sqrt() * received
    return radiance + _highlights(surface, lights, facing, arriving, mean_share)


def _wrap_diffuse(normal: Tensor, direction: Tensor, wrap: Tensor) -> Tensor:
    """Wrapped diffuse cosine, [N, 3]."""
    cosine = (normal * direction).sum(dim=1, keepdim=True)
    return ((cosine + wrap) / (1 + wrap)).clamp_min(0.0) / (1 + wrap)


def _highlights(surface: Surface, lights: Lights, facing: Tensor, arriving: Tensor, mean_share: Tensor) -> Tensor:
    """Specular reflections of the lights (GGX lobes) and of the environment, [N, 3]."""
    image_index, normal, view = surface.image_index, surface.strand_normal, surface.view
    gloss = surface.gloss[:, None]
    rough = (0.68 - 0.58 * gloss).clamp(0.08, 0.8)
    rough = torch.where(surface.hair[:, None], rough.clamp_min(0.42), rough)
    base = 0.025 + 0.035 * gloss
    base = torch.where(surface.hair[:, None], 0.03 + 0.25 * surface.albedo, base)
    total = torch.zeros_like(surface.albedo)
    lamps = (
        (lights.key_direction[image_index], lights.key_color[image_index] * arriving),
        (lights.fill_direction[image_index], lights.fill_color[image_index] * mean_share),
        (view, lights.flash_color[image_index]),
    )
    for direction, color in lamps:
        half = F.normalize(direction + view, dim=1, eps=1e-6)
        incidence = (normal * direction).sum(dim=1, keepdim=True).clamp_min(0.0)
        grazing = (direction * half).sum(dim=1, keepdim=True).clamp_min(0.0)
        reflect = base + (1 - base) * (1 - grazing) ** 5
        tip = (normal * half).sum(dim=1, keepdim=True).clamp(0.0, 1.0)
        a2 = rough**4
        lobe = a2 / (tip**2 * (a2 - 1) + 1) ** 2  # π D: lights are over π already
        total = total + color * incidence * reflect * lobe * 0.25 / grazing.clamp_min(0.15) ** 2
    mirrored = 2 * (normal * view).sum(dim=1, keepdim=True) * normal - view
    sharp, blurred = (sample_environment(maps, mirrored, image_index) for maps in (lights.glossy, lights.rough))
    reflected = sharp + (blurred - sharp) * ((rough - 0.2) / 0.35).clamp(0.0, 1.0)
    edge = (1 - rough).clamp_min(0.05)
    reflect = base + (edge - base).clamp_min(0.0) * (1 - facing) ** 5 * (1 - 0.7 * rough)
    return total + reflected * reflect * mean_share**1.5


def tone_map(radiance: Tensor, alpha: Tensor, *, albedo: Tensor, target: Tensor, rng: Rng) -> Tensor:
    """Apply exposure, white balance and a tone curve to linear light, [B, 3, H, W] -> sRGB 0..1.

    Exposure depends on the light, not on the albedo, so that dark people stay dark: a white surface among the people
    (`alpha` [B, 1, H, W], `albedo` [B, 3, H, W] linear) comes out at about `target` [B], linear.
    """
    B = len(radiance)
    light = (radiance.mean(dim=1) + 1e-3) / (albedo.mean(dim=1) + 1e-2)  # [B, H, W]
    weight = alpha[:, 0].clamp_min(1e-6)
    mean = ((light.clamp_min(1e-4).log() * weight).sum(dim=(1, 2)) / weight.sum(dim=(1, 2))).exp()  # [B]
    gains = (rng.normal(0.0, 0.03, B, 3)).exp() * (target / mean)[:, None]
    exposed = radiance * gains[:, :, None, None]
    shoulder = rng.uniform(0.0, 1.0, B)[:, None, None, None]
    # Between a sensor that clips and a film-like curve with a toe and a shoulder.
    film = exposed * (2.51 * exposed + 0.03) / (exposed * (2.43 * exposed + 0.59) + 0.14)
    rolled = torch.where(exposed < 0.6, exposed, 1 - 0.4 * (-(exposed - 0.6).clamp_min(0.0) / 0.4).exp())
    mixed = rolled + (film - rolled) * 0.7 * shoulder
    return linear_to_srgb(mixed.clamp(0.0, 1.0)).clamp(0.0, 1.0)


def key_light_visibility(surface: Surface, shadow: ShadowMap, lights: Lights, *, rng: Rng, taps: int) -> Tensor:
    """Share of the key light that reaches each sample, [N] in 0..1."""
    texel = shadow.texel[surface.image_index][:, None]
    lifted = surface.position + surface.normal * (0.003 + texel)
    return shadow.soft_shadow(lifted, surface.image_index, softness=lights.key_softness, rng=rng, taps=taps)
