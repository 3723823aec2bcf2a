"""Rendered people in few bytes: what a training run composes its images from.

A sample is one person in one rendered image with its ground truth, about 1.8 MB at 384 x 288. Tens of thousands fit on
one GPU, and each is used several times, in front of other backgrounds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from vitruvian.training.synthetic.pack import Pack
from vitruvian.training.synthetic.people import sample_people
from vitruvian.training.synthetic.render import DEFAULT_OPTIONS, GroundTruth, RenderOptions, render
from vitruvian.training.synthetic.textures import TexturePyramid
from vitruvian.training.tensor_batch import TensorBatch

_DEPTH_STEPS = 32000  # between the nearest and the farthest point of an image


@dataclass(frozen=True)
class Samples(TensorBatch):
    """n people, one in each image."""

    image: Tensor  # [n, 3, H, W] uint8 sRGB
    foreground: Tensor  # [n, 3, H, W] uint8 sRGB x alpha
    alpha: Tensor  # [n, 1, H, W] uint8
    albedo: Tensor  # [n, 3, H, W] uint8 sRGB
    normals: Tensor  # [n, 3, H, W] int8, unit vectors x 127
    depth: Tensor  # [n, 1, H, W] int16, from 1 (nearest); 0: no person
    parts: Tensor  # [n, 1, H, W] uint8
    depth_range: Tensor  # [n, 2] metres of the first and the last step
    intrinsics: Tensor  # [n, 3, 3] pixels
    keypoints: Tensor  # [n, 308, 3] x, y pixels, and 0 unknown or outside, 1 hidden, 2 visible
    boxes_xywh: Tensor  # [n, 4] pixels, around the visible part
    height: Tensor  # [n] metres

    def __len__(self) -> int:
        """Return the number of people n."""
        return len(self.image)

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.image.shape[-2], self.image.shape[-1]

    def write(self, start: int, others: Samples) -> None:
        """Overwrite the rows from `start` with others, in place."""
        for field in fields(self):
            getattr(self, field.name)[start : start + len(others)] = getattr(others, field.name)

    def new_empty(self, count: int) -> Self:
        """Return uninitialized samples of the same size for `count` people."""
        return self.map(lambda value: value.new_empty(count, *value.shape[1:]))


def render_samples(
    pack: Pack,
    count: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    options: RenderOptions = DEFAULT_OPTIONS,
    pyramid: TexturePyramid | None = None,
) -> Samples:
    """Draw `count` random people, one in each image. The same seed gives the same people."""
    generator = torch.Generator().manual_seed(seed)
    people = sample_people(pack, count, generator, device)
    return _compress(render(people, pack, generator=generator, options=options, pyramid=pyramid))


def _compress(truth: GroundTruth) -> Samples:
    """Store images in few bytes; of each the first person."""
    depth = truth.pointmap[:, 2:]  # [n, 1, H, W]
    covered = depth > 0
    near = torch.where(covered, depth, torch.inf).amin(dim=(1, 2, 3))  # [n]
    far = torch.where(covered, depth, -torch.inf).amax(dim=(1, 2, 3))
    near, far = torch.where(near <= far, near, 1.0), torch.where(near <= far, far, 2.0)
    step = ((far - near) / _DEPTH_STEPS).clamp_min(1e-6)[:, None, None, None]
    code = torch.where(covered, 1 + (depth - near[:, None, None, None]) / step, 0.0)
    return Samples(
        **{name: _to_bytes(getattr(truth, name)) for name in ("image", "foreground", "alpha", "albedo")},
        normals=(truth.normals * 127).round().to(torch.int8),
        depth=code.round().to(torch.int16),
        parts=truth.parts[:, None],
        depth_range=torch.stack([near, near + step.flatten() * _DEPTH_STEPS], dim=1),
        intrinsics=truth.intrinsics,
        keypoints=truth.keypoints[:, 0],
        boxes_xywh=truth.boxes_xywh[:, 0],
        height=truth.stature[:, 0],
    )


def _to_bytes(values: Tensor) -> Tensor:
    """Convert 0..1 to 0..255."""
    return (values * 255).round().clamp(0, 255).to(torch.uint8)


def depth_metres(samples: Samples) -> Tensor:
    """Return depth in metres, 0 where there is no person: [n, 1, H, W] float32."""
    near, far = (samples.depth_range[:, i, None, None, None] for i in range(2))
    code = samples.depth.float()
    return torch.where(code > 0, near + (code - 1) * ((far - near) / _DEPTH_STEPS), 0.0)
