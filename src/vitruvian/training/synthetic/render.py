"""From people to images with ground truth.

    PeopleBatch ─place─▶ world ─camera─▶ rasterize ─▶ Fragments ─▶ Surface ─light─▶ radiance ─resolve─▶ Pixels
                                                                background ─▶ composite ─▶ camera effects ─▶ GroundTruth

Axes are the camera's (OpenCV): x right, y down, z forward. Normals point out of the surface: a surface facing the
camera has z = -1.
The center of pixel (x, y) is the point (x, y) for keypoints and intrinsics; boxes, as in COCO, end between pixels.

Each pixel has s·s samples. Color and alpha are averages. Part, normal and point come from the part that most covered
samples show (the nearest one where two tie), and exist where at least half of the samples are covered.
Images are rendered in chunks, so that memory does not grow with the batch. Letters: P people, B images, M the most
people in one image, V vertices, F triangles, N covered samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.human import PART_INDEX
from vitruvian.images.boxes import mask_boxes
from vitruvian.images.srgb import linear_to_srgb, srgb_to_linear
from vitruvian.images.types import SizeHW
from vitruvian.training.synthetic.asset_pack import AssetPack, Scenery
from vitruvian.training.synthetic.backgrounds import colored_noise, photo_crops, sample_backgrounds, soft_shape
from vitruvian.training.synthetic.camera import (
    Cameras,
    PeoplePlacement,
    person_ranks,
    points_from_depth,
    rotate,
    sample_cameras,
    sample_placement,
)
from vitruvian.training.synthetic.camera_effects import add_noise_and_jpeg, blur, sample_blur, sample_grading
from vitruvian.training.synthetic.lighting import (
    AmbientOcclusion,
    Lights,
    ShadowMap,
    render_ambient_occlusion,
    render_shadow_map,
    sample_lights,
)
from vitruvian.training.synthetic.people_batch import PeopleBatch
from vitruvian.training.synthetic.rasterizer import Cutouts, Fragments, Meshes, depth_map, find_fragments, rasterize
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.synthetic.shading import (
    Scene,
    Surface,
    key_light_visibility,
    shade_surface,
    surface_attributes,
    tone_map,
    vertex_normals,
)
from vitruvian.training.synthetic.textures import TexturePyramid, build_pyramid, face_levels
from vitruvian.training.tensor_batch import TensorBatch

_UNKNOWN, _HIDDEN, VISIBLE = 0.0, 1.0, 2.0  # states of keypoints
_ONE_SURFACE = 3.0  # pixel sides: samples of a pixel whose depths differ by less belong to one slanted surface
_LABELS_PER_PERSON = 32


@dataclass(frozen=True)
class RenderOptions:
    """How images are rendered. Probabilities are per image."""

    size_hw: SizeHW = (384, 288)
    supersample: int = 2  # samples per pixel side
    chunk: int = 16  # images rendered together
    shadow_size: int = 256  # texels per side of the key light's shadow map
    shadow_taps: int = 10
    surroundings: int = 10  # directions of the ambient light
    surroundings_size: int = 72  # texels per side of their shadow maps
    folds: float = 0.22  # typical slope of folds in clothes; 0: none
    ground_shadows: float = 0.6  # probability
    occluders: float = 0.1  # probability
    camera_effects: bool = True  # color grading, blur, noise and JPEG

    def __post_init__(self) -> None:
        if min(self.size_hw) < 8 or self.supersample < 1 or self.chunk < 1:
            raise InputError(
                f"RenderOptions: expected sides of at least 8 pixels, supersample and chunk of at least 1, got size_hw="
                f"{self.size_hw}, supersample={self.supersample}, chunk={self.chunk}. Raise the small ones."
            )


DEFAULT_OPTIONS = RenderOptions()


@dataclass(frozen=True)
class GroundTruth(TensorBatch):
    """B images with their ground truth; zero where there is no person."""

    image: Tensor  # [B, 3, H, W] float32 0..1 sRGB
    alpha: Tensor  # [B, 1, H, W] share of the pixel that people cover
    foreground: Tensor  # [B, 3, H, W] sRGB x alpha: image = foreground + (1 - alpha) x background, before noise
    albedo: Tensor  # [B, 3, H, W] surface color without light, sRGB
    normals: Tensor  # [B, 3, H, W] unit, camera axes
    pointmap: Tensor  # [B, 3, H, W] meters, camera axes
    parts: Tensor  # [B, H, W] uint8, one of the 29 classes; 0 background
    intrinsics: Tensor  # [B, 3, 3] pixels
    scale: Tensor  # [B, 1] canonical focal length / actual focal length
    keypoints: Tensor  # [B, M, 308, 3] x, y pixels, and 0 unknown or outside, 1 hidden, 2 visible
    boxes_xywh: Tensor  # [B, M, 4] pixels, around the visible part; zero for absent people
    instance_masks: Tensor  # [B, M, H, W] bool
    stature_m: Tensor  # [B, M] in the rest pose; zero for absent people


def render(
    people: PeopleBatch,
    pack: AssetPack,
    *,
    generator: torch.Generator,
    image_count: int | None = None,
    placement: PeoplePlacement | None = None,
    cameras: Cameras | None = None,
    options: RenderOptions = DEFAULT_OPTIONS,
    lights: Lights | None = None,
    backgrounds: Tensor | None = None,
    pyramid: TexturePyramid | None = None,
) -> GroundTruth:
    """Render P people into B images (default: one each) on the device that holds them.

    Placement, cameras, lights and backgrounds [B, 3, H, W] sRGB that are None are random. `pyramid` is
    `build_pyramid(pack.textures)`: pass it when rendering many batches, so that it is built once.
    """
    device = people.vertices.device
    rng = Rng(generator, device)
    # Geometry is computed in full precision, also in a training loop that runs in half precision.
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        pyramid = pyramid or build_pyramid(pack.textures)
        if placement is None:
            placement = sample_placement(len(people), image_count or len(people), rng=rng)
        if cameras is None:
            known, size_hw = people.keypoint_known, options.size_hw
            cameras = sample_cameras(
                people.keypoints, placement, stature_m=people.stature_m, size_hw=size_hw, rng=rng, known=known
            )
        max_people = int(person_ranks(placement.image_index).max()) + 1
        chunks = []
        for start in range(0, placement.image_count, options.chunk):
            index = torch.arange(start, min(start + options.chunk, placement.image_count), device=device)
            if backgrounds is None:
                background = sample_backgrounds(pack.scenery, cameras.select(index), rng=rng)
            else:
                background = backgrounds[index]
            if lights is None:
                tint = srgb_to_linear(background).mean(dim=(2, 3))  # [B, 3]
                light = sample_lights(pack.scenery.environments, len(background), rng=rng, tint=tint)
            else:
                light = lights.select(index)
            scene = _place(people, placement, cameras, index, pyramid, options.supersample)
            chunks.append(_render_chunk(scene, light, background, pack.scenery, max_people, options, rng))
        return GroundTruth.cat(chunks)


def _place(
    people: PeopleBatch,
    placement: PeoplePlacement,
    cameras: Cameras,
    index: Tensor,
    pyramid: TexturePyramid,
    samples: int,
) -> Scene:
    """Place the people of images `index`, which are consecutive."""
    first = int(index[0])
    inside = (placement.image_index >= first) & (placement.image_index < first + len(index))
    chosen = inside.nonzero()[:, 0]  # [p]
    people, local, cameras = people.select(chosen), placement.select(chosen), cameras.select(index)
    people = replace(people, vertices=local.place(people.vertices), keypoints=local.place(people.keypoints))
    present = (people.face_class > 0) & ~people.clear
    meshes = Meshes(people.vertices, people.faces, present, local.image_index - first, len(index))
    in_camera = cameras.to_camera(meshes.vertices, meshes.image_index)  # [P, V, 3]
    screen = cameras.project(in_camera, meshes.image_index, samples=samples)  # [P, V, 3]
    side, count = int(pyramid.sides[0]), len(pyramid.sides)
    levels = face_levels(screen, meshes.faces, people.face_uv, side=side, levels=count)  # [P, F]
    return Scene(people, meshes, cameras, pyramid, screen, levels)


def _render_chunk(
    scene: Scene,
    lights: Lights,
    backgrounds: Tensor,
    scenery: Scenery,
    max_people: int,
    options: RenderOptions,
    rng: Rng,
) -> GroundTruth:
    """Render the images of one chunk."""
    people, meshes, cameras, screen = scene.people, scene.meshes, scene.cameras, scene.screen
    s = options.supersample
    H, W = options.size_hw
    B = meshes.image_count
    cutouts = _cutouts(scene, samples=s, seed=rng.seed())
    fragments = find_fragments(rasterize(meshes, screen, (H * s, W * s), cutouts), screen, meshes.faces)
    pixels, shadow, ambient_occlusion = _light(scene, fragments, lights, cutouts, options, rng)

    depth = torch.full((B * H * W * s * s,), math.inf, device=screen.device)
    depth[fragments.sample] = fragments.depth
    depth = depth.view(B, H * s, W * s)
    pixels = _add_lenses(scene, pixels, depth, rng)
    keypoints = _keypoint_truth(scene, depth, samples=s)

    ground = _ground_light(cameras, shadow, ambient_occlusion, lights, rng)  # [B, 3, H, W]
    shaded = rng.bernoulli(options.ground_shadows, B)[:, None, None, None]
    backgrounds = torch.where(shaded, linear_to_srgb(srgb_to_linear(backgrounds) * ground), backgrounds)
    rank = person_ranks(meshes.image_index)
    masks = pixels.ranks[:, None] == torch.arange(max_people, device=screen.device)[:, None, None]  # [B, M, H, W]
    image, foreground, alpha = _composite(pixels, backgrounds, options, rng)

    def by_image(values: Tensor) -> Tensor:
        """Sort rows of people into images, [P, ...] -> [B, M, ...]; zero where an image has fewer people."""
        table = values.new_zeros(B, max_people, *values.shape[1:])
        table[meshes.image_index, rank] = values
        return table

    albedo = linear_to_srgb(pixels.albedo.clamp(0.0, 1.0)).clamp(0.0, 1.0) * (pixels.parts > 0)[:, None]
    truth = GroundTruth(
        image=image,
        alpha=alpha,
        foreground=foreground,
        albedo=albedo,
        normals=pixels.normals,
        pointmap=pixels.pointmap,
        parts=pixels.parts,
        intrinsics=cameras.intrinsics,
        scale=cameras.scale,
        keypoints=by_image(keypoints),
        boxes_xywh=_boxes_xywh(masks),
        instance_masks=masks,
        stature_m=by_image(people.stature_m),
    )
    if options.occluders > 0:
        truth = _add_occluders(truth, scenery, rng=rng, probability=options.occluders)
    if options.camera_effects:  # the lens blurs image, foreground and alpha alike
        kernels = sample_blur(B, rng=rng, reach=1.6, probability=0.6)
        blurred = blur(torch.cat([truth.image, truth.foreground, truth.alpha], dim=1), kernels)  # [B, 7, H, W]
        truth = replace(
            truth,
            image=add_noise_and_jpeg(blurred[:, :3], rng=rng, sharpen=0.35),
            foreground=blurred[:, 3:6],
            alpha=blurred[:, 6:].clamp(0.0, 1.0),
        )
    return truth


def _cutouts(scene: Scene, *, samples: int, seed: int) -> Cutouts:
    """Return the alpha textures of every face that has holes."""
    people, pyramid, level = scene.people, scene.pyramid, scene.levels.flatten()
    materials = people.materials
    texture = materials.texture.gather(1, people.face_material).flatten()  # [P·F]
    holey = materials.cutout.gather(1, people.face_material).flatten() & (texture >= 0)
    return Cutouts(
        uv=people.face_uv.flatten(0, 1),
        base=torch.where(holey, pyramid.base(texture.clamp_min(0), level), -1),
        side=pyramid.sides[level],
        texels=pyramid.alpha,
        samples=samples,
        seed=seed,
    )


def _light(
    scene: Scene, fragments: Fragments, lights: Lights, cutouts: Cutouts, options: RenderOptions, rng: Rng
) -> tuple[_Pixels, ShadowMap, AmbientOcclusion]:
    """Light the covered samples and average them into pixels."""
    meshes, samples = scene.meshes, options.supersample
    normals = vertex_normals(meshes.vertices, meshes.faces)  # [P, V, 3]
    surface = surface_attributes(scene, fragments, normals=normals, samples=samples, folds=options.folds, rng=rng)
    region = _lit_region(surface, meshes.image_count)
    cutouts = replace(cutouts, samples=1)
    shadow = render_shadow_map(meshes, lights.key_direction, *region, size=options.shadow_size, cutouts=cutouts)
    ambient_occlusion = render_ambient_occlusion(
        meshes, lights, *region, directions=options.surroundings, size=options.surroundings_size, rng=rng
    )
    V = meshes.vertices.shape[1]
    visibility = ambient_occlusion.visibility(
        meshes.vertices.flatten(0, 1), normals.flatten(0, 1), meshes.image_index.repeat_interleave(V)
    )
    radiance = shade_surface(
        surface,
        lights,
        key_light=key_light_visibility(surface, shadow, lights, rng=rng, taps=options.shadow_taps),
        ambient_share=fragments.interpolate(visibility.view(-1, V, 3)),
    )
    rank = person_ranks(meshes.image_index)
    pixels = _resolve(fragments, surface, radiance, scene.cameras, rank=rank, samples=samples)
    return pixels, shadow, ambient_occlusion


def _lit_region(surface: Surface, image_count: int) -> tuple[Tensor, Tensor]:
    """Return center [B, 3] and radius [B] of the visible surface of each image, with a margin for what shades it."""
    lengths = torch.bincount(surface.image_index, minlength=image_count)  # samples are sorted by image
    low = torch.segment_reduce(surface.position, "min", lengths=lengths, initial=math.inf)  # [B, 3]
    high = torch.segment_reduce(surface.position, "max", lengths=lengths, initial=-math.inf)
    empty = (low > high).any(dim=1, keepdim=True)
    low, high = torch.where(empty, 0.0, low), torch.where(empty, 1.0, high)
    return (low + high) / 2, (high - low).norm(dim=1) / 2 * 1.05 + 0.05


@dataclass(frozen=True)
class _Pixels:
    """Samples averaged into pixels: people only, without background."""

    radiance: Tensor  # [B, 3, H, W] linear, of the covered samples
    albedo: Tensor  # [B, 3, H, W] linear, of the covered samples
    alpha: Tensor  # [B, 1, H, W]
    parts: Tensor  # [B, H, W] uint8
    ranks: Tensor  # [B, H, W] int64: which person of the image, -1 none
    normals: Tensor  # [B, 3, H, W]
    pointmap: Tensor  # [B, 3, H, W]


def _resolve(
    fragments: Fragments, surface: Surface, radiance: Tensor, cameras: Cameras, *, rank: Tensor, samples: int
) -> _Pixels:
    """Average N samples into pixels; `radiance` [N, 3], `rank` [P] numbers the people of each image."""
    H, W = cameras.size_hw
    B = len(cameras)
    device = radiance.device
    # Rows of all images follow each other, and each image has a whole number of pixel rows.
    x, row = fragments.sample % (W * samples), fragments.sample.div(W * samples, rounding_mode="floor")
    pixel = row.div(samples, rounding_mode="floor") * W + x.div(samples, rounding_mode="floor")  # [N]
    per_pixel = samples * samples
    position = pixel * per_pixel + (row % samples) * samples + x % samples  # [N]
    label = rank[surface.person] * _LABELS_PER_PERSON + surface.part  # [N], never 0: part 0 is not rendered

    labels = torch.zeros(B * H * W * per_pixel, dtype=torch.int64, device=device)
    depths = torch.full((B * H * W * per_pixel,), math.inf, device=device)
    labels[position], depths[position] = label, fragments.depth
    labels, depths = labels.view(-1, per_pixel), depths.view(-1, per_pixel)  # [B·H·W, s·s]
    count = (labels > 0).sum(dim=1)  # [B·H·W]
    chosen = torch.where(2 * count >= per_pixel, _most_common(labels, depths), 0)
    nearest = torch.where(labels == chosen[:, None], depths, math.inf).amin(dim=1)

    side = fragments.depth / cameras.focal[surface.image_index]  # [N] meters
    same_surface = (label == chosen[pixel]) & (fragments.depth <= nearest[pixel] + 0.005 + _ONE_SURFACE * side)

    def add(index: Tensor, values: Tensor) -> Tensor:
        """Add rows of values [n, C] with the same index, [B·H·W, C]."""
        return torch.zeros(B * H * W, values.shape[1], device=device).index_add_(0, index, values)

    def as_image(values: Tensor) -> Tensor:
        """[B·H·W, C] -> [B, C, H, W]."""
        return values.view(B, H, W, -1).permute(0, 3, 1, 2).contiguous()

    index = pixel[same_surface]
    weight = add(index, torch.ones(len(index), 1, device=device)).clamp_min(1.0)  # [B·H·W, 1]
    inverse_depth = add(index, 1.0 / fragments.depth[same_surface][:, None]) / weight
    normals = rotate(surface.normal[same_surface], cameras.rotation[surface.image_index[same_surface]])
    share = count.clamp_min(1)[:, None]
    present = chosen > 0
    depth = torch.where(present, 1.0 / inverse_depth[:, 0].clamp_min(1e-9), 0.0).view(B, H, W)
    return _Pixels(
        radiance=as_image(add(pixel, radiance) / share),
        albedo=as_image(add(pixel, surface.albedo) / share),
        alpha=(count.float() / per_pixel).view(B, 1, H, W),
        parts=(chosen % _LABELS_PER_PERSON).byte().view(B, H, W),
        ranks=torch.where(present, chosen.div(_LABELS_PER_PERSON, rounding_mode="floor"), -1).view(B, H, W),
        normals=as_image(F.normalize(add(index, normals), dim=1, eps=1e-9)),
        pointmap=points_from_depth(depth, cameras.intrinsics),
    )


def _most_common(labels: Tensor, depths: Tensor) -> Tensor:
    """Return the label that most covered samples have, the nearer where two tie: [K, S] -> [K]."""
    votes = torch.stack([(labels == labels[:, j : j + 1]).sum(dim=1) for j in range(labels.shape[1])], dim=1)  # [K, S]
    score = torch.where(labels > 0, votes.float() * 1e4 - depths.clamp_max(1e3), -math.inf)
    return labels.gather(1, score.argmax(dim=1, keepdim=True))[:, 0]


def _add_lenses(scene: Scene, pixels: _Pixels, depth: Tensor, rng: Rng) -> _Pixels:
    """Render transparent lenses over pixels: they set the part, dim a little and reflect a little.

    `depth` [B, sH, sW] is that of the other faces; normals, points and albedo stay those of the eyes behind.
    """
    B, H, _ = pixels.parts.shape
    s = depth.shape[1] // H
    lenses = replace(scene.meshes, present=(scene.people.face_class > 0) & scene.people.clear)
    ids = rasterize(lenses, scene.screen, (depth.shape[1], depth.shape[2]))  # [B, sH, sW]
    in_front = depth_map(ids, scene.screen, lenses.faces, empty=math.inf) < depth
    share = F.avg_pool2d(in_front[:, None].float(), s)  # [B, 1, H, W]
    brightness = pixels.radiance.flatten(1).mean(dim=1) / pixels.alpha.flatten(1).mean(dim=1).clamp_min(1e-3)  # [B]
    haze = (rng.uniform(0.0, 0.5, B) ** 2 * brightness)[:, None, None, None]
    return replace(
        pixels,
        radiance=pixels.radiance * (1 - 0.1 * share) + haze * share * (pixels.alpha > 0),
        parts=torch.where((share[:, 0] >= 0.5) & (pixels.parts > 0), PART_INDEX["Eyeglass"], pixels.parts),
    )


def _keypoint_truth(scene: Scene, depth: Tensor, *, samples: int) -> Tensor:
    """Project keypoints and test their visibility: [P, 308, 3] (x, y, state).

    `depth` [B, s·H, s·W] is infinite where there is nothing. A point is visible if nothing is nearer than it by more
    than its tolerance, in at least one of the 3 x 3 samples around it.
    """
    people, cameras, image_index = scene.people, scene.cameras, scene.meshes.image_index
    H, W = cameras.size_hw
    points = cameras.to_camera(people.keypoints, image_index)  # [P, 308, 3]
    known = people.keypoint_known & torch.isfinite(points).all(dim=-1)  # [P, 308]
    points = torch.where(known[..., None], points, 1.0)
    fine = cameras.project(points, image_index, samples=samples)[..., :2]  # [P, 308, 2]
    x, y = ((fine + 0.5) / samples - 0.5).unbind(-1)
    inside = (x >= -0.5) & (x <= W - 0.5) & (y >= -0.5) & (y <= H - 0.5) & (points[..., 2] > 0)
    limit = points[..., 2] - people.keypoint_depth - 0.004
    visible = torch.zeros_like(inside)
    high, wide = depth.shape[1:]
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            column = (fine[..., 0].round().clamp(0, wide - 1).long() + dx).clamp(0, wide - 1)
            row = (fine[..., 1].round().clamp(0, high - 1).long() + dy).clamp(0, high - 1)
            visible = visible | (depth[image_index[:, None], row, column] >= limit)
    state = torch.where(known & inside, torch.where(visible, VISIBLE, _HIDDEN), _UNKNOWN)
    xy = torch.where(known[..., None], torch.stack([x, y], dim=-1), 0.0)
    return torch.cat([xy, state[..., None]], dim=-1)  # [P, 308, 3]


def _boxes_xywh(masks: Tensor) -> Tensor:
    """Return the boxes around masks [..., H, W], float32 [..., 4], zero if empty."""
    low, high = torch.split(mask_boxes(masks).float(), 2, dim=-1)
    return torch.cat([low, high - low], dim=-1)


def _ground_light(
    cameras: Cameras, shadow: ShadowMap, ambient_occlusion: AmbientOcclusion, lights: Lights, rng: Rng
) -> Tensor:
    """Return how much people darken the ground, [B, 3, H, W] in 0..1; 1 where no ground is visible."""
    H, W = cameras.size_hw
    B = len(cameras)
    rays = cameras.pixel_rays()  # [B, H·W, 3]
    position = cameras.position[:, None]  # [B, 1, 3]
    reach = -position[..., 2] / torch.where(rays[..., 2].abs() < 1e-6, 1e-6, rays[..., 2])  # [B, H·W]
    ground = position + rays * reach[..., None]  # [B, H·W, 3]
    away = (ground - shadow.center[:, None])[..., :2].norm(dim=-1)
    close = (reach > 0) & (rays[..., 2] < 0) & (away < 3.0 * shadow.radius[:, None])
    image_index, pixel = close.nonzero(as_tuple=True)  # [n]
    points = ground[image_index, pixel]  # [n, 3]
    up = torch.tensor([0.0, 0.0, 1.0], device=points.device).expand_as(points)
    visibility = ambient_occlusion.visibility(points, up, image_index)
    lit = shadow.soft_shadow(points + 0.01 * up, image_index, softness=lights.key_softness, rng=rng, taps=8)[:, None]
    ambient = lights.ambient(up, image_index) + 0.05
    key = lights.key_color[image_index] * lights.key_direction[image_index, 2:].clamp_min(0.0)
    darker = (ambient * visibility + key * lit) / (ambient + key)  # [n, 3]
    # Fade out toward the border of the shadow maps.
    radius = shadow.radius[image_index]
    fade = ((3.0 * radius - away[image_index, pixel]) / radius).clamp(0.0, 1.0)[:, None]
    result = torch.ones(B, H * W, 3, device=points.device)
    result[image_index, pixel] = 1 + (darker - 1) * fade
    return result.view(B, H, W, 3).permute(0, 3, 1, 2)


def _composite(pixels: _Pixels, backgrounds: Tensor, options: RenderOptions, rng: Rng) -> tuple[Tensor, Tensor, Tensor]:
    """Expose the people and composite them over backgrounds: images, foreground [B, 3, H, W] and alpha."""
    B = len(backgrounds)
    brightness = srgb_to_linear(backgrounds).mean(dim=(1, 2, 3))  # [B]
    target = 0.95 * rng.normal(0.0, 0.35, B).exp() * (brightness / 0.2).clamp(0.15, 4.0) ** 0.2
    people = tone_map(pixels.radiance, pixels.alpha, albedo=pixels.albedo, target=target, rng=rng)
    foreground, alpha = people * pixels.alpha, pixels.alpha
    if options.camera_effects:
        grading = sample_grading(B, rng=rng)
        people, backgrounds = grading(people), grading(backgrounds)
        kernels = sample_blur(B, rng=rng, reach=2.5 * options.size_hw[0] / 384, probability=0.25)
        moved = blur(torch.cat([people * pixels.alpha, pixels.alpha], dim=1), kernels)  # [B, 4, H, W]
        foreground, alpha = moved[:, :3], moved[:, 3:].clamp(0.0, 1.0)
    return foreground + (1 - alpha) * backgrounds, foreground, alpha


def _add_occluders(truth: GroundTruth, scenery: Scenery, *, rng: Rng, probability: float) -> GroundTruth:
    """Draw textured boxes and ellipses in front of some images, and correct every truth behind them."""
    B, _, H, W = truth.image.shape
    cover = torch.maximum(*(soft_shape(B, (H, W), rng=rng, radius=(0.04, 0.35)) for _ in range(2)))
    cover = cover * rng.bernoulli(probability, B, 1, 1, 1)
    paint = colored_noise(B, (H, W), rng=rng)
    if len(scenery.backgrounds):
        photo = photo_crops(scenery.backgrounds, B, (H, W), rng=rng)
        paint = torch.where(rng.bernoulli(0.6, B, 1, 1, 1), photo, paint)
    slope = rng.normal(0.0, 0.25, B, 1, 1, 1) * torch.linspace(-1, 1, W, device=paint.device)
    paint = (paint * (rng.uniform(0.4, 1.1, B, 1, 1, 1) + slope)).clamp(0.0, 1.0)
    hidden = cover[:, 0] > 0.5  # [B, H, W]
    clear = ~hidden[:, None]
    masks = truth.instance_masks & clear
    return replace(
        truth,
        image=truth.image + cover * (paint - truth.image),
        alpha=truth.alpha * (1 - cover),
        foreground=truth.foreground * (1 - cover),
        albedo=truth.albedo * clear,
        normals=truth.normals * clear,
        pointmap=truth.pointmap * clear,
        parts=torch.where(hidden, 0, truth.parts),
        keypoints=hide_keypoints(truth.keypoints, hidden),
        boxes_xywh=_boxes_xywh(masks),
        instance_masks=masks,
    )


def hide_keypoints(keypoints: Tensor, covered: Tensor) -> Tensor:
    """Mark visible keypoints [B, ..., 3] under a cover [B, H, W] bool as hidden."""
    H, W = covered.shape[-2:]
    x = keypoints[..., 0].round().long().clamp(0, W - 1)
    y = keypoints[..., 1].round().long().clamp(0, H - 1)
    under = covered.flatten(1).gather(1, (y * W + x).flatten(1)).view(x.shape)
    state = torch.where(under, keypoints[..., 2].clamp_max(_HIDDEN), keypoints[..., 2])
    return torch.cat([keypoints[..., :2], state[..., None]], dim=-1)
