"""Cut views out of pictures: one window that is moved, sized and mirrored, and every truth goes with it.

A window is a map of each axis: output pixel u = factor · x + offset for the source pixel x, both counted at pixel
centres. Colours are match_background, labels are not; the camera, keypoints and boxes follow exactly.

An endless stream of synthetic people for training.

    chunk k ─render, seed (s, k)─▶ Samples ─▶ ring on the device ─compose, seed (s, step)─▶ crops and scenes of a step

Chunks of people enter a ring one after the other, at a fixed rate per step, and each is used several times before it
is overwritten, in another crop, before another background, in other company. What step i sees depends only on the seed
and i, so a run that is resumed goes on exactly as if it had not stopped.

Rendering takes its share of the device's time and happens in place: processes beside the training were slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.human import FLIP_PERMUTATION, PART_FLIP_PERMUTATION
from vitruvian.images import crop_params, fit_inside_hw
from vitruvian.training.config import AugmentPart
from vitruvian.training.datasets.labels import Views
from vitruvian.training.synthetic.camera_effects import add_noise_and_jpeg, defocus
from vitruvian.training.synthetic.dataset import ImageMaps
from vitruvian.training.synthetic.rng import Rng

SMALL = 0.75  # pictures that shrink below this are smoothed first


ONE_SURFACE = 0.02  # depths that differ by less than this share belong together and are blended


LEAST_BOX = 2.0  # pixels: less of a person in a view does not count


@dataclass(frozen=True)
class Window:
    """Where a view lies in its source: u = factor · x + offset, for x and y, and whether it is mirrored after that.

    A view of a person has a camera that looks at its middle: where in a larger picture it was cut cannot be seen in it,
    and pipelines put points back by their depth alone.
    """

    factor_xy: tuple[float, float]
    offset_xy: tuple[float, float]
    size_hw: tuple[int, int]
    mirrored: bool = False
    person: bool = False

    def points(self, xy: Tensor) -> Tensor:
        """Move points [..., 2] from the source into the view, before it is mirrored."""
        return xy * xy.new_tensor(self.factor_xy) + xy.new_tensor(self.offset_xy)

    def camera(self, intrinsics: Tensor) -> Tensor:
        """Move a camera matrix [3, 3] into the view, before it is mirrored."""
        moved = intrinsics.clone()
        for row in range(2):
            moved[row] *= self.factor_xy[row]
            moved[row, 2] += self.offset_xy[row]
            if self.person:
                moved[row, 2] = (self.size_hw[1 - row] - 1) / 2
        return moved

    def changed(self, *, scale: float, shift_xy: tuple[float, float], mirrored: bool) -> Window:
        """Enlarge what is in the middle by `scale`, move it by shares of the view, and mirror it."""
        H, W = self.size_hw
        middle = ((W - 1) / 2, (H - 1) / 2)
        offsets = [
            (offset - m) * scale + m + share * side
            for offset, m, share, side in zip(self.offset_xy, middle, shift_xy, (W, H), strict=True)
        ]
        factors = (self.factor_xy[0] * scale, self.factor_xy[1] * scale)
        return Window(factors, (offsets[0], offsets[1]), self.size_hw, mirrored, self.person)


def person_window(box_xywh: Tensor, size_hw: tuple[int, int]) -> Window:
    """The window around a person [4] that `Sapiens2ImageProcessor` cuts out too."""
    center, extent = crop_params(box_xywh[None], size_hw)
    sides = (size_hw[1] - 1, size_hw[0] - 1)
    factors = [side / float(length) for side, length in zip(sides, extent[0], strict=True)]
    starts = [float(c) - float(length) / 2 for c, length in zip(center[0], extent[0], strict=True)]
    offsets = (-starts[0] * factors[0], -starts[1] * factors[1])
    return Window((factors[0], factors[1]), offsets, size_hw, person=True)


def picture_window(source_hw: tuple[int, int], size_hw: tuple[int, int]) -> Window:
    """The window that shows a whole picture, as large as it fits, in the middle."""
    inner = fit_inside_hw(source_hw, size_hw)
    factors = [inner[1] / source_hw[1], inner[0] / source_hw[0]]
    starts = [(size_hw[1] - inner[1]) // 2, (size_hw[0] - inner[0]) // 2]
    offsets = [start + 0.5 * factor - 0.5 for start, factor in zip(starts, factors, strict=True)]
    return Window((factors[0], factors[1]), (offsets[0], offsets[1]), size_hw)


def random_window(window: Window, augment: AugmentPart, generator: torch.Generator) -> Window:
    """Vary a window as a configuration says."""
    draw = (2 * torch.rand(4, generator=generator) - 1).tolist()
    scale = math.exp(draw[0] * math.log1p(augment.scale))
    shift = (draw[1] * augment.shift, draw[2] * augment.shift)
    return window.changed(scale=scale, shift_xy=shift, mirrored=(draw[3] + 1) / 2 < augment.flip)


@dataclass(frozen=True)
class Scene:
    """A source picture: its maps, its camera, and its people, the one that the view is about first."""

    maps: ImageMaps
    intrinsics: Tensor  # [3, 3]
    keypoints: Tensor  # [308, 3]
    boxes_xywh: Tensor  # [M, 4]
    stature: float
    area: float  # pixels


def cut_view(scene: Scene, window: Window) -> Views:
    """Cut one view (B = 1) out of a picture."""
    maps = scene.maps
    colours: dict[str, Tensor] = {"image": maps.image.float() / 255}
    if maps.matte is not None:
        colours |= {"alpha": maps.matte[3:], "foreground": maps.matte[:3] * maps.matte[3:]}
    found = {name: sample_bilinear(value, window) for name, value in colours.items()}
    source_hw = (maps.image.shape[1], maps.image.shape[2])
    inside = sample_nearest(torch.ones(1, *source_hw), window) > 0  # [1, H, W]
    if maps.parts is not None:
        found["parts"] = sample_nearest(maps.parts[None].float(), window).long()
        if maps.albedo is not None:
            seen = (maps.parts > 0)[None].float()
            share = sample_bilinear(seen, window)
            mixed = sample_bilinear(maps.albedo * seen, window) / share.clamp_min(1e-3)
            found["albedo"] = torch.where(found["parts"] > 0, mixed.clamp(0, 1), 0.0)
    if maps.normals is not None and maps.depth is not None:
        nearest = sample_nearest(maps.depth[None], window)  # [1, H, W]
        found["depth"] = blend_depth(maps.depth[None], nearest, window)
        found["normals"] = F.normalize(sample_bilinear(maps.normals, window), dim=0, eps=1e-6) * (nearest > 0)
    points = scene.keypoints.clone()
    points[:, :2] = window.points(points[:, :2])
    boxes = move_boxes(scene.boxes_xywh, window)
    view = Views(
        valid=inside[None],
        intrinsics=window.camera(scene.intrinsics)[None],
        keypoints=points[None],
        boxes_xyxy=boxes[None],
        stature=torch.tensor([scene.stature]),
        area=torch.tensor([scene.area * window.factor_xy[0] * window.factor_xy[1]]),
        **{name: value[None] for name, value in found.items()},
    )
    return hide_outside(mirror(view) if window.mirrored else view)


def move_boxes(boxes_xywh: Tensor, window: Window) -> Tensor:
    """Move boxes [M, 4], which end between pixels, into a view: xyxy [M, 4], zero where too little is left."""
    limit = torch.tensor([window.size_hw[1], window.size_hw[0]], dtype=torch.float32)
    low, high = boxes_xywh[:, :2], boxes_xywh[:, :2] + boxes_xywh[:, 2:]
    corners = [(window.points(corner - 0.5) + 0.5).clamp_min(0).minimum(limit) for corner in (low, high)]
    large = ((corners[1] - corners[0]) >= LEAST_BOX).all(1, keepdim=True)  # [M, 1]
    return torch.cat(corners, dim=1) * large


def mirror(view: Views) -> Views:
    """Mirror a view: the person's left becomes right, in labels, keypoints, normals and camera."""
    W = view.image.shape[-1]
    flipped = {
        name: getattr(view, name).flip(-1)
        for name in ("image", "valid", "alpha", "foreground", "albedo", "normals", "depth", "parts")
        if getattr(view, name) is not None
    }
    if "normals" in flipped:
        flipped["normals"] = flipped["normals"] * torch.tensor([-1.0, 1.0, 1.0])[:, None, None]
    if "parts" in flipped:
        flipped["parts"] = torch.tensor(PART_FLIP_PERMUTATION)[flipped["parts"]]
    points = view.keypoints[:, list(FLIP_PERMUTATION)].clone()  # [B, 308, 3]
    points[..., 0] = W - 1 - points[..., 0]
    camera = view.intrinsics.clone()
    camera[:, 0, 2] = W - 1 - camera[:, 0, 2]
    camera[:, 0, 1] = -camera[:, 0, 1]
    left, top, right, bottom = view.boxes_xyxy.unbind(-1)
    boxes = torch.stack([W - right, top, W - left, bottom], dim=-1) * (right > left)[..., None]
    return Views(**{**vars(view), **flipped, "keypoints": points, "intrinsics": camera, "boxes_xyxy": boxes})


def hide_outside(view: Views) -> Views:
    """Mark keypoints outside the view as unknown."""
    H, W = view.image.shape[-2:]
    x, y, state = view.keypoints.unbind(-1)
    inside = (x >= -0.5) & (x <= W - 0.5) & (y >= -0.5) & (y <= H - 0.5)
    points = torch.stack([x, y, torch.where(inside, state, 0.0)], dim=-1)
    return Views(**{**vars(view), "keypoints": points})


def sample_bilinear(source: Tensor, window: Window) -> Tensor:
    """Look at a map [C, H, W] through a window, blending neighbours: [C, h, w], zeros outside."""
    shrink = [min(1.0, factor) if factor < SMALL else 1.0 for factor in window.factor_xy]
    _, H, W = source.shape
    small_hw = (max(1, round(H * shrink[1])), max(1, round(W * shrink[0])))
    if small_hw != (H, W):
        source = F.interpolate(source[None], size=small_hw, mode="bilinear", antialias=True, align_corners=False)[0]
    return _sample(source, window, (H, W), mode="bilinear")


def sample_nearest(source: Tensor, window: Window) -> Tensor:
    """Look at a map [C, H, W] through a window, taking the nearest pixel: [C, h, w], zeros outside."""
    return _sample(source, window, (source.shape[1], source.shape[2]), mode="nearest")


def blend_depth(depth: Tensor, nearest: Tensor, window: Window) -> Tensor:
    """Blend depth [1, H, W] along surfaces; across edges, and where people end, keep the `nearest` [1, h, w]."""
    # Nearness is what changes evenly across a flat surface in a picture, not depth.
    seen = (depth > 0).float()
    nearness = _sample(seen / depth.clamp_min(1e-6), window, (depth.shape[1], depth.shape[2]), mode="bilinear")
    share = _sample(seen, window, (depth.shape[1], depth.shape[2]), mode="bilinear")
    mixed = share / nearness.clamp_min(1e-6)
    return torch.where((mixed - nearest).abs() < ONE_SURFACE * nearest, mixed, nearest)


def _sample(source: Tensor, window: Window, original_hw: tuple[int, int], *, mode: str) -> Tensor:
    """Sample [C, H', W'], a resized map of a source of `original_hw`, at the pixels of a window."""
    axes = []
    sides = zip(window.size_hw, source.shape[1:], original_hw, (1, 0), strict=True)
    for count, side, original, axis in sides:  # y, then x
        place = (torch.arange(count, dtype=torch.float32) - window.offset_xy[axis]) / window.factor_xy[axis]
        place = (place + 0.5) * (side / original)  # in pixel sides, from the edge
        axes.append(place * 2 / side - 1)
    y, x = torch.meshgrid(axes[0], axes[1], indexing="ij")
    grid = torch.stack([x, y], dim=-1)[None]  # [1, h, w, 2]
    return F.grid_sample(source[None], grid, mode=mode, padding_mode="zeros", align_corners=False)[0]


def random_colours(view: Views, augment: AugmentPart, generator: torch.Generator) -> Views:
    """Change brightness, contrast, saturation and the colour of the light, of the picture and of its foreground alike.

    The change is c ↦ A c + b, under which a picture stays foreground + (1 − alpha) · background.
    """
    draw = (2 * torch.rand(6, generator=generator) - 1) * augment.colour
    grey = float(torch.rand(1, generator=generator)) < augment.grey
    if augment.colour == 0 and not grey:
        return view
    saturation = 0.0 if grey else 1 + float(draw[0])
    weights = torch.tensor([0.299, 0.587, 0.114])
    matrix = saturation * torch.eye(3) + (1 - saturation) * weights.expand(3, 3)
    contrast = 1 + float(draw[1])
    matrix = (1 + 0.5 * draw[2:5])[:, None] * matrix * contrast  # rows are outputs
    offset = (0.5 * (1 - contrast) + 0.5 * draw[5]).expand(3)[:, None, None]  # [3, 1, 1]
    changed = {"image": (_mixed(matrix, view.image) + offset).clamp(0, 1)}
    if view.foreground is not None and view.alpha is not None:
        mixed = _mixed(matrix, view.foreground) + view.alpha * offset
        changed["foreground"] = mixed.clamp_min(0).minimum(view.alpha)
    return Views(**{**vars(view), **changed})


def _mixed(matrix: Tensor, image: Tensor) -> Tensor:
    return torch.einsum("ij,bjhw->bihw", matrix, image)


SHRINK = {1: 0.5, 2: 0.15, 3: 0.11, 4: 0.1, 6: 0.08, 8: 0.06}  # how often pictures are shrunk by what


SHARP = 0.6  # how often the file of a small person is sharpened


DIM, COLOURED = 0.1, 0.35  # how often there is little light, and how often that has a colour


UNFOCUSED = 0.07  # how often a picture is out of focus


RESTYLED = 0.1  # how often colours and textures are others


def from_afar(images: Tensor, rng: Rng) -> Tensor:
    """Some of the pictures [n, 3, H, W] as if cut from larger ones where people are small.

    They are shrunk, go through a camera and a file, and are enlarged again, as crops of small people are: few pixels
    are left of somebody, and those have hard edges, the blocks of a JPEG and the rings of the enlargement.
    """
    H, W = images.shape[-2:]
    shares = torch.tensor(list(SHRINK.values()), device=rng.generator.device)
    kind = torch.multinomial(shares, len(images), replacement=True, generator=rng.generator)
    for number, factor in enumerate(SHRINK):
        chosen = (kind == number).nonzero()[:, 0]  # on the CPU: nobody waits
        if factor == 1 or not len(chosen):
            continue
        index = chosen.to(images.device, non_blocking=True)
        size, some = (H // factor, W // factor), images[index]
        even = F.interpolate(some, size=size, mode="area")
        hard = F.interpolate(some, size=size, mode="bicubic", antialias=True)
        small = torch.lerp(even, hard, rng.uniform(0.0, 1.0, len(chosen))[:, None, None, None]).clamp(0, 1)
        small = add_noise_and_jpeg(small, rng=rng, sharpen=SHARP)
        large = F.interpolate(small, size=(H, W), mode="bicubic", align_corners=False).clamp(0, 1)
        images = images.index_copy(0, index, large)
    return images


def as_taken(images: Tensor, rng: Rng) -> Tensor:
    """Crops [n, 3, H, W] in 0..1 as cameras and files give them; what lies beyond the end of a picture stays black."""
    picture = (images > 0).any(dim_light=1, keepdim=True)
    return photometric(from_afar(images, rng), rng) * picture


def photometric(images: Tensor, rng: Rng) -> Tensor:
    """Change light, colour, sharpness and noise of pictures [n, 3, H, W] in 0..1, as cameras do."""
    n = len(images)
    shape = (n, 1, 1, 1)
    images = dim_light(restyled(images, rng) * rng.log_uniform(0.65, 1.5, n).view(shape), rng)
    mean = images.mean(dim_light=(1, 2, 3), keepdim=True)
    images = mean + (images - mean) * rng.log_uniform(0.65, 1.45, n).view(shape)
    grey = images.mean(dim_light=1, keepdim=True)
    saturation = torch.where(rng.bernoulli(0.08, n), 0.0, rng.log_uniform(0.5, 1.6, n)).view(shape)
    images = grey + (images - grey) * saturation
    images = images * rng.log_uniform(0.88, 1.14, n, 3)[:, :, None, None]
    images = images.clamp(0, 1) ** rng.log_uniform(0.75, 1.33, n).view(shape)
    soft = F.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)
    softer = F.avg_pool2d(soft, 5, stride=1, padding=2, count_include_pad=False)
    blur = rng.uniform(0.0, 1.0, n).view(shape)
    images = torch.where(blur < 0.12, softer, torch.where(blur < 0.35, soft, images))
    images = out_of_focus(images, rng)
    noise = rng.uniform(0.0, 0.05, n) * rng.bernoulli(0.4, n)
    return (images + noise.view(shape) * rng.normal_field(*images.shape)).clamp(0, 1)


def dim_light(images: Tensor, rng: Rng) -> Tensor:
    """Some of the pictures [n, 3, H, W] by night, on a stage or against the light: dark, and in one colour at times."""
    n = len(images)
    colour = torch.where(rng.bernoulli(COLOURED, n, 1), rng.log_uniform(0.3, 1.0, n, 3), 1.0)
    gain = torch.where(rng.bernoulli(DIM, n, 1), rng.log_uniform(0.08, 0.6, n, 1) * colour, 1.0)
    return images * gain[:, :, None, None]


def restyled(images: Tensor, rng: Rng) -> Tensor:
    """Some of the pictures [n, 3, H, W] through random filters, which leave shapes and take colours and textures.

    As in "Robust and Generalizable Visual Representation Learning via Random Convolutions" (Xu et al., 2021): what is
    drawn has textures of its own, and a model should not go by them. Brightness and contrast stay.
    """
    index = some_of(images, rng, often=RESTYLED)
    n = len(index)
    if not n:
        return images
    some = images[index]
    filters = rng.normal(0.0, 27**-0.5, n, 3, 3, 3, 3).flatten(0, 1)  # one of 3 x 3 for each two channels
    padded = F.pad(some.flatten(0, 1)[None], (1, 1, 1, 1), mode="replicate")
    found = F.conv2d(padded, filters, groups=n).view_as(some)
    deviation, mean = torch.std_mean(found, dim_light=(2, 3), keepdim=True)
    wanted, middle = torch.std_mean(some, dim_light=(2, 3), keepdim=True)
    found = (found - mean) / deviation.clamp_min(1e-4) * wanted + middle
    share = rng.uniform(0.1, 0.7, n)[:, None, None, None]
    return images.index_copy(0, index, torch.lerp(some, found, share).clamp(0, 1))


def out_of_focus(images: Tensor, rng: Rng) -> Tensor:
    """Some of the pictures [n, 3, H, W] as a lens shows what is far from where it was focused."""
    index = some_of(images, rng, often=UNFOCUSED)
    if not len(index):
        return images
    radius = rng.log_uniform(0.012, 0.05, len(index)) * max(images.shape[-2:])
    return images.index_copy(0, index, defocus(images[index], radius))


def some_of(images: Tensor, rng: Rng, *, often: float) -> Tensor:
    """Numbers of some of the pictures, drawn on the CPU, so that nobody waits to know how many there are."""
    draw = torch.rand(len(images), generator=rng.generator, device=rng.generator.device)
    return (draw < often).nonzero()[:, 0].to(images.device, non_blocking=True)
