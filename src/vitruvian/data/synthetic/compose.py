"""Fresh pictures from stored people: other crops, other backgrounds, other company, other light.

    Samples ─crop─▶ one person at the size a model reads, with all truths

Everything happens on the device of the samples, in one batch of n pictures. `scenes.py` makes whole pictures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.data.synthetic.camera import points_from_depth
from vitruvian.data.synthetic.chance import Chance
from vitruvian.data.synthetic.pieces import CLASS
from vitruvian.data.synthetic.samples import Samples, metres
from vitruvian.human import FLIP_PERMUTATION, PART_FLIP_PERMUTATION
from vitruvian.ops.cache import constant

HIDDEN, VISIBLE = 1.0, 2.0
CLOTHES = tuple(CLASS[name] for name in ("Apparel", "Lower_Clothing", "Upper_Clothing"))


@dataclass(frozen=True)
class CropOptions:
    """How people are cropped and what is put around them. Probabilities are per picture."""

    size_hw: tuple[int, int] = (384, 288)
    padding: float = 1.25  # the crop is the box times this, as at inference
    scale: tuple[float, float] = (0.78, 1.3)
    shift: float = 0.09  # of the crop's sides
    flip: float = 0.5
    new_background: float = 0.6
    blended: float = 0.4  # light and colours of somebody before a new background come near to those of it
    company: float = 0.45  # somebody else in the picture
    printed: float = 0.3  # a picture, a badge or a sign on somebody's clothes, which are clothes still
    occluder: float = 0.12
    edge: float = 0.15  # a table, a wall or the like hides all on one side, and the box is that of what is left
    border: float = 0.15  # the picture ends within the crop

    @classmethod
    def plain(cls, size_hw: tuple[int, int] = (384, 288)) -> Self:
        """Crops as at inference: nothing is moved, mirrored, added or hidden."""
        nothing = dict.fromkeys(
            ("shift", "flip", "new_background", "blended", "company", "printed", "occluder", "edge", "border"), 0.0
        )
        return cls(size_hw=size_hw, scale=(1.0, 1.0), **nothing)


@dataclass(frozen=True)
class Crops:
    """n pictures of one person each (and perhaps somebody else), with truths."""

    image: Tensor  # [n, 3, H, W] 0..1 sRGB
    foreground: Tensor  # [n, 3, H, W] premultiplied
    alpha: Tensor  # [n, 1, H, W]
    albedo: Tensor  # [n, 3, H, W]
    normals: Tensor  # [n, 3, H, W]; zero where not known
    points: Tensor  # [n, 3, H, W] metres; zero where not known
    parts: Tensor  # [n, H, W] int64
    intrinsics: Tensor  # [n, 3, 3]
    keypoints: Tensor  # [n, 308, 3]
    height: Tensor  # [n]


@dataclass(frozen=True)
class Window:
    """An axis-aligned view: source x = x · size_x + start_x, mirrored where `flipped`; all [n]."""

    start_xy: Tensor  # [n, 2] source pixel of the first output pixel
    step_xy: Tensor  # [n, 2] source pixels per output pixel, positive
    flipped: Tensor  # [n] bool
    size_hw: tuple[int, int]

    def source_xy(self) -> tuple[Tensor, Tensor]:
        """Source x of the columns [n, W] and source y of the rows [n, H]."""
        H, W = self.size_hw
        device = self.start_xy.device
        x = torch.arange(W, device=device, dtype=torch.float32).expand(len(self.flipped), W)
        x = torch.where(self.flipped[:, None], W - 1 - x, x)
        y = torch.arange(H, device=device, dtype=torch.float32)
        return x * self.step_xy[:, :1] + self.start_xy[:, :1], y * self.step_xy[:, 1:] + self.start_xy[:, 1:]

    def grid(self, source_hw: tuple[int, int]) -> Tensor:
        """Where each output pixel looks, as grid_sample wants it: [n, H, W, 2]."""
        H, W = self.size_hw
        x, y = self.source_xy()
        height, width = source_hw
        x, y = (2 * x + 1) / width - 1, (2 * y + 1) / height - 1
        return torch.stack([x[:, None].expand(-1, H, W), y[:, :, None].expand(-1, H, W)], dim=-1)

    def forward_xy(self, points: Tensor) -> Tensor:
        """Source x, y to output x, y: [n, J, 2]."""
        moved = (points - self.start_xy[:, None]) / self.step_xy[:, None]
        W = self.size_hw[1]
        x = torch.where(self.flipped[:, None], W - 1 - moved[..., 0], moved[..., 0])
        return torch.stack([x, moved[..., 1]], dim=-1)

    def camera(self, intrinsics: Tensor) -> Tensor:
        """Intrinsics of the view, as if the camera looked at its middle; a mirrored view is that of a mirrored world.

        Where in a larger picture a view was cut cannot be seen in it, and pipelines put points back by depth alone.
        """
        K = intrinsics.clone()
        K[:, 0, 0] = intrinsics[:, 0, 0] / self.step_xy[:, 0]
        K[:, 1, 1] = intrinsics[:, 1, 1] / self.step_xy[:, 1]
        H, W = self.size_hw
        K[:, :2, 2] = constant(((W - 1) / 2, (H - 1) / 2), K.device)
        return K


def compose_crops(samples: Samples, backgrounds: Tensor, *, chance: Chance, options: CropOptions) -> Crops:
    """Crop n people as a pose model gets them, each in new surroundings.

    `backgrounds` [G, S, S, 3] uint8 are pictures without people; with none of them, people stay where they are.
    """
    n, size_hw = len(samples), options.size_hw
    edges = _edges(samples, chance, often=options.edge if len(backgrounds) else 0.0)
    start, step = around_boxes(edges.boxes_xywh, chance, options)
    window = Window(start, step, chance.flip(options.flip, n), options.size_hw)
    crops = _look(samples, window)
    if len(backgrounds):
        crops = _printed(crops, backgrounds, chance, options)
    seen = crops.alpha
    if len(backgrounds):
        fresh = chance.flip(options.new_background, n)[:, None, None, None]
        behind = sample_pictures(backgrounds, n, size_hw, chance=chance)
        lit = blended(relit(crops.foreground, seen, chance), seen, behind, chance, often=options.blended)
        foreground = torch.where(fresh, lit, crops.foreground)
        image = torch.where(fresh, lit + (1 - seen) * behind, crops.image)
        crops = replace(crops, image=image, foreground=foreground)
    order = torch.randperm(n, generator=chance.generator).to(samples.image.device, non_blocking=True)
    crops = _with_company(crops, samples.pick(order), chance, options)
    if len(backgrounds):
        blobs = _blobs(n, chance, options, often=options.occluder, radius=(0.14, 0.45))
        crops = _covered(crops, blobs, backgrounds, chance)
        crops = _covered(crops, edges.beyond(window), backgrounds, chance)
    return _ended(crops, _within(samples, window, chance, options))


def cut_sides(samples: Samples) -> Tensor:
    """At which sides of its picture a person is cut off: left, top, right, bottom [n, 4] bool."""
    H, W = samples.size_hw
    x, y, w, h = samples.boxes_xywh.unbind(1)
    return torch.stack([x <= 1, y <= 1, x + w >= W - 1, y + h >= H - 1], dim=1)


def _within(samples: Samples, window: Window, chance: Chance, options: CropOptions) -> Tensor:
    """Where there is a picture, [n, 1, H, W] bool.

    It ends where a person is cut off, as pictures do; and some pictures end elsewhere too, but not inside a person.
    """
    n, (H, W) = len(samples), samples.size_hw
    x, y, w, h = samples.boxes_xywh.unbind(1)
    box = torch.stack([x, y, x + w, y + h], dim=1)  # [n, 4]
    edge = constant((0.0, 0.0, float(W), float(H)), x.device).expand(n, 4)
    endless = constant((-math.inf, -math.inf, math.inf, math.inf), x.device)
    ends = chance.flip(options.border, n, 4)
    near = torch.lerp(box, edge, chance.uniform(0.0, 1.0, n, 4))
    limit = torch.where(cut_sides(samples), edge, torch.where(ends, near, endless)) - 0.5  # between pixels
    columns, rows = window.source_xy()
    inside_x = (columns >= limit[:, :1]) & (columns <= limit[:, 2:3])  # [n, w]
    inside_y = (rows >= limit[:, 1:2]) & (rows <= limit[:, 3:])  # [n, h]
    return (inside_y[:, :, None] & inside_x[:, None])[:, None]


def _ended(crops: Crops, within: Tensor) -> Crops:
    """Make everything black and empty where there is no picture."""
    return replace(
        crops,
        image=crops.image * within,
        foreground=crops.foreground * within,
        alpha=crops.alpha * within,
        albedo=crops.albedo * within,
        normals=crops.normals * within,
        points=crops.points * within,
        parts=crops.parts * within[:, 0],
    )


@dataclass(frozen=True)
class Edges:
    """Straight edges that people stand behind: hidden is what lies beyond, where x · normal > offset."""

    normal: Tensor  # [n, 2] in source pixels
    offset: Tensor  # [n]; infinite where there is no edge
    boxes_xywh: Tensor  # [n, 4] around what is left

    def beyond(self, window: Window) -> Tensor:
        """Which pixels of the view are hidden, [n, 1, H, W] bool."""
        x, y = window.source_xy()
        along = (x * self.normal[:, :1])[:, None] + (y * self.normal[:, 1:])[:, :, None]  # [n, H, W]
        return (along > self.offset[:, None, None])[:, None]


def _edges(samples: Samples, chance: Chance, *, often: float) -> Edges:
    """Draw edges for `often` of the people: most hide the legs, some one side."""
    n = len(samples)
    x, y, w, h = samples.boxes_xywh.unbind(1)
    wanted = chance.flip(often, n)
    kept = torch.where(wanted, chance.uniform(0.3, 0.85, n), 1.0)  # of the box
    side = chance.choice((0.7, 0.15, 0.15), n)  # hidden: below, right, left
    below, left = side == 0, side == 2
    boxes = torch.stack(
        [
            torch.where(left, x + w * (1 - kept), x),
            y,
            torch.where(below, w, w * kept),
            torch.where(below, h * kept, h),
        ],
        dim=1,
    )
    tilt = chance.normal(0.0, 0.12, n)
    out = torch.where(left, -1.0, 1.0)
    normal = torch.stack(
        [torch.where(below, tilt.sin(), out * tilt.cos()), torch.where(below, tilt.cos(), tilt.sin())], 1
    )
    x, y, w, h = boxes.unbind(1)  # the edge runs through the middle of the side where the box was cut
    at = torch.stack(
        [torch.where(below, x + w / 2, torch.where(left, x, x + w)), torch.where(below, y + h, y + h / 2)], dim=1
    )
    offset = torch.where(wanted, (at * normal).sum(dim=1), torch.inf)
    return Edges(normal, offset, boxes)


def around_boxes(boxes_xywh: Tensor, chance: Chance, options: CropOptions) -> tuple[Tensor, Tensor]:
    """Where views around boxes [n, 4] start, and their steps: [n, 2] each."""
    n, (H, W) = len(boxes_xywh), options.size_hw
    x, y, w, h = boxes_xywh.unbind(1)
    w, h = w.clamp_min(8.0), h.clamp_min(8.0)
    tall = torch.maximum(h * options.padding, w * options.padding * H / W)  # [n]
    tall = tall * chance.log_uniform(*options.scale, n)
    size = torch.stack([tall * W / H, tall], dim=1)  # [n, 2]
    middle = torch.stack([x + w / 2 - 0.5, y + h / 2 - 0.5], dim=1)
    middle = middle + chance.uniform(-1.0, 1.0, n, 2) * options.shift * size
    step = size / constant((W, H), size.device)
    return middle - size / 2 + step / 2, step


def _look(samples: Samples, window: Window) -> Crops:
    """Samples through a window."""
    grid = window.grid(samples.size_hw)
    present = (samples.depth > 0).float()
    depth = metres(samples)
    inverse = torch.where(depth > 0, 1 / depth.clamp_min(1e-3), 0.0)  # even across a flat surface, unlike depth
    stack = torch.cat(
        [
            samples.image / 255,
            samples.foreground / 255,
            samples.alpha / 255,
            samples.albedo / 255,
            samples.normals / 127,
            inverse,
            present,
        ],
        dim=1,
    )  # [n, 15, h, w]
    found = F.grid_sample(stack, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    image, foreground, alpha, albedo, normals, inverse, share = torch.split(found, [3, 3, 1, 3, 3, 1, 1], dim=1)
    parts = F.grid_sample(samples.parts.float(), grid, mode="nearest", padding_mode="zeros", align_corners=False)
    there = (share > 0.99) & (parts > 0)
    mirrored = window.flipped[:, None, None, None]
    normals = torch.where(there, F.normalize(normals, dim=1), 0.0)
    sign = torch.where(window.flipped, -1.0, 1.0)[:, None, None]
    normals = torch.cat([normals[:, :1] * sign[..., None], normals[:, 1:]], dim=1)
    labels = parts[:, 0].long()
    swap = constant(PART_FLIP_PERMUTATION, labels.device)
    labels = torch.where(mirrored[:, 0], swap[labels], labels)
    K = window.camera(samples.intrinsics)
    depth = torch.where(there, 1 / inverse.clamp_min(1e-4), 0.0)  # [n, 1, H, W]
    return Crops(
        image=image,
        foreground=foreground,
        alpha=alpha,
        albedo=albedo,
        normals=normals,
        points=points_from_depth(depth[:, 0], K),
        parts=labels,
        intrinsics=K,
        keypoints=_keypoints(samples.keypoints, window),
        height=samples.height,
    )


def _keypoints(keypoints: Tensor, window: Window) -> Tensor:
    H, W = window.size_hw
    xy = window.forward_xy(keypoints[..., :2])
    inside = (xy >= 0).all(dim=-1) & (xy[..., 0] <= W - 1) & (xy[..., 1] <= H - 1)
    found = torch.cat([xy, (keypoints[..., 2] * inside)[..., None]], dim=-1)  # [n, 308, 3]
    swapped = found[:, constant(FLIP_PERMUTATION, found.device)]
    return torch.where(window.flipped[:, None, None], swapped, found)


def sample_pictures(backgrounds: Tensor, count: int, size_hw: tuple[int, int], *, chance: Chance) -> Tensor:
    """Random cuts of pictures [G, S, S, 3] uint8, some blurred and recoloured: [count, 3, H, W] 0..1."""
    H, W = size_hw
    side = backgrounds.shape[1]
    which = chance.integers(len(backgrounds), count)
    long = max(H, W)
    share = chance.log_uniform(0.35, 1.0, count)  # of the stored side that the long side of the cut sees
    step = share * side / long
    size = torch.stack([step * W, step * H], dim=1)  # [count, 2]
    start = chance.uniform(0.0, 1.0, count, 2) * (side - size)
    window = Window(start, step[:, None].expand(-1, 2), chance.flip(0.5, count), size_hw)
    pictures = backgrounds[which].permute(0, 3, 1, 2).float() / 255
    cut = F.grid_sample(
        pictures, window.grid((side, side)), mode="bilinear", padding_mode="reflection", align_corners=False
    )
    soft = F.interpolate(F.interpolate(cut, scale_factor=0.125, mode="area"), size=size_hw, mode="bilinear")
    blurred = chance.flip(0.3, count)[:, None, None, None]
    cut = torch.where(blurred, soft, cut)
    gain = chance.log_uniform(0.6, 1.5, count)[:, None, None, None]
    tint = chance.log_uniform(0.85, 1.18, count, 3)[:, :, None, None]
    return (cut * gain * tint).clamp(0, 1)


def relit(foreground: Tensor, alpha: Tensor, chance: Chance) -> Tensor:
    """Change the exposure and colour of premultiplied people a little."""
    n = len(foreground)
    gain = chance.log_uniform(0.7, 1.35, n)[:, None, None, None]
    tint = chance.log_uniform(0.9, 1.11, n, 3)[:, :, None, None]
    return torch.minimum(foreground * gain * tint, alpha)


def blended(foreground: Tensor, alpha: Tensor, behind: Tensor, chance: Chance, *, often: float) -> Tensor:
    """Bring the brightness, colour and contrast of some premultiplied people [n, 3, H, W] near to what is behind them.

    In a photograph one light falls on both. Somebody who is pasted in is told by a light of their own otherwise.
    """
    n = len(foreground)
    share = (chance.uniform(0.2, 0.9, n) * chance.flip(often, n))[:, None, None, None]
    weight = alpha.sum(dim=(2, 3), keepdim=True).clamp_min(1.0)
    mean = foreground.sum(dim=(2, 3), keepdim=True) / weight  # [n, 3, 1, 1]
    apart = foreground - alpha * mean
    spread = (apart.square().sum(dim=(1, 2, 3), keepdim=True) / (3 * weight)).sqrt().clamp_min(0.02)  # [n, 1, 1, 1]
    there = behind.mean(dim=(2, 3), keepdim=True)
    wide = (behind - there).square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
    contrast = (wide / spread).clamp(0.4, 2.0) ** share
    moved = apart * contrast + alpha * torch.lerp(mean, there, share)
    return torch.minimum(moved.clamp_min(0), alpha)


def _with_company(crops: Crops, others: Samples, chance: Chance, options: CropOptions) -> Crops:
    """Put somebody else behind or in front of some people; their normals and points are not known."""
    n, (H, W) = len(others), options.size_hw
    cut = cut_sides(others)
    wanted = chance.flip(options.company, n) & ~cut[:, :3].any(dim=1)
    in_front = chance.flip(0.3, n)
    x, y, w, h = others.boxes_xywh.unbind(1)
    tall = h.clamp_min(8.0) * chance.log_uniform(0.9, 2.6, n)  # source pixels that the output's height spans
    size = torch.stack([tall * W / H, tall], dim=1)
    # To the side, so that most of the person stays in sight; more so when the other one is nearer.
    side = torch.where(chance.flip(0.5, n), 1.0, -1.0)
    away = torch.where(in_front, chance.uniform(0.42, 0.75, n), chance.uniform(0.15, 0.65, n)) * side
    middle = torch.stack([x + w / 2, y + h / 2], dim=1) - torch.stack([away, chance.uniform(-0.3, 0.3, n)], 1) * size
    step = size / constant((W, H), size.device)
    start = middle - size / 2
    # Somebody who is cut off below stands at the lower edge, so that the cut is not seen.
    at_edge = torch.stack([start[:, 0], y + h - tall - 0.5], dim=1)
    start = torch.where(cut[:, 3:], at_edge, start)
    window = Window(start, step, chance.flip(0.5, n), options.size_hw)
    other = _look(others, window)
    amount = other.alpha * wanted[:, None, None, None]
    lit = relit(other.foreground, other.alpha, chance) * wanted[:, None, None, None]
    front = in_front[:, None, None, None]
    keep = torch.where(front, 1 - amount, 1.0)  # how much of the first person is seen
    room = torch.where(front, 1.0, 1 - crops.alpha)  # how much of the second
    first_image = crops.image - crops.foreground  # the background's share
    image = (crops.foreground * keep + first_image * (1 - amount) + lit * room).clamp(0, 1)
    mine = crops.alpha * keep >= amount * room  # [n, 1, H, W] whose the pixel is
    theirs = ~mine & (amount * room > 0.5)
    known = ~theirs & (keep > 0.5)
    parts = torch.where(theirs[:, 0], other.parts, torch.where(keep[:, 0] > 0.5, crops.parts, other.parts))
    keypoints = _hide(crops.keypoints, front & (amount > 0.5))
    return replace(
        crops,
        image=image,
        foreground=crops.foreground * keep + lit * room,
        alpha=(crops.alpha * keep + amount * room).clamp(0, 1),
        albedo=torch.where(theirs, other.albedo, crops.albedo),
        normals=crops.normals * known,
        points=crops.points * known,
        parts=parts,
        keypoints=keypoints,
    )


def _blobs(n: int, chance: Chance, options: CropOptions, *, often: float, radius: tuple[float, float]) -> Tensor:
    """Ellipses and rectangles in some pictures, their radii in widths of the picture, [n, 1, H, W] bool."""
    H, W = options.size_hw
    device = chance.device
    wanted = chance.flip(often, n)[:, None, None, None]
    centre = chance.uniform(0.0, 1.0, n, 2) * constant((W, H), device)
    radii = chance.log_uniform(*radius, n, 2) * W
    angle = chance.uniform(0.0, math.pi, n)[:, None, None]
    x = torch.arange(W, device=device) - centre[:, :1, None]  # [n, 1, W]
    y = torch.arange(H, device=device)[:, None] - centre[:, 1:, None]  # [n, H, 1]
    u = (x * angle.cos() + y * angle.sin()) / radii[:, :1, None]
    v = (y * angle.cos() - x * angle.sin()) / radii[:, 1:, None]
    round_ = chance.flip(0.5, n)[:, None, None]
    return torch.where(round_, u.square() + v.square() < 1, (u.abs() < 1) & (v.abs() < 1))[:, None] & wanted


def _printed(crops: Crops, backgrounds: Tensor, chance: Chance, options: CropOptions) -> Crops:
    """Print pictures on some clothes: light and shadow stay, colours change, and so does nothing else."""
    n, size_hw = len(crops.image), options.size_hw
    shape = _blobs(n, chance, options, often=options.printed, radius=(0.03, 0.25))
    clothes = torch.isin(crops.parts, constant(CLOTHES, crops.parts.device))[:, None]
    here = shape & clothes & (crops.alpha > 0.99)
    paint = sample_pictures(backgrounds, n, size_hw, chance=chance)
    light = crops.image.mean(dim=1, keepdim=True) / crops.albedo.mean(dim=1, keepdim=True).clamp_min(0.05)
    shown = (paint * light.clamp(0.2, 2.0)).clamp(0, 1)
    return replace(
        crops,
        image=torch.where(here, shown, crops.image),
        foreground=torch.where(here, shown, crops.foreground),
        albedo=torch.where(here, paint, crops.albedo),
    )


def _covered(crops: Crops, shape: Tensor, backgrounds: Tensor, chance: Chance) -> Crops:
    """Show something else where `shape` [n, 1, H, W] is on."""
    H, W = shape.shape[-2:]
    cover = sample_pictures(backgrounds, len(shape), (H, W), chance=chance)
    clear = ~shape
    return replace(
        crops,
        image=torch.where(shape, cover, crops.image),
        foreground=crops.foreground * clear,
        alpha=crops.alpha * clear,
        normals=crops.normals * clear,
        points=crops.points * clear,
        parts=crops.parts * clear[:, 0],
        keypoints=_hide(crops.keypoints, shape),
    )


def _hide(keypoints: Tensor, covered: Tensor) -> Tensor:
    """Mark keypoints [n, J, 3] under a cover [n, 1, H, W] as hidden."""
    H, W = covered.shape[-2:]
    x = keypoints[..., 0].round().long().clamp(0, W - 1)
    y = keypoints[..., 1].round().long().clamp(0, H - 1)
    under = covered[:, 0].flatten(1).gather(1, y * W + x)  # [n, J]
    state = torch.where(under, keypoints[..., 2].clamp_max(HIDDEN), keypoints[..., 2])
    return torch.cat([keypoints[..., :2], state[..., None]], dim=-1)


def halved(crops: Crops, chance: Chance) -> Crops:
    """Truths at half the size, for heads that predict at half the size; the picture and the keypoints stay."""
    known = (crops.points[:, 2:] > 0).float()
    share = F.avg_pool2d(known, 2)
    there = share > 0.6
    inverse = F.avg_pool2d(torch.where(known > 0, 1 / crops.points[:, 2:].clamp_min(1e-3), 0.0), 2) / share.clamp_min(
        0.1
    )
    depth = torch.where(there, 1 / inverse.clamp_min(1e-4), 0.0)
    K = crops.intrinsics.clone()
    K[:, :2, :2] /= 2
    K[:, :2, 2] = (crops.intrinsics[:, :2, 2] + 0.5) / 2 - 0.5
    normals = F.normalize(F.avg_pool2d(crops.normals, 2), dim=1) * there
    return replace(
        crops,
        foreground=F.avg_pool2d(crops.foreground, 2),
        alpha=F.avg_pool2d(crops.alpha, 2),
        albedo=F.avg_pool2d(crops.albedo, 2),
        normals=normals,
        points=points_from_depth(depth[:, 0], K),
        parts=one_of_four(crops.parts, chance),
        intrinsics=K,
    )


def one_of_four(labels: Tensor, chance: Chance) -> Tensor:
    """One pixel of each 2 x 2, the same for all: over many steps none is preferred, and labels stay labels."""
    row, column = divmod(chance.seed() % 4, 2)
    return labels[:, row::2, column::2]
