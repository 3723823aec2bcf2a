"""New images from rendered people: other crops, backgrounds, occluders, bystanders and light.

    Samples ─compose_crops──▶ LabeledImages: one person at the size that a model reads, with all ground truth
            └compose_scenes─▶ LabeledImages: whole images with none to several people, their boxes, parts and mattes
                                            └crop_scenes─▶ one person of each, often small and half hidden

Everything runs on the device of the samples. Letters: n images, m the most people in one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.human import PART_INDEX
from vitruvian.images.boxes import mask_boxes
from vitruvian.images.types import SizeHW
from vitruvian.tensor_cache import constant
from vitruvian.training.datasets.crop_window import CropWindow
from vitruvian.training.datasets.labels import LabeledImages
from vitruvian.training.synthetic.backgrounds import photo_crops, soft_shape
from vitruvian.training.synthetic.render import hide_keypoints
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.synthetic.samples import Samples, depth_meters

_MIN_AREA = 12  # pixels: smaller visible parts of people are not labeled
_CLOTHES = tuple(PART_INDEX[name] for name in ("Apparel", "Lower_Clothing", "Upper_Clothing"))


@dataclass(frozen=True)
class CropSampling:
    """How people are cropped and what is composed around them."""

    size_hw: SizeHW = (384, 288)
    padding: float = 1.25  # the crop is the box times this, as at inference
    scale: tuple[float, float] = (0.78, 1.3)
    shift: float = 0.09  # of the crop's sides
    flip_probability: float = 0.5
    background_probability: float = 0.6  # of another background
    bystander_probability: float = 0.45  # of another person in the image
    print_probability: float = 0.3  # of an image printed on clothes
    occluder_probability: float = 0.12
    edge_probability: float = 0.15  # of a straight edge that hides one side; the box is that of the rest
    border_probability: float = 0.15  # that the image ends within the crop

    @classmethod
    def plain(cls, size_hw: SizeHW = (384, 288)) -> Self:
        """Return options for crops as at inference, without augmentation."""
        probabilities = [field.name for field in fields(cls) if field.name.endswith("_probability")]
        return cls(size_hw=size_hw, scale=(1.0, 1.0), shift=0.0, **dict.fromkeys(probabilities, 0.0))


def compose_crops(samples: Samples, backgrounds: Tensor, *, rng: Rng, options: CropSampling) -> LabeledImages:
    """Crop n people as a pose model reads them, each in new surroundings.

    `backgrounds` [G, S, S, 3] uint8 are images without people; without any, backgrounds stay and nothing occludes.
    """
    n, size_hw = len(samples), options.size_hw
    edges = _sample_half_planes(samples, rng, probability=options.edge_probability if len(backgrounds) else 0.0)
    start, step = _crop_around(edges.boxes_xywh, rng, options)
    window = CropWindow(start, step, rng.bernoulli(options.flip_probability, n), size_hw)
    crops = _crop(samples, window)
    if len(backgrounds):
        crops = _print_on_clothes(crops, backgrounds, rng, options)
        replaced = rng.bernoulli(options.background_probability, n)[:, None, None, None]
        background = _crop_backgrounds(backgrounds, n, size_hw, rng=rng)
        foreground, alpha = crops.require("foreground"), crops.require("alpha")
        lit = _jitter_exposure(foreground, alpha, rng)
        image = torch.where(replaced, lit + (1 - alpha) * background, crops.image)
        crops = replace(crops, image=image, foreground=torch.where(replaced, lit, foreground))
    crops = _add_bystander(crops, samples.select(rng.permutation(n)), rng, options)
    if len(backgrounds):
        shapes = _sample_shapes(n, rng, options, probability=options.occluder_probability, radius=(0.14, 0.45))
        crops = _occlude(crops, shapes, backgrounds, rng)
        crops = _occlude(crops, edges.beyond(window), backgrounds, rng)
    inside = _inside_image(samples, window, rng, options)  # black and empty outside
    return replace(_mask(crops, inside), image=crops.image * inside, albedo=crops.require("albedo") * inside)


def _mask(crops: LabeledImages, mask: Tensor) -> LabeledImages:
    """Remove people where `mask` [n, 1, H, W] is False."""
    names = ("foreground", "alpha", "normals", "depth", "parts")
    return replace(crops, **{name: getattr(crops, name) * mask for name in names})


def _truncated_sides(samples: Samples) -> Tensor:
    """Return at which sides of the image a person is truncated: left, top, right, bottom [n, 4] bool."""
    H, W = samples.size_hw
    x, y, w, h = samples.boxes_xywh.unbind(1)
    return torch.stack([x <= 1, y <= 1, x + w >= W - 1, y + h >= H - 1], dim=1)


def _inside_image(samples: Samples, window: CropWindow, rng: Rng, options: CropSampling) -> Tensor:
    """Return where the crop lies inside the image, [n, 1, H, W] bool.

    The image ends where a person is truncated; some images end elsewhere too, but not inside a person.
    """
    n, (H, W) = len(samples), samples.size_hw
    x, y, w, h = samples.boxes_xywh.unbind(1)
    box = torch.stack([x, y, x + w, y + h], dim=1)  # [n, 4]
    edge = constant((0.0, 0.0, float(W), float(H)), x.device).expand(n, 4)
    endless = constant((-math.inf, -math.inf, math.inf, math.inf), x.device)
    ends = rng.bernoulli(options.border_probability, n, 4)
    near = torch.lerp(box, edge, rng.uniform(0.0, 1.0, n, 4))
    limit = torch.where(_truncated_sides(samples), edge, torch.where(ends, near, endless)) - 0.5  # between pixels
    columns, rows = window.source_xy()
    inside_x = (columns >= limit[:, :1]) & (columns <= limit[:, 2:3])  # [n, w]
    inside_y = (rows >= limit[:, 1:2]) & (rows <= limit[:, 3:])  # [n, h]
    return (inside_y[:, :, None] & inside_x[:, None])[:, None]


@dataclass(frozen=True)
class _HalfPlanes:
    """Straight edges that people stand behind: hidden is what lies beyond, where xy · normal > offset."""

    normal: Tensor  # [n, 2] in source pixels
    offset: Tensor  # [n]; infinite where there is no edge
    boxes_xywh: Tensor  # [n, 4] around the rest

    def beyond(self, window: CropWindow) -> Tensor:
        """Return which pixels of the crop are hidden, [n, 1, H, W] bool."""
        x, y = window.source_xy()
        along = (x * self.normal[:, :1])[:, None] + (y * self.normal[:, 1:])[:, :, None]  # [n, H, W]
        return (along > self.offset[:, None, None])[:, None]


def _sample_half_planes(samples: Samples, rng: Rng, *, probability: float) -> _HalfPlanes:
    """Draw edges for some people: most hide the legs, some one side."""
    n = len(samples)
    x, y, w, h = samples.boxes_xywh.unbind(1)
    present = rng.bernoulli(probability, n)
    share = torch.where(present, rng.uniform(0.3, 0.85, n), 1.0)  # of the box that stays visible
    side = rng.categorical((0.7, 0.15, 0.15), n)  # hidden: below, right, left
    below, left = side == 0, side == 2
    x = torch.where(left, x + w * (1 - share), x)
    w, h = torch.where(below, w, w * share), torch.where(below, h * share, h)
    tilt = rng.normal(0.0, 0.12, n)
    out = torch.where(left, -1.0, 1.0)
    normal_x = torch.where(below, tilt.sin(), out * tilt.cos())
    normal_y = torch.where(below, tilt.cos(), tilt.sin())
    # The edge runs through the middle of the side where the box was cut.
    at_x = torch.where(below, x + w / 2, torch.where(left, x, x + w))
    at_y = torch.where(below, y + h, y + h / 2)
    offset = torch.where(present, at_x * normal_x + at_y * normal_y, torch.inf)
    return _HalfPlanes(torch.stack([normal_x, normal_y], dim=1), offset, torch.stack([x, y, w, h], dim=1))


def _crop_around(boxes_xywh: Tensor, rng: Rng, options: CropSampling) -> tuple[Tensor, Tensor]:
    """Draw crops around boxes [n, 4]: their start and step, [n, 2] each."""
    n, (H, W) = len(boxes_xywh), options.size_hw
    x, y, w, h = boxes_xywh.unbind(1)
    w, h = w.clamp_min(8.0), h.clamp_min(8.0)
    height = torch.maximum(h * options.padding, w * options.padding * H / W)  # [n]
    height = height * rng.log_uniform(*options.scale, n)
    size = torch.stack([height * W / H, height], dim=1)  # [n, 2]
    middle = torch.stack([x + w / 2 - 0.5, y + h / 2 - 0.5], dim=1)
    middle = middle + rng.uniform(-1.0, 1.0, n, 2) * options.shift * size
    step = size / constant((W, H), size.device)
    return middle - size / 2 + step / 2, step


def _crop(samples: Samples, window: CropWindow) -> LabeledImages:
    depth = depth_meters(samples)
    inverse = torch.where(depth > 0, 1 / depth.clamp_min(1e-3), 0.0)  # linear across a plane, unlike depth
    colors = [getattr(samples, name) / 255 for name in ("image", "foreground", "alpha", "albedo")]
    stack = torch.cat([*colors, inverse, (samples.depth > 0).float()], dim=1)  # [n, 12, h, w]
    image, foreground, alpha, albedo, inverse, share = torch.split(window.sample(stack), [3, 3, 1, 3, 1, 1], dim=1)
    parts = window.sample_parts(samples.parts)
    known = (share > 0.99) & (parts > 0)  # [n, 1, H, W]
    return LabeledImages(
        image=image,
        foreground=foreground,
        alpha=alpha,
        albedo=albedo,
        normals=window.sample_normals(samples.normals / 127) * known,
        depth=torch.where(known, 1 / inverse.clamp_min(1e-4), 0.0),
        parts=parts,
        intrinsics=window.camera(samples.intrinsics),
        keypoints=window.move_keypoints(samples.keypoints),
        stature_m=samples.stature_m,
    )


def _crop_backgrounds(backgrounds: Tensor, count: int, size_hw: SizeHW, *, rng: Rng) -> Tensor:
    """Crop images [G, S, S, 3] uint8 at random, some blurred, all recolored: [count, 3, H, W] 0..1."""
    crop = photo_crops(backgrounds, count, size_hw, rng=rng, zoom=(0.35, 1.0))
    soft = F.interpolate(F.interpolate(crop, scale_factor=0.125, mode="area"), size=size_hw, mode="bilinear")
    crop = torch.where(rng.bernoulli(0.3, count)[:, None, None, None], soft, crop)
    gain = rng.log_uniform(0.6, 1.5, count)[:, None, None, None]
    return (crop * gain * rng.log_uniform(0.85, 1.18, count, 3)[:, :, None, None]).clamp(0, 1)


def _jitter_exposure(foreground: Tensor, alpha: Tensor, rng: Rng) -> Tensor:
    """Change the exposure and color of premultiplied people [n, 3, H, W] a little."""
    n = len(foreground)
    gain = rng.log_uniform(0.7, 1.35, n)[:, None, None, None]
    return torch.minimum(foreground * gain * rng.log_uniform(0.9, 1.11, n, 3)[:, :, None, None], alpha)


def _add_bystander(crops: LabeledImages, others: Samples, rng: Rng, options: CropSampling) -> LabeledImages:
    """Compose another person behind or in front of some people; its normals and points are unknown."""
    n, (H, W) = len(others), options.size_hw
    truncated = _truncated_sides(others)
    present = rng.bernoulli(options.bystander_probability, n) & ~truncated[:, :3].any(dim=1)
    in_front = rng.bernoulli(0.3, n)
    x, y, w, h = others.boxes_xywh.unbind(1)
    height = h.clamp_min(8.0) * rng.log_uniform(0.9, 2.6, n)  # source pixels along the height of the crop
    size = torch.stack([height * W / H, height], dim=1)
    # To the side, so that most of the person stays visible; more so when the other one is in front.
    away = torch.where(in_front, rng.uniform(0.42, 0.75, n), rng.uniform(0.15, 0.65, n)) * rng.sign(n)
    middle = torch.stack([x + w / 2, y + h / 2], dim=1) - torch.stack([away, rng.uniform(-0.3, 0.3, n)], 1) * size
    start = middle - size / 2
    # A person that is truncated below stands at the lower border, so that the cut is not visible.
    at_border = torch.stack([start[:, 0], y + h - height - 0.5], dim=1)
    start = torch.where(truncated[:, 3:], at_border, start)
    window = CropWindow(start, size / constant((W, H), size.device), rng.bernoulli(0.5, n), options.size_hw)
    other = _crop(others, window)
    there = present[:, None, None, None]
    amount = other.require("alpha") * there
    lit = _jitter_exposure(other.require("foreground"), other.require("alpha"), rng) * there
    front = in_front[:, None, None, None]
    foreground, alpha, albedo = (crops.require(name) for name in ("foreground", "alpha", "albedo"))
    first = torch.where(front, 1 - amount, 1.0)  # visible share of the first person
    second = torch.where(front, 1.0, 1 - alpha)  # and of the second
    is_second = (alpha * first < amount * second) & (amount * second > 0.5)  # [n, 1, H, W]
    known = ~is_second & (first > 0.5)
    both = foreground * first + lit * second
    return replace(
        crops,
        image=(both + (crops.image - foreground) * (1 - amount)).clamp(0, 1),
        foreground=both,
        alpha=(alpha * first + amount * second).clamp(0, 1),
        albedo=torch.where(is_second, other.require("albedo"), albedo),
        normals=crops.require("normals") * known,
        depth=crops.require("depth") * known,
        parts=torch.where(is_second | (first <= 0.5), other.require("parts"), crops.require("parts")),
        keypoints=hide_keypoints(crops.require("keypoints"), (front & (amount > 0.5))[:, 0]),
    )


def _sample_shapes(
    n: int, rng: Rng, options: CropSampling, *, probability: float, radius: tuple[float, float]
) -> Tensor:
    """Draw ellipses and rectangles in some images, their radii in widths of the image, [n, 1, H, W] bool."""
    H, W = options.size_hw
    low, high = (2 * share * W / H for share in radius)
    shapes = soft_shape(n, (H, W), rng=rng, radius=(low, high)) > 0.5
    return shapes & rng.bernoulli(probability, n)[:, None, None, None]


def _print_on_clothes(crops: LabeledImages, backgrounds: Tensor, rng: Rng, options: CropSampling) -> LabeledImages:
    """Print images on some clothes: light and shadow stay, the albedo changes."""
    probability, n = options.print_probability, len(crops)
    shape = _sample_shapes(n, rng, options, probability=probability, radius=(0.03, 0.25))
    parts, alpha, albedo = (crops.require(name) for name in ("parts", "alpha", "albedo"))
    printed = shape & torch.isin(parts, constant(_CLOTHES, parts.device)) & (alpha > 0.99)
    paint = _crop_backgrounds(backgrounds, n, options.size_hw, rng=rng)
    light = crops.image.mean(dim=1, keepdim=True) / albedo.mean(dim=1, keepdim=True).clamp_min(0.05)
    lit = (paint * light.clamp(0.2, 2.0)).clamp(0, 1)
    return replace(
        crops,
        image=torch.where(printed, lit, crops.image),
        foreground=torch.where(printed, lit, crops.require("foreground")),
        albedo=torch.where(printed, paint, albedo),
    )


def _occlude(crops: LabeledImages, shape: Tensor, backgrounds: Tensor, rng: Rng) -> LabeledImages:
    """Cover crops with other images where `shape` [n, 1, H, W] is set."""
    image = torch.where(shape, _crop_backgrounds(backgrounds, len(crops), crops.size_hw, rng=rng), crops.image)
    keypoints = hide_keypoints(crops.require("keypoints"), shape[:, 0])
    return replace(_mask(crops, ~shape), image=image, keypoints=keypoints)


# ------------------------------------------------------------------------------------------------------- scenes


@dataclass(frozen=True)
class SceneOptions:
    """How whole images are composed."""

    size_hw: SizeHW = (288, 384)
    people: tuple[float, ...] = (0.06, 0.22, 0.2, 0.17, 0.14, 0.12, 0.09)  # probability of 0, 1, 2 … people
    relative_height: tuple[float, float] = (0.15, 1.35)  # of a person, over the height of the image
    close_up_probability: float = 0.2  # of a sample's image as rendered: one person near the camera, truncated anywhere


def compose_scenes(
    samples: Samples, backgrounds: Tensor, count: int, *, rng: Rng, options: SceneOptions
) -> LabeledImages:
    """Compose `count` whole images. Larger people stand in front.

    A person that is truncated below stands at the lower border; one truncated elsewhere is not used.
    """
    H, W = options.size_hw
    device = samples.image.device
    max_people = len(options.people) - 1
    number = rng.categorical(options.people, count)  # [n]
    if len(backgrounds):
        image = _crop_backgrounds(backgrounds, count, options.size_hw, rng=rng)
    else:
        image = rng.uniform_field(count, 3, 1, 1).expand(-1, -1, H, W).clone()
    truncated = _truncated_sides(samples)
    _, _, w, h = samples.boxes_xywh.unbind(1)
    usable = (~truncated[:, :3].any(dim=1) & (h >= 24) & (w >= 12)).cumsum(0)  # [N] running count
    number = torch.where(usable[-1] > 0, number, 0)
    # Indices are drawn from the running count, so that the host need not know how many samples are usable.
    drawn = (rng.uniform(0.0, 1.0, count, max_people) * usable[-1]).floor() + 1
    which = torch.searchsorted(usable, drawn.long().clamp(max=usable[-1])).clamp(max=len(samples) - 1).flatten()
    wanted = torch.arange(max_people, device=device) < number[:, None]  # [n, m]
    height, order = rng.log_uniform(*options.relative_height, count, max_people).sort(dim=1)  # [n, m] farthest first
    wanted = wanted.gather(1, order)
    window = _scene_window(samples.boxes_xywh[which], truncated[which, 3], height.flatten(), rng, options.size_hw)
    colors = window.sample(torch.cat([samples.foreground[which], samples.alpha[which]], dim=1) / 255)
    labels = window.sample_parts(samples.parts[which]).view(count, max_people, 1, H, W)
    there = wanted[:, :, None, None, None]
    lit = _jitter_exposure(colors[:, :3], colors[:, 3:], rng).view(count, max_people, 3, H, W) * there
    alpha = colors[:, 3:].reshape(count, max_people, 1, H, W) * there
    masks: list[Tensor] = []
    parts = torch.zeros(count, 1, H, W, dtype=torch.int64, device=device)
    total = torch.zeros(count, 1, H, W, device=device)
    foreground = torch.zeros(count, 3, H, W, device=device)
    for m in range(max_people):
        rest = 1 - alpha[:, m]
        image = torch.addcmul(lit[:, m], rest, image)
        foreground = torch.addcmul(lit[:, m], rest, foreground)
        total = torch.addcmul(alpha[:, m], rest, total)
        covered = alpha[:, m] > 0.5
        parts = torch.where(covered, labels[:, m], parts)
        masks = [mask & ~covered for mask in masks] + [covered]
    visible = torch.cat(masks, dim=1)  # [n, m, H, W]
    boxes, area = mask_boxes(visible).float(), visible.sum(dim=(-2, -1))
    wide, high = (boxes[..., 2:] - boxes[..., :2]).unbind(-1)
    enough = (wide >= 8) & (high >= 12) & (area >= 0.12 * wide * high)
    scenes = LabeledImages(
        image=image.clamp(0, 1),
        alpha=total,
        foreground=foreground.clamp(0, 1),
        parts=parts,
        boxes_xyxy=boxes * (area > _MIN_AREA)[..., None],
        ignored=(area > _MIN_AREA) & ~enough,
    )
    return _replace_by_close_ups(scenes, samples, rng, options) if options.close_up_probability else scenes


def _scene_window(
    boxes_xywh: Tensor, truncated: Tensor, relative_height: Tensor, rng: Rng, size_hw: SizeHW
) -> CropWindow:
    """Draw windows that put people [k] at random positions; those `truncated` below at the lower border."""
    k, (H, W) = len(boxes_xywh), size_hw
    position, flipped = rng.uniform(0.0, 1.0, k, 2), rng.bernoulli(0.5, k)
    x, y, w, h = boxes_xywh.unbind(1)
    # A truncated person shows about half of itself, which fills more of the image.
    step = h / (relative_height * torch.where(truncated, 0.8, 1.0) * H)  # [k] source pixels per output pixel
    wide, high = w / step, h / step  # in output pixels
    left = position[:, 0] * (W + 0.5 * wide) - 0.75 * wide
    top = position[:, 1] * (H + 0.3 * high) - 0.65 * high
    # Most people are inside the image, or the lower part is outside.
    inside = (top + high).clamp(max=H) - high
    top = torch.where((high < H) & (position[:, 1] < 0.85), inside, top)
    top = torch.where(truncated, H - high, top)
    # The window is mirrored about its middle: place the mirrored person so that it ends at `left`.
    start_x = torch.where(flipped, x + w - (W - 1 - left) * step, x - left * step)
    return CropWindow(torch.stack([start_x, y - top * step], dim=1), step[:, None].expand(-1, 2), flipped, size_hw)


def _replace_by_close_ups(scenes: LabeledImages, samples: Samples, rng: Rng, options: SceneOptions) -> LabeledImages:
    """Replace some scenes by crops of samples as they were rendered: one person, truncated at any side."""
    n, (H, W) = len(scenes), options.size_hw
    height, width = samples.size_hw
    which = rng.integers(len(samples), n)
    step = (min(height / H, width / W) * rng.uniform(0.75, 1.0, n))[:, None].expand(-1, 2)  # [n, 2]
    slack = constant((width, height), step.device) - step * constant((W, H), step.device)  # [n, 2]
    start = rng.uniform(0.0, 1.0, n, 2) * slack + step / 2 - 0.5
    window = CropWindow(start, step, rng.bernoulli(0.5, n), options.size_hw)
    colors = torch.cat([samples.image[which], samples.foreground[which], samples.alpha[which]], dim=1) / 255
    image, foreground, alpha = torch.split(window.sample(colors, padding="border"), [3, 3, 1], dim=1)
    mask = alpha > 0.5
    area = mask.sum(dim=(-2, -1))  # [n, 1]
    first = torch.arange(scenes.present.shape[1], device=area.device) == 0  # [m]
    close_ups = LabeledImages(
        image=image,
        alpha=alpha,
        foreground=foreground,
        parts=window.sample_parts(samples.parts[which]),
        boxes_xyxy=mask_boxes(mask).float() * (first & (area > _MIN_AREA))[..., None],
        ignored=first & (area > _MIN_AREA) & (area <= 0.02 * H * W),
    )
    both = LabeledImages.cat([close_ups, scenes])
    return both.select(torch.arange(n, device=area.device) + n * ~rng.bernoulli(options.close_up_probability, n))


def crop_scenes(scenes: LabeledImages, *, rng: Rng, size_hw: SizeHW) -> LabeledImages:
    """Crop one person of each whole image, as a pose model reads people: small, beside others, half hidden.

    Crops are around the visible part. Images without people are replaced by others; where all are empty, crops are
    anywhere. What lies outside an image is black and empty.
    """
    n, (height, width) = len(scenes), scenes.size_hw
    has_people = scenes.present.any(dim=1)  # [n]
    row = torch.arange(n, device=has_people.device)
    others = has_people.byte().argsort(descending=True, stable=True)[row % has_people.sum().clamp_min(1)]
    scenes = scenes.select(torch.where(has_people, row, others))
    lot = rng.uniform(0.5, 1.0, *scenes.present.shape) * scenes.present  # [n, m]
    box = scenes.require("boxes_xyxy")[row, lot.argmax(dim=1)]  # [n, 4]
    low = rng.uniform(0.0, 0.6, n, 2) * constant((width, height), lot.device)
    anywhere = torch.cat([low, low + 0.4 * min(height, width)], dim=1)
    box = torch.where(scenes.present.any(dim=1, keepdim=True), box, anywhere)
    options = CropSampling(size_hw=size_hw, scale=(0.85, 1.2), shift=0.06)
    start, step = _crop_around(torch.cat([box[:, :2], box[:, 2:] - box[:, :2]], dim=1), rng, options)
    window = CropWindow(start, step, torch.zeros_like(has_people), size_hw)
    matte = window.sample(torch.cat([scenes.require("foreground"), scenes.require("alpha")], dim=1))
    return LabeledImages(
        image=window.sample(scenes.image, mode="bicubic").clamp(0, 1),
        alpha=matte[:, 3:],
        foreground=matte[:, :3],
        parts=window.sample_parts(scenes.require("parts")),
    )
