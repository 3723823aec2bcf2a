"""People cut out and kept small: what a training run draws its pictures from.

A sample is one person in one rendered picture, with all truths in few bytes (about 1.8 MB at 384 x 288), so that tens
of thousands fit on one GPU and each can be used several times, every time in front of something else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from vitruvian.data.synthetic.people import Pack
from vitruvian.data.synthetic.render import RenderOptions, render
from vitruvian.data.synthetic.sample import sample_people
from vitruvian.data.synthetic.texture import TexturePyramid
from vitruvian.data.synthetic.truth import Truth
from vitruvian.errors import InputError

DEPTH_STEPS = 32000  # depths of a picture are stored in so many steps between its nearest and farthest point


@dataclass(frozen=True)
class Samples:
    """n people, one in each picture."""

    image: Tensor  # [n, 3, H, W] uint8 sRGB
    foreground: Tensor  # [n, 3, H, W] uint8 sRGB x alpha
    alpha: Tensor  # [n, 1, H, W] uint8
    albedo: Tensor  # [n, 3, H, W] uint8 sRGB
    normals: Tensor  # [n, 3, H, W] int8, unit vectors x 127
    depth: Tensor  # [n, 1, H, W] int16, from 1 (nearest) on; 0: nobody
    parts: Tensor  # [n, 1, H, W] uint8
    depth_range: Tensor  # [n, 2] metres of the first and the last step
    intrinsics: Tensor  # [n, 3, 3] pixels
    keypoints: Tensor  # [n, 308, 3] x, y pixels, and 0 unknown or outside, 1 hidden, 2 visible
    boxes_xywh: Tensor  # [n, 4] pixels, around what is seen
    height: Tensor  # [n] metres

    def __len__(self) -> int:
        """Number of people n."""
        return len(self.image)

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        return self.image.shape[-2], self.image.shape[-1]

    def pick(self, index: Tensor) -> Self:
        """Return some of them, index [m] int64."""
        return replace(self, **{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def put(self, start: int, others: Samples) -> None:
        """Overwrite as many samples as there are others, from `start` on."""
        for field in fields(self):
            getattr(self, field.name)[start : start + len(others)] = getattr(others, field.name)

    def room(self, count: int) -> Self:
        """Return uninitialised samples of the same size for `count` people."""
        return replace(
            self, **{field.name: getattr(self, field.name).new_empty(count, *getattr(self, field.name).shape[1:])
                     for field in fields(self)}
        )  # fmt: skip


def render_samples(
    pack: Pack,
    count: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    options: RenderOptions | None = None,
    pyramid: TexturePyramid | None = None,
) -> Samples:
    """Draw `count` random people, one a picture; a seed gives the same ones again."""
    generator = torch.Generator().manual_seed(seed)
    people = sample_people(pack, count, generator, device)
    truth = render(people, pack, generator=generator, options=options, pyramid=pyramid)
    return compact(truth, height=people.height)


def compact(truth: Truth, *, height: Tensor) -> Samples:
    """Store the truths of pictures with one person each in few bytes; `height` [n] metres."""
    if truth.keypoints.shape[1] != 1:
        raise InputError(
            f"compact: expected one person in each picture, got up to {truth.keypoints.shape[1]}. Render with "
            "pictures=None."
        )
    depth = truth.pointmap[:, 2:]  # [n, 1, H, W]
    seen = depth > 0
    near = torch.where(seen, depth, torch.inf).amin(dim=(1, 2, 3))  # [n]
    far = torch.where(seen, depth, -torch.inf).amax(dim=(1, 2, 3))
    near, far = torch.where(near <= far, near, 1.0), torch.where(near <= far, far, 2.0)
    step = ((far - near) / DEPTH_STEPS).clamp_min(1e-6)[:, None, None, None]
    code = torch.where(seen, 1 + (depth - near[:, None, None, None]) / step, 0.0)
    return Samples(
        image=to_bytes(truth.image),
        foreground=to_bytes(truth.foreground),
        alpha=to_bytes(truth.alpha),
        albedo=to_bytes(truth.albedo),
        normals=(truth.normals * 127).round().to(torch.int8),
        depth=code.round().to(torch.int16),
        parts=truth.parts[:, None],
        depth_range=torch.stack([near, near + step.flatten() * DEPTH_STEPS], dim=1),
        intrinsics=truth.intrinsics,
        keypoints=truth.keypoints[:, 0],
        boxes_xywh=truth.boxes_xywh[:, 0],
        height=height[truth.person_index[:, 0]],
    )


def to_bytes(values: Tensor) -> Tensor:
    """0..1 to 0..255."""
    return (values * 255).round().clamp(0, 255).to(torch.uint8)


def metres(samples: Samples) -> Tensor:
    """Depth in metres, 0 where there is nobody: [n, 1, H, W] float32."""
    near, far = (samples.depth_range[:, i, None, None, None] for i in range(2))
    code = samples.depth.float()
    return torch.where(code > 0, near + (code - 1) * ((far - near) / DEPTH_STEPS), 0.0)
