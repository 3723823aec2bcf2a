"""Whole pictures from stored people: none to several of them before a background, with their boxes.

Letters: n pictures, m the most people in one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.data.synthetic.chance import Chance
from vitruvian.data.synthetic.compose import (
    CropOptions,
    Window,
    around_boxes,
    cut_sides,
    one_of_four,
    relit,
    sample_pictures,
)
from vitruvian.data.synthetic.samples import Samples
from vitruvian.human import PART_FLIP_PERMUTATION
from vitruvian.ops.cache import constant


@dataclass(frozen=True)
class SceneOptions:
    """How whole pictures are put together."""

    size_hw: tuple[int, int] = (288, 384)
    people: tuple[float, ...] = (0.06, 0.22, 0.2, 0.17, 0.14, 0.12, 0.09)  # probability of 0, 1, 2 … people
    tall: tuple[float, float] = (0.15, 1.35)  # height of a person over that of the picture
    close: float = 0.2  # probability of a picture as it was drawn, of one person, whom any side may cut off


@dataclass(frozen=True)
class Scenes:
    """n whole pictures with up to m people."""

    image: Tensor  # [n, 3, H, W]
    alpha: Tensor  # [n, 1, H, W]
    foreground: Tensor  # [n, 3, H, W] premultiplied
    parts: Tensor  # [n, H, W] int64
    boxes_xyxy: Tensor  # [n, m, 4] around what is seen
    present: Tensor  # [n, m] bool
    ignored: Tensor  # [n, m] bool: too little is seen to ask for

    def pick(self, index: Tensor) -> Self:
        """Return some of them, index [k] int64."""
        return replace(self, **{field.name: getattr(self, field.name)[index] for field in fields(self)})


def compose_scenes(
    samples: Samples, backgrounds: Tensor, count: int, *, chance: Chance, options: SceneOptions
) -> Scenes:
    """Put people into `count` whole pictures. Larger people stand in front.

    A person whose sample is cut off at the lower edge stands at the lower edge; one cut off elsewhere is not used.
    """
    H, W = options.size_hw
    device = samples.image.device
    most = len(options.people) - 1
    number = chance.choice(options.people, count)  # [n]
    if len(backgrounds):
        image = sample_pictures(backgrounds, count, options.size_hw, chance=chance)
    else:
        image = chance.field(count, 3, 1, 1).expand(-1, -1, H, W).clone()
    places = fit_for_scenes(samples).cumsum(0)  # [N] those who can be used, counted
    number = torch.where(places[-1] > 0, number, 0)
    # Drawn from the count, so that nobody waits for the device to say how many there are.
    drawn = (chance.uniform(0.0, 1.0, count, most) * places[-1]).floor() + 1
    which = torch.searchsorted(places, drawn.long().clamp(max=places[-1])).clamp(max=len(samples) - 1)  # [n, m]
    wanted = torch.arange(most, device=device) < number[:, None]  # [n, m]
    tall, order = chance.log_uniform(*options.tall, count, most).sort(dim=1)  # [n, m] farthest first
    wanted = wanted.gather(1, order)
    seen, labels = _placed(samples, which.flatten(), tall.flatten(), chance, options)
    lit = relit(seen[:, :3], seen[:, 3:], chance).view(count, most, 3, H, W)
    there = wanted[:, :, None, None, None]
    lit, alpha = lit * there, seen[:, 3:].reshape(count, most, 1, H, W) * there
    labels = labels.view(count, most, H, W)
    alphas: list[Tensor] = []
    parts = torch.zeros(count, H, W, dtype=torch.int64, device=device)
    total = torch.zeros(count, 1, H, W, device=device)
    foreground = torch.zeros(count, 3, H, W, device=device)
    for m in range(most):
        rest = 1 - alpha[:, m]
        image = torch.addcmul(lit[:, m], rest, image)
        foreground = torch.addcmul(lit[:, m], rest, foreground)
        total = torch.addcmul(alpha[:, m], rest, total)
        covered = alpha[:, m, 0] > 0.5
        parts = torch.where(covered, labels[:, m], parts)
        alphas = [before & ~covered for before in alphas] + [covered]
    masks = torch.stack(alphas, dim=1)  # [n, m, H, W] what is seen of each
    boxes, area = _boxes(masks)
    wide, high = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    enough = (wide >= 8) & (high >= 12) & (area >= 0.12 * wide * high)
    some_seen = area > 12
    scenes = Scenes(
        image=image.clamp(0, 1),
        alpha=total,
        foreground=foreground.clamp(0, 1),
        parts=parts,
        boxes_xyxy=boxes,
        present=some_seen & enough,
        ignored=some_seen & ~enough,
    )
    return _with_portraits(scenes, samples, chance, options) if options.close else scenes


def _with_portraits(scenes: Scenes, samples: Samples, chance: Chance, options: SceneOptions) -> Scenes:
    """Let some of the whole pictures be views of samples as they were drawn: somebody near, cut off at any side."""
    n, (H, W) = len(scenes.image), options.size_hw
    height, width = samples.size_hw
    which = chance.integers(len(samples), n)
    step = min(height / H, width / W) * chance.uniform(0.75, 1.0, n)  # [n] source pixels per output pixel
    room = constant((width, height), step.device) - step[:, None] * constant((W, H), step.device)  # [n, 2]
    start = chance.uniform(0.0, 1.0, n, 2) * room + step[:, None] / 2 - 0.5
    flipped = chance.flip(0.5, n)
    window = Window(start, step[:, None].expand(-1, 2), flipped, options.size_hw)
    grid = window.grid((height, width))
    colours = torch.cat([samples.image[which], samples.foreground[which], samples.alpha[which]], dim=1) / 255
    seen = F.grid_sample(colours, grid, mode="bilinear", padding_mode="border", align_corners=False)
    image, foreground, alpha = torch.split(seen, [3, 3, 1], dim=1)
    labels = F.grid_sample(samples.parts[which].float(), grid, mode="nearest", align_corners=False)[:, 0].long()
    labels = torch.where(flipped[:, None, None], constant(PART_FLIP_PERMUTATION, labels.device)[labels], labels)
    box, area = _boxes(alpha > 0.5)  # [n, 1, 4], [n, 1]
    found = area > 0.02 * H * W
    row = chance.flip(options.close, n)  # [n]
    first = torch.arange(scenes.present.shape[1], device=row.device) == 0  # [m]
    wide, tall = row[:, None, None], row[:, None, None, None]
    return Scenes(
        image=torch.where(tall, image, scenes.image),
        alpha=torch.where(tall, alpha, scenes.alpha),
        foreground=torch.where(tall, foreground, scenes.foreground),
        parts=torch.where(wide, labels, scenes.parts),
        boxes_xyxy=torch.where(wide, box * (first & found)[..., None], scenes.boxes_xyxy),
        present=torch.where(row[:, None], first & found, scenes.present),
        ignored=torch.where(row[:, None], first & ~found & (area > 12), scenes.ignored),
    )


def crop_scenes(scenes: Scenes, *, chance: Chance, size_hw: tuple[int, int]) -> Scenes:
    """Cut somebody out of each whole picture, as a pose model gets people: small, in company, half hidden.

    Crops are about the box of what is seen. Pictures without anybody make room for others; where all are empty, they
    are cut anywhere. What lies outside a picture is black and empty.
    """
    n, (H, W) = len(scenes.image), size_hw
    height, width = scenes.image.shape[-2:]
    peopled = scenes.present.any(dim=1)  # [n]
    row = torch.arange(n, device=peopled.device)
    # Where nobody is, somebody of another picture takes the place; without waiting for the device to say who.
    others = peopled.byte().argsort(descending=True, stable=True)[row % peopled.sum().clamp_min(1)]
    scenes = scenes.pick(torch.where(peopled, row, others))
    lot = chance.uniform(0.5, 1.0, *scenes.present.shape) * scenes.present  # [n, m]
    box = scenes.boxes_xyxy[row, lot.argmax(dim=1)]  # [n, 4]
    low = chance.uniform(0.0, 0.6, n, 2) * constant((width, height), lot.device)
    anywhere = torch.cat([low, low + 0.4 * min(height, width)], dim=1)
    box = torch.where(scenes.present.any(dim=1, keepdim=True), box, anywhere)
    options = CropOptions(size_hw=size_hw, scale=(0.85, 1.2), shift=0.06)
    start, step = around_boxes(torch.cat([box[:, :2], box[:, 2:] - box[:, :2]], dim=1), chance, options)
    window = Window(start, step, torch.zeros(n, dtype=torch.bool, device=lot.device), size_hw)
    grid = window.grid((height, width))
    image = F.grid_sample(scenes.image, grid, mode="bicubic", padding_mode="zeros", align_corners=False).clamp(0, 1)
    matte = torch.cat([scenes.foreground, scenes.alpha], dim=1)
    matte = F.grid_sample(matte, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    foreground, alpha = torch.split(matte, [3, 1], dim=1)
    parts = F.grid_sample(scenes.parts[:, None].float(), grid, mode="nearest", align_corners=False)[:, 0].long()
    limit = constant((W, H, W, H), lot.device)
    moved = (scenes.boxes_xyxy - 0.5 - start.repeat(1, 2)[:, None]) / step.repeat(1, 2)[:, None] + 0.5  # [n, m, 4]
    moved = moved.clamp_min(0).minimum(limit)
    inside = (moved[..., 2:] - moved[..., :2] > 1).all(dim=-1)
    return Scenes(
        image=image,
        alpha=alpha,
        foreground=foreground,
        parts=parts,
        boxes_xyxy=moved * inside[..., None],
        present=scenes.present & inside,
        ignored=scenes.ignored & inside,
    )


def fit_for_scenes(samples: Samples) -> Tensor:
    """Who can be put into another picture: people of some size who are not cut off, unless below; [n] bool."""
    _, _, w, h = samples.boxes_xywh.unbind(1)
    return ~cut_sides(samples)[:, :3].any(dim=1) & (h >= 24) & (w >= 12)


def _placed(
    samples: Samples, which: Tensor, tall: Tensor, chance: Chance, options: SceneOptions
) -> tuple[Tensor, Tensor]:
    """People `which` [k] at random places of whole pictures: premultiplied colour and alpha [k, 4, H, W], parts."""
    place, flipped = chance.uniform(0.0, 1.0, len(which), 2), chance.flip(0.5, len(which))
    cut_below = cut_sides(samples)[:, 3][which]
    window = _scene_window(samples.boxes_xywh[which], cut_below, tall, place, flipped, options.size_hw)
    grid = window.grid(samples.size_hw)
    stack = torch.cat([samples.foreground[which], samples.alpha[which]], dim=1) / 255
    seen = F.grid_sample(stack, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    label = F.grid_sample(samples.parts[which].float(), grid, mode="nearest", align_corners=False)[:, 0].long()
    swap = constant(PART_FLIP_PERMUTATION, label.device)
    return seen, torch.where(flipped[:, None, None], swap[label], label)


def _scene_window(
    boxes_xywh: Tensor, cut_below: Tensor, tall: Tensor, place: Tensor, flipped: Tensor, size_hw: tuple[int, int]
) -> Window:
    """The views that put people at their places."""
    H, W = size_hw
    x, y, w, h = boxes_xywh.unbind(1)
    # A cut-off person shows about half of itself: what is seen fills more of the picture.
    step = h / (tall * torch.where(cut_below, 0.8, 1.0) * H)  # [n] source pixels per output pixel
    wide, high = w / step, h / step  # in output pixels
    left = place[:, 0] * (W + 0.5 * wide) - 0.75 * wide
    top = place[:, 1] * (H + 0.3 * high) - 0.65 * high
    # Most people are seen whole or stand on the lower part.
    inside = (top + high).clamp(max=H) - high
    top = torch.where(high < H, torch.where(place[:, 1] < 0.85, inside, top), top)
    top = torch.where(cut_below, H - high, top)
    # The view is mirrored about its middle: place the mirrored person so that it ends where it should.
    start_x = torch.where(flipped, x + w - (W - 1 - left) * step, x - left * step)
    start_y = y - top * step
    return Window(torch.stack([start_x, start_y], dim=1), step[:, None].expand(-1, 2), flipped, size_hw)


def _boxes(masks: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes x1, y1, x2, y2 around masks [n, m, H, W], far edges outside, and areas [n, m]."""
    columns, rows = masks.any(dim=-2), masks.any(dim=-1)  # [n, m, W], [n, m, H]
    sides = []
    for line in (columns, rows):
        length = line.shape[-1]
        first = line.float().argmax(dim=-1)
        last = length - line.flip(-1).float().argmax(dim=-1)
        some = line.any(dim=-1)
        sides.append((torch.where(some, first, 0), torch.where(some, last, 0)))
    (x1, x2), (y1, y2) = sides
    return torch.stack([x1, y1, x2, y2], dim=-1).float(), masks.sum(dim=(-2, -1))


def halved_scenes(scenes: Scenes, chance: Chance) -> Scenes:
    """Truths at half the size; the picture and the boxes stay."""
    return replace(
        scenes,
        alpha=F.avg_pool2d(scenes.alpha, 2),
        foreground=F.avg_pool2d(scenes.foreground, 2),
        parts=one_of_four(scenes.parts, chance),
    )
