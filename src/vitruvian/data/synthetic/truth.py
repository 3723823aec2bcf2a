"""What a rendered picture comes with, and how samples become pixels.

Axes are the camera's (OpenCV): x right, y down, z forward. Normals point out of the surface: a surface facing the
camera has z = -1; multiply by `NORMALS_FOR_DISPLAY` for the usual picture (x right, y up, z to the viewer).
The centre of pixel (x, y) is the point (x, y) for keypoints and intrinsics; boxes, as COCO's, end between pixels.

Each pixel has s·s samples. Colour and alpha are averages. Part, normal and point come from the part that most covered
samples show (the nearest one where two tie), and exist where at least half of the samples are covered.
Letters: B pictures, M the most people in one picture, N covered samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.data.synthetic.camera import Cameras, points_from_depth, turn
from vitruvian.data.synthetic.people import PeopleBatch
from vitruvian.data.synthetic.raster import Hits
from vitruvian.data.synthetic.shade import Surface
from vitruvian.data.synthetic.texture import linear_to_srgb

NORMALS_FOR_DISPLAY = (1.0, -1.0, -1.0)
UNKNOWN, HIDDEN, VISIBLE = 0.0, 1.0, 2.0
ONE_SURFACE = 3.0  # pixel sides: samples of a pixel whose depths differ by less belong to one slanted surface
LABELS_PER_PERSON = 32


@dataclass(frozen=True)
class Truth:
    """B pictures and everything that is true of them; zero where there is nobody."""

    image: Tensor  # [B, 3, H, W] float32 0..1 sRGB
    alpha: Tensor  # [B, 1, H, W] share of the pixel that people cover
    foreground: Tensor  # [B, 3, H, W] sRGB x alpha: image = foreground + (1 - alpha) x background, before camera noise
    albedo: Tensor  # [B, 3, H, W] surface colour without light, sRGB
    normals: Tensor  # [B, 3, H, W] unit, camera axes
    pointmap: Tensor  # [B, 3, H, W] metres, camera axes
    parts: Tensor  # [B, H, W] uint8, one of the 29 classes; 0 background
    intrinsics: Tensor  # [B, 3, 3] pixels
    scale: Tensor  # [B, 1] canonical focal length / actual focal length
    keypoints: Tensor  # [B, M, 308, 3] x, y pixels, and 0 unknown or outside, 1 hidden, 2 visible
    boxes_xywh: Tensor  # [B, M, 4] pixels, around what is seen; zero for absent people
    instance_masks: Tensor  # [B, M, H, W] bool
    person_index: Tensor  # [B, M] int64 into the people that were drawn; -1: absent

    def __len__(self) -> int:
        """Number of pictures B."""
        return len(self.image)

    def to(self, device: torch.device | str) -> Truth:
        """Return the same with every tensor on `device`."""
        return Truth(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    @classmethod
    def joined(cls, parts: list[Truth]) -> Truth:
        """Put batches with the same M and size one after the other."""
        return cls(**{field.name: torch.cat([getattr(p, field.name) for p in parts]) for field in fields(cls)})


@dataclass(frozen=True)
class Pixels:
    """Samples averaged into pixels: people only, without background."""

    radiance: Tensor  # [B, 3, H, W] linear, of the covered samples
    albedo: Tensor  # [B, 3, H, W] linear, of the covered samples
    alpha: Tensor  # [B, 1, H, W]
    parts: Tensor  # [B, H, W] uint8
    slots: Tensor  # [B, H, W] int64: which person of the picture, -1 nobody
    normals: Tensor  # [B, 3, H, W]
    pointmap: Tensor  # [B, 3, H, W]


def person_slots(picture: Tensor) -> Tensor:
    """Number the people of each picture from 0 in order, [P] -> [P]."""
    same = picture[:, None] == picture[None, :]  # [P, P]
    return same.tril(diagonal=-1).sum(dim=1)


def resolve(hits: Hits, surface: Surface, radiance: Tensor, cameras: Cameras, *, slot: Tensor, samples: int) -> Pixels:
    """Average N samples into pixels; `radiance` [N, 3], `slot` [P] numbers the people of each picture."""
    H, W = cameras.size_hw
    B = len(cameras.intrinsics)
    device = radiance.device
    pixel, sub = _pixel_of(hits.sample, size_hw=(H, W), samples=samples)
    each = samples * samples
    label = slot[surface.person] * LABELS_PER_PERSON + surface.part  # [N], never 0: part 0 is not drawn

    labels = torch.zeros(B * H * W * each, dtype=torch.int64, device=device)
    depths = torch.full((B * H * W * each,), math.inf, device=device)
    labels[pixel * each + sub] = label
    depths[pixel * each + sub] = hits.depth
    labels, depths = labels.view(-1, each), depths.view(-1, each)  # [B·H·W, s·s]
    count = (labels > 0).sum(dim=1)  # [B·H·W]
    chosen = torch.where(2 * count >= each, _most_common(labels, depths), 0)
    nearest = torch.where(labels == chosen[:, None], depths, math.inf).amin(dim=1)

    side = hits.depth / cameras.focal[surface.picture]  # [N] metres
    kept = (label == chosen[pixel]) & (hits.depth <= nearest[pixel] + 0.005 + ONE_SURFACE * side)
    kept_pixel = pixel[kept]
    ones = torch.ones(len(kept_pixel), 1, device=device)
    weight = _gathered(kept_pixel, ones, B * H * W).clamp_min(1.0)  # [B·H·W, 1]
    # Nearness is what changes evenly across a flat surface in a picture, not depth.
    nearness = _gathered(kept_pixel, 1.0 / hits.depth[kept][:, None], B * H * W) / weight
    in_camera = turn(surface.normal[kept], cameras.rotation[surface.picture[kept]])
    normals = F.normalize(_gathered(kept_pixel, in_camera, B * H * W), dim=1, eps=1e-9)

    share = count.clamp_min(1)[:, None]
    present = chosen > 0
    shape = (B, H, W)
    depth = torch.where(present, 1.0 / nearness[:, 0].clamp_min(1e-9), 0.0).view(shape)
    return Pixels(
        radiance=_picture(_gathered(pixel, radiance, B * H * W) / share, shape),
        albedo=_picture(_gathered(pixel, surface.albedo, B * H * W) / share, shape),
        alpha=(count.float() / each).view(B, 1, H, W),
        parts=(chosen % LABELS_PER_PERSON).byte().view(shape),
        slots=torch.where(present, chosen.div(LABELS_PER_PERSON, rounding_mode="floor"), -1).view(shape),
        normals=_picture(normals, shape),
        pointmap=points_from_depth(depth, cameras.intrinsics),
    )


def _pixel_of(sample: Tensor, *, size_hw: tuple[int, int], samples: int) -> tuple[Tensor, Tensor]:
    """Flat sample index [N] -> flat pixel index and number of the sample in its pixel, [N] each."""
    W = size_hw[1]
    wide = W * samples
    x, row = sample % wide, sample.div(wide, rounding_mode="floor")
    # Rows of all pictures follow each other, and each picture has a whole number of pixel rows.
    pixel = row.div(samples, rounding_mode="floor") * W + x.div(samples, rounding_mode="floor")
    return pixel, (row % samples) * samples + x % samples


def _most_common(labels: Tensor, depths: Tensor) -> Tensor:
    """The label that most covered samples have, the nearer where two tie: [K, S] -> [K]."""
    votes = torch.stack([(labels == labels[:, j : j + 1]).sum(dim=1) for j in range(labels.shape[1])], dim=1)  # [K, S]
    score = torch.where(labels > 0, votes.float() * 1e4 - depths.clamp_max(1e3), -math.inf)
    return labels.gather(1, score.argmax(dim=1, keepdim=True))[:, 0]


def _gathered(index: Tensor, values: Tensor, count: int) -> Tensor:
    """Add rows of `values` [N, C] that have the same index, [count, C]."""
    return torch.zeros(count, values.shape[1], device=values.device).index_add_(0, index, values)


def _picture(values: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """[B·H·W, C] -> [B, C, H, W]."""
    return values.view(*shape, -1).permute(0, 3, 1, 2).contiguous()


def keypoint_truth(
    people: PeopleBatch, points: Tensor, cameras: Cameras, *, picture: Tensor, depth: Tensor, samples: int
) -> Tensor:
    """Project keypoints and test what hides them: camera points [P, 308, 3] -> [P, 308, 3] (x, y, visibility).

    `depth` [B, s·H, s·W] is the depth of what was drawn, infinite where there is nothing. A point is visible if nothing
    is nearer than it by more than its own tolerance, in at least one of the 3 x 3 samples around it.
    """
    H, W = cameras.size_hw
    known = people.keypoint_known[None] & torch.isfinite(points).all(dim=-1)  # [P, 308]
    points = torch.where(known[..., None], points, 1.0)
    screen = cameras.project(points, picture, samples=samples)  # [P, 308, 3]
    fine_x, fine_y = screen[..., 0], screen[..., 1]
    x, y = (fine_x + 0.5) / samples - 0.5, (fine_y + 0.5) / samples - 0.5
    inside = (x >= -0.5) & (x <= W - 0.5) & (y >= -0.5) & (y <= H - 0.5) & (points[..., 2] > 0)
    limit = points[..., 2] - people.keypoint_depth - 0.004
    seen = torch.zeros_like(inside)
    high, wide = depth.shape[1:]
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            column = (fine_x.round().clamp(0, wide - 1).long() + dx).clamp(0, wide - 1)
            row = (fine_y.round().clamp(0, high - 1).long() + dy).clamp(0, high - 1)
            seen = seen | (depth[picture[:, None], row, column] >= limit)
    state = torch.where(seen, VISIBLE, HIDDEN)
    state = torch.where(known & inside, state, UNKNOWN)
    xy = torch.where(known[..., None], torch.stack([x, y], dim=-1), 0.0)
    return torch.cat([xy, state[..., None]], dim=-1)  # [P, 308, 3]


def by_picture(values: Tensor, picture: Tensor, slot: Tensor, *, pictures: int, most: int, empty: float) -> Tensor:
    """Sort rows of people into pictures, [P, ...] -> [B, M, ...]; `empty` where a picture has fewer people."""
    table = torch.full((pictures, most, *values.shape[1:]), empty, dtype=values.dtype, device=values.device)
    table[picture, slot] = values
    return table


def masks_and_boxes(slots: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Which person each pixel shows, [B, H, W] -> masks [B, M, H, W] bool and boxes [B, M, 4] xywh."""
    _, H, W = slots.shape
    masks = slots[:, None] == torch.arange(most, device=slots.device)[None, :, None, None]  # [B, M, H, W]
    columns, rows = masks.any(dim=2), masks.any(dim=3)  # [B, M, W], [B, M, H]
    x0, x1 = columns.float().argmax(dim=-1), W - columns.flip(-1).float().argmax(dim=-1)
    y0, y1 = rows.float().argmax(dim=-1), H - rows.flip(-1).float().argmax(dim=-1)
    boxes = torch.stack([x0, y0, x1 - x0, y1 - y0], dim=-1).float()  # [B, M, 4]
    return masks, boxes * columns.any(dim=-1)[..., None]


def display_albedo(pixels: Pixels) -> Tensor:
    """Surface colour as sRGB where there is somebody, [B, 3, H, W]."""
    return linear_to_srgb(pixels.albedo.clamp(0.0, 1.0)).clamp(0.0, 1.0) * (pixels.parts > 0)[:, None]
