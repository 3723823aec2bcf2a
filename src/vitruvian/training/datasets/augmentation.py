"""Crops of images with their ground truth, and random changes of crops and colours.

A crop is an affine map of each axis: output pixel u = factor · x + offset for the source pixel x, both at pixel
centres. Colours are interpolated, labels are not; camera, keypoints and boxes are transformed exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.human import FLIP_PERMUTATION, PART_FLIP_PERMUTATION
from vitruvian.images import crop_params, fit_inside_hw
from vitruvian.training.config import AugmentPart
from vitruvian.training.datasets.labels import LabeledImages
from vitruvian.training.synthetic.camera_effects import add_noise_and_jpeg, defocus
from vitruvian.training.synthetic.dataset import ImageMaps
from vitruvian.training.synthetic.rng import Rng

_ANTIALIAS_BELOW = 0.75  # images that shrink below this factor are antialiased
_ONE_SURFACE = 0.02  # depths that differ by less than this share are interpolated
_SMALLEST_BOX = 2.0  # pixels: smaller boxes in a crop do not count


@dataclass(frozen=True)
class CropTransform:
    """Where a crop lies in its source: u = factor · x + offset, for x and y, and whether it is mirrored after that.

    The camera of a `person` crop has its principal point in the middle: a model cannot see where in a larger image the
    crop lies, and pipelines restore points by their depth alone.
    """

    factor_xy: tuple[float, float]
    offset_xy: tuple[float, float]
    size_hw: tuple[int, int]
    mirrored: bool = False
    person: bool = False

    def points(self, xy: Tensor) -> Tensor:
        """Transform points [..., 2] from the source into the crop, before it is mirrored."""
        return xy * xy.new_tensor(self.factor_xy) + xy.new_tensor(self.offset_xy)

    def camera(self, intrinsics: Tensor) -> Tensor:
        """Transform a camera matrix [3, 3] into the crop, before it is mirrored."""
        moved = intrinsics.clone()
        for row in range(2):
            moved[row] *= self.factor_xy[row]
            moved[row, 2] += self.offset_xy[row]
            if self.person:
                moved[row, 2] = (self.size_hw[1 - row] - 1) / 2
        return moved

    def boxes(self, boxes_xywh: Tensor) -> Tensor:
        """Transform boxes [M, 4], which end between pixels: xyxy [M, 4], zero where too little is left."""
        limit = torch.tensor([self.size_hw[1], self.size_hw[0]], dtype=torch.float32)
        low, high = boxes_xywh[:, :2], boxes_xywh[:, :2] + boxes_xywh[:, 2:]
        corners = [(self.points(corner - 0.5) + 0.5).clamp_min(0).minimum(limit) for corner in (low, high)]
        large = ((corners[1] - corners[0]) >= _SMALLEST_BOX).all(1, keepdim=True)  # [M, 1]
        return torch.cat(corners, dim=1) * large

    def sample(self, source: Tensor, *, nearest: bool = False, antialias: bool = False) -> Tensor:
        """Crop a map [C, H, W], bilinear or nearest: [C, h, w], zeros outside."""
        _, H, W = source.shape
        if antialias:
            shrink = [factor if factor < _ANTIALIAS_BELOW else 1.0 for factor in self.factor_xy]
            small_hw = (max(1, round(H * shrink[1])), max(1, round(W * shrink[0])))
            if small_hw != (H, W):
                source = F.interpolate(source[None], size=small_hw, mode="bilinear", antialias=True)[0]
        axes = [
            ((torch.arange(count, dtype=torch.float32) - offset) / factor + 0.5) * 2 / side - 1
            for count, offset, factor, side in zip(
                self.size_hw, self.offset_xy[::-1], self.factor_xy[::-1], (H, W), strict=True
            )
        ]
        y, x = torch.meshgrid(axes[0], axes[1], indexing="ij")
        grid = torch.stack([x, y], dim=-1)[None]  # [1, h, w, 2]
        mode = "nearest" if nearest else "bilinear"
        return F.grid_sample(source[None], grid, mode=mode, padding_mode="zeros", align_corners=False)[0]

    def adjusted(self, *, scale: float, shift_xy: tuple[float, float], mirrored: bool) -> CropTransform:
        """Zoom about the middle by `scale`, shift by shares of the crop, and mirror."""
        H, W = self.size_hw
        middle = ((W - 1) / 2, (H - 1) / 2)
        x, y = (
            (offset - m) * scale + m + share * side
            for offset, m, share, side in zip(self.offset_xy, middle, shift_xy, (W, H), strict=True)
        )
        factor = (self.factor_xy[0] * scale, self.factor_xy[1] * scale)
        return replace(self, factor_xy=factor, offset_xy=(x, y), mirrored=mirrored)


def person_crop(box_xywh: Tensor, size_hw: tuple[int, int]) -> CropTransform:
    """Return the crop around a person [4] that `Sapiens2ImageProcessor` cuts out too."""
    center, extent = crop_params(box_xywh[None], size_hw)
    sides = (size_hw[1] - 1, size_hw[0] - 1)
    factors = [side / float(length) for side, length in zip(sides, extent[0], strict=True)]
    starts = [float(c) - float(length) / 2 for c, length in zip(center[0], extent[0], strict=True)]
    offsets = (-starts[0] * factors[0], -starts[1] * factors[1])
    return CropTransform((factors[0], factors[1]), offsets, size_hw, person=True)


def image_crop(source_hw: tuple[int, int], size_hw: tuple[int, int]) -> CropTransform:
    """Return the crop that shows a whole image, as large as possible, centred."""
    inner = fit_inside_hw(source_hw, size_hw)
    factors = [inner[1] / source_hw[1], inner[0] / source_hw[0]]
    starts = [(size_hw[1] - inner[1]) // 2, (size_hw[0] - inner[0]) // 2]
    offsets = [start + 0.5 * factor - 0.5 for start, factor in zip(starts, factors, strict=True)]
    return CropTransform((factors[0], factors[1]), (offsets[0], offsets[1]), size_hw)


def random_crop(crop: CropTransform, augment: AugmentPart, generator: torch.Generator) -> CropTransform:
    """Zoom, shift and mirror a crop at random."""
    draw = (2 * torch.rand(4, generator=generator) - 1).tolist()
    scale = math.exp(draw[0] * math.log1p(augment.scale))
    shift = (draw[1] * augment.shift, draw[2] * augment.shift)
    return crop.adjusted(scale=scale, shift_xy=shift, mirrored=(draw[3] + 1) / 2 < augment.flip)


@dataclass(frozen=True)
class AnnotatedImage:
    """A source image: its maps, its camera, and its people, the subject first."""

    maps: ImageMaps
    intrinsics: Tensor  # [3, 3]
    keypoints: Tensor  # [308, 3]
    boxes_xywh: Tensor  # [M, 4]
    stature: float
    area: float  # pixels


def crop_image(source: AnnotatedImage, crop: CropTransform) -> LabeledImages:
    """Crop an image with its ground truth (B = 1)."""
    maps = source.maps
    found = {"image": crop.sample(maps.image.float() / 255, antialias=True)}
    if maps.matte is not None:
        found["alpha"] = crop.sample(maps.matte[3:], antialias=True)
        found["foreground"] = crop.sample(maps.matte[:3] * maps.matte[3:], antialias=True)
    if maps.parts is not None:
        found["parts"] = crop.sample(maps.parts[None].float(), nearest=True).long()
        if maps.albedo is not None:
            covered = (maps.parts > 0)[None].float()
            share = crop.sample(covered, antialias=True)
            mean = crop.sample(maps.albedo * covered, antialias=True) / share.clamp_min(1e-3)
            found["albedo"] = torch.where(found["parts"] > 0, mean.clamp(0, 1), 0.0)
    if maps.normals is not None and maps.depth is not None:
        nearest = crop.sample(maps.depth[None], nearest=True)  # [1, H, W]
        found["depth"] = _interpolate_depth(maps.depth[None], nearest, crop)
        normals = crop.sample(maps.normals, antialias=True)
        found["normals"] = F.normalize(normals, dim=0, eps=1e-6) * (nearest > 0)
    points = source.keypoints.clone()
    points[:, :2] = crop.points(points[:, :2])
    inside = crop.sample(torch.ones(1, *maps.image.shape[1:]), nearest=True) > 0  # [1, H, W]
    images = LabeledImages(
        valid=inside[None],
        intrinsics=crop.camera(source.intrinsics)[None],
        keypoints=points[None],
        boxes_xyxy=crop.boxes(source.boxes_xywh)[None],
        stature=torch.tensor([source.stature]),
        area=torch.tensor([source.area * crop.factor_xy[0] * crop.factor_xy[1]]),
        **{name: value[None] for name, value in found.items()},
    )
    if crop.mirrored:
        images = _mirror(images)
    H, W = crop.size_hw
    x, y, state = images.keypoints.unbind(-1)
    inside = (x >= -0.5) & (x <= W - 0.5) & (y >= -0.5) & (y <= H - 0.5)
    return replace(images, keypoints=torch.stack([x, y, torch.where(inside, state, 0.0)], dim=-1))


def _mirror(images: LabeledImages) -> LabeledImages:
    """Mirror images: the person's left becomes right, in labels, keypoints, normals and camera."""
    W = images.image.shape[-1]
    flipped: dict[str, Tensor] = {}
    for name in ("image", "valid", "alpha", "foreground", "albedo", "normals", "depth", "parts"):
        value: Tensor | None = getattr(images, name)
        if value is not None:
            flipped[name] = value.flip(-1)
    if "normals" in flipped:
        flipped["normals"] = flipped["normals"] * torch.tensor([-1.0, 1.0, 1.0])[:, None, None]
    if "parts" in flipped:
        flipped["parts"] = torch.tensor(PART_FLIP_PERMUTATION)[flipped["parts"]]
    points = images.keypoints[:, list(FLIP_PERMUTATION)].clone()  # [B, 308, 3]
    points[..., 0] = W - 1 - points[..., 0]
    camera = images.intrinsics.clone()
    camera[:, 0, 2] = W - 1 - camera[:, 0, 2]
    camera[:, 0, 1] = -camera[:, 0, 1]
    left, top, right, bottom = images.boxes_xyxy.unbind(-1)
    boxes = torch.stack([W - right, top, W - left, bottom], dim=-1) * (right > left)[..., None]
    return replace(images, keypoints=points, intrinsics=camera, boxes_xyxy=boxes, **flipped)


def _interpolate_depth(depth: Tensor, nearest: Tensor, crop: CropTransform) -> Tensor:
    """Interpolate depth [1, H, W] along surfaces; across edges and outlines keep the `nearest` [1, h, w]."""
    covered = (depth > 0).float()
    inverse = crop.sample(covered / depth.clamp_min(1e-6))  # 1 / depth is linear across a plane, depth is not
    mean = crop.sample(covered) / inverse.clamp_min(1e-6)
    return torch.where((mean - nearest).abs() < _ONE_SURFACE * nearest, mean, nearest)


def colour_jitter(images: LabeledImages, augment: AugmentPart, generator: torch.Generator) -> LabeledImages:
    """Change brightness, contrast, saturation and tint of images and their foreground alike.

    The change is c ↦ A c + b, under which an image stays foreground + (1 − alpha) · background.
    """
    draw = (2 * torch.rand(6, generator=generator) - 1) * augment.colour
    grey = float(torch.rand(1, generator=generator)) < augment.grey
    if augment.colour == 0 and not grey:
        return images
    saturation = 0.0 if grey else 1 + float(draw[0])
    weights = torch.tensor([0.299, 0.587, 0.114])
    matrix = saturation * torch.eye(3) + (1 - saturation) * weights.expand(3, 3)
    contrast = 1 + float(draw[1])
    matrix = (1 + 0.5 * draw[2:5])[:, None] * matrix * contrast  # rows are outputs
    offset = (0.5 * (1 - contrast) + 0.5 * draw[5]).expand(3)[:, None, None]  # [3, 1, 1]
    image = (torch.einsum("ij,bjhw->bihw", matrix, images.image) + offset).clamp(0, 1)
    foreground = images.foreground
    if foreground is not None and images.alpha is not None:
        changed = torch.einsum("ij,bjhw->bihw", matrix, foreground) + images.alpha * offset
        foreground = changed.clamp_min(0).minimum(images.alpha)
    return replace(images, image=image, foreground=foreground)


# ----------------------------------------------------------------------------- augmentation of composed images
# Of images [n, 3, H, W] in 0..1, on their device. Which images change is drawn on the CPU: nothing synchronizes.

_SHRINK = {1: 0.5, 2: 0.15, 3: 0.11, 4: 0.1, 6: 0.08, 8: 0.06}  # factor: probability
SHARPEN = 0.6  # probability of sharpening small people
_DARK, _TINTED = 0.1, 0.35  # probability of low light, and of a colour of that light
_DEFOCUSED = 0.07
_RANDOM_FILTERS = 0.1


def degrade_crops(images: Tensor, rng: Rng) -> Tensor:
    """Degrade crops as cameras and files do; pixels outside the image stay black."""
    inside = (images > 0).any(dim=1, keepdim=True)
    return photometric(lower_resolution(images, rng), rng) * inside


def lower_resolution(images: Tensor, rng: Rng) -> Tensor:
    """Shrink some images, add noise and JPEG, and enlarge them again, as crops of small people are."""
    H, W = images.shape[-2:]
    probabilities = torch.tensor(list(_SHRINK.values()), device=rng.generator.device)
    kind = torch.multinomial(probabilities, len(images), replacement=True, generator=rng.generator)
    for number, factor in enumerate(_SHRINK):
        chosen = (kind == number).nonzero()[:, 0]
        if factor == 1 or not len(chosen):
            continue
        index = chosen.to(images.device, non_blocking=True)
        size, some = (H // factor, W // factor), images[index]
        area = F.interpolate(some, size=size, mode="area")
        cubic = F.interpolate(some, size=size, mode="bicubic", antialias=True)
        small = torch.lerp(area, cubic, rng.uniform(0.0, 1.0, len(chosen))[:, None, None, None]).clamp(0, 1)
        small = add_noise_and_jpeg(small, rng=rng, sharpen=SHARPEN)
        large = F.interpolate(small, size=(H, W), mode="bicubic", align_corners=False).clamp(0, 1)
        images = images.index_copy(0, index, large)
    return images


def photometric(images: Tensor, rng: Rng) -> Tensor:
    """Change light, colour, sharpness and noise."""
    n = len(images)
    shape = (n, 1, 1, 1)
    images = darken(random_filters(images, rng) * rng.log_uniform(0.65, 1.5, n).view(shape), rng)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + (images - mean) * rng.log_uniform(0.65, 1.45, n).view(shape)
    grey = images.mean(dim=1, keepdim=True)
    saturation = torch.where(rng.bernoulli(0.08, n), 0.0, rng.log_uniform(0.5, 1.6, n)).view(shape)
    images = grey + (images - grey) * saturation
    images = images * rng.log_uniform(0.88, 1.14, n, 3)[:, :, None, None]
    images = images.clamp(0, 1) ** rng.log_uniform(0.75, 1.33, n).view(shape)
    soft = F.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)
    softer = F.avg_pool2d(soft, 5, stride=1, padding=2, count_include_pad=False)
    blur = rng.uniform(0.0, 1.0, n).view(shape)
    images = torch.where(blur < 0.12, softer, torch.where(blur < 0.35, soft, images))
    images = random_defocus(images, rng)
    noise = rng.uniform(0.0, 0.05, n) * rng.bernoulli(0.4, n)
    return (images + noise.view(shape) * rng.normal_field(*images.shape)).clamp(0, 1)


def darken(images: Tensor, rng: Rng) -> Tensor:
    """Reduce the light of some images, sometimes in one colour, as by night or on a stage."""
    n = len(images)
    colour = torch.where(rng.bernoulli(_TINTED, n, 1), rng.log_uniform(0.3, 1.0, n, 3), 1.0)
    gain = torch.where(rng.bernoulli(_DARK, n, 1), rng.log_uniform(0.08, 0.6, n, 1) * colour, 1.0)
    return images * gain[:, :, None, None]


def random_filters(images: Tensor, rng: Rng) -> Tensor:
    """Apply random convolutions to some images, which change colours and textures but not shapes.

    As in "Robust and Generalizable Visual Representation Learning via Random Convolutions" (Xu et al., 2021): a model
    should not depend on the textures of synthetic images. Brightness and contrast stay.
    """
    index = rng.subset(len(images), _RANDOM_FILTERS)
    n = len(index)
    if not n:
        return images
    some = images[index]
    filters = rng.normal(0.0, 27**-0.5, n, 3, 3, 3, 3).flatten(0, 1)
    padded = F.pad(some.flatten(0, 1)[None], (1, 1, 1, 1), mode="replicate")
    filtered = F.conv2d(padded, filters, groups=n).view_as(some)
    std, mean = torch.std_mean(filtered, dim=(2, 3), keepdim=True)
    wanted_std, wanted_mean = torch.std_mean(some, dim=(2, 3), keepdim=True)
    filtered = (filtered - mean) / std.clamp_min(1e-4) * wanted_std + wanted_mean
    share = rng.uniform(0.1, 0.7, n)[:, None, None, None]
    return images.index_copy(0, index, torch.lerp(some, filtered, share).clamp(0, 1))


def random_defocus(images: Tensor, rng: Rng) -> Tensor:
    """Defocus some images."""
    index = rng.subset(len(images), _DEFOCUSED)
    if not len(index):
        return images
    radius = rng.log_uniform(0.012, 0.05, len(index)) * max(images.shape[-2:])
    return images.index_copy(0, index, defocus(images[index], radius))
