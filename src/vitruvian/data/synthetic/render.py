"""From people to pictures with ground truth.

    PeopleBatch ─place─▶ world ─camera─▶ rasterize ─▶ Hits ─▶ Surface ─light─▶ radiance ─resolve─▶ Pixels
                                                                      background ─▶ composite ─▶ degrade ─▶ Truth

Pictures are drawn a few at a time, so memory does not grow with the batch. Letters: P people, B pictures, V vertices,
F triangles, N covered samples, s samples a pixel side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.data.synthetic.background import Scenery, pixel_rays, sample_backgrounds
from vitruvian.data.synthetic.camera import Cameras, Placement, sample_cameras, sample_placement
from vitruvian.data.synthetic.chance import Chance
from vitruvian.data.synthetic.degrade import add_occluders, lens, sample_blur, sample_colour, sensor_and_file
from vitruvian.data.synthetic.filters import blur
from vitruvian.data.synthetic.lights import Lights, sample_lights
from vitruvian.data.synthetic.people import Pack, PeopleBatch
from vitruvian.data.synthetic.pieces import CLASS
from vitruvian.data.synthetic.raster import Cutouts, Hits, depth_map, find_hits, rasterize
from vitruvian.data.synthetic.shade import describe_surface, develop, key_light_share, light_surface, vertex_normals
from vitruvian.data.synthetic.shadows import Meshes, ShadowMap, Surroundings, draw_shadow_map, draw_surroundings
from vitruvian.data.synthetic.texture import TexturePyramid, build_pyramid, face_levels, linear_to_srgb, srgb_to_linear
from vitruvian.data.synthetic.truth import (
    Pixels,
    Truth,
    by_picture,
    display_albedo,
    keypoint_truth,
    masks_and_boxes,
    person_slots,
    resolve,
)
from vitruvian.errors import InputError


@dataclass(frozen=True)
class RenderOptions:
    """How pictures are drawn. Probabilities are per picture."""

    size_hw: tuple[int, int] = (384, 288)
    supersample: int = 2  # samples a pixel side
    chunk: int = 16  # pictures drawn together
    shadow_size: int = 256  # texels a side of the key light's map
    shadow_taps: int = 10
    surroundings: int = 10  # directions that the light from all around is gathered from
    surroundings_size: int = 72
    folds: float = 0.22  # typical slope of folds in clothes; 0: none
    ground_shadows: float = 0.6  # probability
    occluders: float = 0.1  # probability
    camera_effects: bool = True  # colour looks, blur, noise and JPEG

    def __post_init__(self) -> None:
        if min(self.size_hw) < 8 or self.supersample < 1 or self.chunk < 1:
            raise InputError(
                f"RenderOptions: expected sides of at least 8 pixels, supersample and chunk of at least 1, got size_hw="
                f"{self.size_hw}, supersample={self.supersample}, chunk={self.chunk}. Raise the small ones."
            )


def render(
    people: PeopleBatch,
    pack: Pack | None = None,
    *,
    generator: torch.Generator,
    pictures: int | None = None,
    options: RenderOptions | None = None,
    placement: Placement | None = None,
    cameras: Cameras | None = None,
    lights: Lights | None = None,
    backgrounds: Tensor | None = None,
    pyramid: TexturePyramid | None = None,
) -> Truth:
    """Draw P people into B `pictures` (default: one each) on the device that holds them.

    What is not given is drawn at random: where people stand, cameras, lights, and backgrounds [B, 3, H, W] sRGB.
    `pyramid` is `build_pyramid(pack.textures)`: pass it when drawing many batches, so that it is built once. Without a
    pack everything is plain colour in made-up scenery.
    """
    options = options or RenderOptions()
    device = people.vertices.device
    # Geometry needs all digits, also when a training loop around it works in half precision.
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        return _render(
            people,
            pack,
            chance=Chance(generator, device),
            pictures=pictures,
            options=options,
            placement=placement,
            cameras=cameras,
            lights=lights,
            backgrounds=backgrounds,
            pyramid=pyramid,
        )


def _render(
    people: PeopleBatch,
    pack: Pack | None,
    *,
    chance: Chance,
    pictures: int | None,
    options: RenderOptions,
    placement: Placement | None,
    cameras: Cameras | None,
    lights: Lights | None,
    backgrounds: Tensor | None,
    pyramid: TexturePyramid | None,
) -> Truth:
    device = chance.device
    if pyramid is None:
        no_textures = torch.zeros(0, 16, 16, 4, dtype=torch.uint8, device=device)
        pyramid = build_pyramid(no_textures if pack is None else pack.textures.to(device))
    scenery = Scenery.nothing() if pack is None else Scenery(pack.environments, pack.backgrounds)
    if placement is None:
        placement = sample_placement(len(people), pictures or len(people), chance=chance)
    B = placement.pictures
    if cameras is None:
        cameras = sample_cameras(
            people.keypoints,
            placement,
            height=people.height,
            size_hw=options.size_hw,
            chance=chance,
            known=people.keypoint_known,
        )
    if cameras.size_hw != options.size_hw:
        raise InputError(
            f"cameras: expected pictures of {options.size_hw}, got {cameras.size_hw}. Give both the same size_hw."
        )
    slot = person_slots(placement.picture)
    most = int(slot.max()) + 1
    drawn = []
    for start in range(0, B, options.chunk):
        index = torch.arange(start, min(start + options.chunk, B), device=device)
        behind = (
            sample_backgrounds(scenery, cameras.pick(index), chance=chance)
            if backgrounds is None
            else backgrounds[index]
        )
        light = lights.pick(index) if lights is not None else _matching_lights(scenery, behind, chance)
        scene = _Scene.of(people, placement, cameras, index, pyramid=pyramid)
        drawn.append(_draw(scene, light, behind, scenery, most=most, options=options, chance=chance))
    return Truth.joined(drawn)


def _matching_lights(scenery: Scenery, backgrounds: Tensor, chance: Chance) -> Lights:
    tint = srgb_to_linear(backgrounds).mean(dim=(2, 3))  # [B, 3]
    return sample_lights(scenery.environments, len(backgrounds), chance=chance, tint=tint)


@dataclass(frozen=True)
class _Scene:
    """The people of a few pictures, placed; `number` [p] are their indices in the whole batch."""

    people: PeopleBatch
    meshes: Meshes
    cameras: Cameras
    pyramid: TexturePyramid
    number: Tensor

    @classmethod
    def of(
        cls, people: PeopleBatch, placement: Placement, cameras: Cameras, index: Tensor, *, pyramid: TexturePyramid
    ) -> _Scene:
        first = int(index[0])
        mine = ((placement.picture >= first) & (placement.picture < first + len(index))).nonzero()[:, 0]  # [p]
        some = _picked(people, mine)
        local = Placement(placement.picture[mine] - first, placement.yaw[mine], placement.offset[mine], len(index))
        meshes = Meshes(
            vertices=local.place(some.vertices),
            faces=some.faces,
            present=(some.face_class > 0) & ~_glass(some),
            picture=local.picture,
            pictures=len(index),
        )
        some = replace(some, keypoints=local.place(some.keypoints))
        return cls(some, meshes, cameras.pick(index), pyramid, mine)


def _picked(record: Any, index: Tensor) -> Any:
    """Rows of people: every tensor of a dataclass that has people first, and of the dataclasses in it."""
    changes: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            changes[field.name] = value if field.name == "keypoint_known" else value[index]
        else:
            changes[field.name] = _picked(value, index)
    return replace(record, **changes)


def _draw(
    scene: _Scene,
    lights: Lights,
    backgrounds: Tensor,
    scenery: Scenery,
    *,
    most: int,
    options: RenderOptions,
    chance: Chance,
) -> Truth:
    """Draw the pictures of one chunk."""
    people, meshes, cameras = scene.people, scene.meshes, scene.cameras
    s = options.supersample
    H, W = options.size_hw
    B = meshes.pictures
    in_camera = cameras.to_camera(meshes.vertices, meshes.picture)  # [P, V, 3]
    screen = cameras.project(in_camera, meshes.picture, samples=s)  # [P, V, 3]
    side, count = int(scene.pyramid.sides[0]), len(scene.pyramid.sides)
    levels = face_levels(screen, meshes.faces, people.face_uv, side=side, levels=count)  # [P, F]
    cutouts = _cutouts(people, scene.pyramid, levels, samples=s, seed=chance.seed())
    ids = rasterize(
        screen,
        meshes.faces,
        present=meshes.present,
        picture=meshes.picture,
        pictures=B,
        size_hw=(H * s, W * s),
        cutouts=cutouts,
    )  # [B, sH, sW]
    hits = find_hits(ids, screen, meshes.faces)
    pixels, shadow, around = _light(scene, hits, lights, levels, cutouts, options, chance)

    depth = torch.full((B * H * W * s * s,), math.inf, device=screen.device)
    depth[hits.sample] = hits.depth
    pixels = _behind_glass(scene, screen, pixels, depth.view(B, H * s, W * s), chance)
    points = cameras.to_camera(people.keypoints, meshes.picture)  # [P, 308, 3]
    keypoints = keypoint_truth(
        people, points, cameras, picture=meshes.picture, depth=depth.view(B, H * s, W * s), samples=s
    )

    ground = _ground_light(cameras, shadow, around, lights, chance)  # [B, 3, H, W]
    often = chance.flip(options.ground_shadows, B)[:, None, None, None]
    backgrounds = torch.where(often, linear_to_srgb(srgb_to_linear(backgrounds) * ground), backgrounds)
    slot = person_slots(meshes.picture)
    masks, boxes = masks_and_boxes(pixels.slots, most)
    image, foreground, alpha = _composite(pixels, backgrounds, options, chance)
    truth = Truth(
        image=image,
        alpha=alpha,
        foreground=foreground,
        albedo=display_albedo(pixels),
        normals=pixels.normals,
        pointmap=pixels.pointmap,
        parts=pixels.parts,
        intrinsics=cameras.intrinsics,
        scale=cameras.scale,
        keypoints=by_picture(keypoints, meshes.picture, slot, pictures=B, most=most, empty=0.0),
        boxes_xywh=boxes,
        instance_masks=masks,
        person_index=by_picture(scene.number, meshes.picture, slot, pictures=B, most=most, empty=-1),
    )
    if options.occluders > 0:
        truth = add_occluders(truth, scenery, chance=chance, often=options.occluders)
    if options.camera_effects:
        truth = lens(truth, chance=chance)
        truth = replace(truth, image=sensor_and_file(truth.image, chance=chance))
    return truth


def _glass(people: PeopleBatch) -> Tensor:
    """Which faces are window glass, [P, F] bool."""
    return people.materials.clear.gather(1, people.face_material) & (people.face_class > 0)


def _behind_glass(scene: _Scene, screen: Tensor, pixels: Pixels, depth: Tensor, chance: Chance) -> Pixels:
    """Lay lenses over what was drawn without them: they tell the part, dim a little and reflect a little.

    `depth` [B, sH, sW] of what was drawn; normals, points and albedo stay those of the eyes behind.
    """
    meshes = scene.meshes
    B, H, W = pixels.parts.shape
    s = depth.shape[1] // H
    glass = _glass(scene.people)
    ids = rasterize(
        screen, meshes.faces, present=glass, picture=meshes.picture, pictures=B, size_hw=(H * s, W * s)
    )  # [B, sH, sW]
    in_front = depth_map(ids, screen, meshes.faces, empty=math.inf) < depth
    share = F.avg_pool2d(in_front[:, None].float(), s)  # [B, 1, H, W]
    bright = pixels.radiance.flatten(1).mean(dim=1) / pixels.alpha.flatten(1).mean(dim=1).clamp_min(1e-3)  # [B]
    haze = (chance.uniform(0.0, 0.5, B) ** 2 * bright)[:, None, None, None]
    return replace(
        pixels,
        radiance=pixels.radiance * (1 - 0.1 * share) + haze * share * (pixels.alpha > 0),
        parts=torch.where((share[:, 0] >= 0.5) & (pixels.parts > 0), CLASS["Eyeglass"], pixels.parts),
    )


def _cutouts(people: PeopleBatch, pyramid: TexturePyramid, levels: Tensor, *, samples: int, seed: int) -> Cutouts:
    """The alpha textures of every face that has holes."""
    materials = people.materials
    texture = materials.texture.gather(1, people.face_material).flatten()  # [P·F]
    holey = materials.cutout.gather(1, people.face_material).flatten() & (texture >= 0)
    level = levels.flatten()
    return Cutouts(
        uv=people.face_uv.flatten(0, 1),
        base=torch.where(holey, pyramid.base(texture.clamp_min(0), level), -1),
        side=pyramid.sides[level],
        texels=pyramid.alpha,
        samples=samples,
        seed=seed,
    )


def _light(
    scene: _Scene, hits: Hits, lights: Lights, levels: Tensor, cutouts: Cutouts, options: RenderOptions, chance: Chance
) -> tuple[Pixels, ShadowMap, Surroundings]:
    """Light the covered samples and average them into pixels."""
    people, meshes, cameras = scene.people, scene.meshes, scene.cameras
    normals = vertex_normals(meshes.vertices, meshes.faces)  # [P, V, 3]
    surface = describe_surface(
        hits,
        people,
        meshes,
        cameras,
        normals=normals,
        pyramid=scene.pyramid,
        levels=levels,
        samples=options.supersample,
        folds=options.folds,
        chance=chance,
    )
    centre, radius = _lit_region(surface.position, surface.picture, meshes)
    shadow = draw_shadow_map(
        meshes,
        lights.key_direction,
        centre=centre,
        radius=radius,
        size=options.shadow_size,
        cutouts=replace(cutouts, samples=1),
    )
    around = draw_surroundings(
        meshes,
        lights,
        centre=centre,
        radius=radius,
        directions=options.surroundings,
        size=options.surroundings_size,
        chance=chance,
    )
    V = meshes.vertices.shape[1]
    share = around.share(meshes.vertices.flatten(0, 1), normals.flatten(0, 1), meshes.picture.repeat_interleave(V))
    radiance = light_surface(
        surface,
        lights,
        key_light=key_light_share(surface, shadow, lights, chance=chance, taps=options.shadow_taps),
        ambient_share=hits.mix(share.view(-1, V, 3)),
    )
    pixels = resolve(hits, surface, radiance, cameras, slot=person_slots(meshes.picture), samples=options.supersample)
    return pixels, shadow, around


def _lit_region(position: Tensor, picture: Tensor, meshes: Meshes) -> tuple[Tensor, Tensor]:
    """Centre [B, 3] and radius [B] of what a picture shows, with room for what shades it."""
    B = meshes.pictures
    each = torch.bincount(picture, minlength=B)  # samples come picture by picture
    low = torch.segment_reduce(position, "min", lengths=each, initial=math.inf)  # [B, 3]
    high = torch.segment_reduce(position, "max", lengths=each, initial=-math.inf)
    empty = (low > high).any(dim=1, keepdim=True)
    low, high = torch.where(empty, 0.0, low), torch.where(empty, 1.0, high)
    return (low + high) / 2, (high - low).norm(dim=1) / 2 * 1.05 + 0.05


def _ground_light(cameras: Cameras, shadow: ShadowMap, around: Surroundings, lights: Lights, chance: Chance) -> Tensor:
    """How much darker the ground is where people keep light away, [B, 3, H, W] in 0..1; 1 where no ground is seen."""
    H, W = cameras.size_hw
    B = len(cameras.intrinsics)
    rays = pixel_rays(cameras)  # [B, H·W, 3]
    position = cameras.position[:, None]  # [B, 1, 3]
    reach = -position[..., 2] / torch.where(rays[..., 2].abs() < 1e-6, 1e-6, rays[..., 2])  # [B, H·W]
    ground = position + rays * reach[..., None]  # [B, H·W, 3]
    away = (ground - shadow.centre[:, None])[..., :2].norm(dim=-1)
    close = (reach > 0) & (rays[..., 2] < 0) & (away < 3.0 * shadow.radius[:, None])
    picture, pixel = close.nonzero(as_tuple=True)  # [n]
    points = ground[picture, pixel]  # [n, 3]
    up = torch.tensor([0.0, 0.0, 1.0], device=points.device).expand_as(points)
    share = around.share(points, up, picture)
    lit = shadow.soft_light(points + 0.01 * up, picture, softness=lights.key_softness, chance=chance, taps=8)[:, None]
    ambient = lights.ambient(up, picture) + 0.05
    key = lights.key_colour[picture] * lights.key_direction[picture, 2:].clamp_min(0.0)
    darker = (ambient * share + key * lit) / (ambient + key)  # [n, 3]
    # Fade out towards the rim of the shadow maps, where nothing is known.
    rim = ((3.0 * shadow.radius[picture] - away[picture, pixel]) / shadow.radius[picture]).clamp(0.0, 1.0)[:, None]
    result = torch.ones(B, H * W, 3, device=points.device)
    result[picture, pixel] = 1 + (darker - 1) * rim
    return result.view(B, H, W, 3).permute(0, 3, 1, 2)


def _composite(
    pixels: Pixels, backgrounds: Tensor, options: RenderOptions, chance: Chance
) -> tuple[Tensor, Tensor, Tensor]:
    """Expose the people and put them before the backgrounds: pictures, premultiplied people [B, 3, H, W], alpha."""
    B = len(backgrounds)
    surrounding = srgb_to_linear(backgrounds).mean(dim=(1, 2, 3))  # [B]
    target = 0.95 * chance.normal(0.0, 0.35, B).exp() * (surrounding / 0.2).clamp(0.15, 4.0) ** 0.2
    people = develop(pixels.radiance, pixels.alpha, albedo=pixels.albedo, target=target, chance=chance)
    if not options.camera_effects:
        foreground = people * pixels.alpha
        return foreground + (1 - pixels.alpha) * backgrounds, foreground, pixels.alpha
    look = sample_colour(B, chance=chance)
    people, backgrounds = look(people), look(backgrounds)
    kernels = sample_blur(B, chance=chance, reach=2.5 * options.size_hw[0] / 384, often=0.25)
    moved = blur(torch.cat([people * pixels.alpha, pixels.alpha], dim=1), kernels)  # [B, 4, H, W]
    foreground, alpha = moved[:, :3], moved[:, 3:].clamp(0.0, 1.0)
    return foreground + (1 - alpha) * backgrounds, foreground, alpha
