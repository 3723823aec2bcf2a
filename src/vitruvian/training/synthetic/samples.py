"""Rendered people in few bytes: what a training run composes its images from.

A sample is one person in one rendered image with its ground truth, about 1.8 MB at 384 x 288. Tens of thousands fit on
one GPU, and each is used several times, in front of other backgrounds. Depth is stored as integer codes, here as in
the files of `dataset`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from vitruvian.images.types import SizeHW
from vitruvian.training.synthetic.asset_pack import AssetPack
from vitruvian.training.synthetic.people_batch import sample_people
from vitruvian.training.synthetic.render import DEFAULT_OPTIONS, GroundTruth, RenderOptions, render
from vitruvian.training.synthetic.textures import TexturePyramid
from vitruvian.training.tensor_batch import TensorBatch

_DEPTH_CODES = 32001  # from the nearest to the farthest point of an image, in 16 bits with a sign


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
    depth_low: Tensor  # [n] meters of code 1
    depth_step: Tensor  # [n] meters from one code to the next
    intrinsics: Tensor  # [n, 3, 3] pixels
    keypoints: Tensor  # [n, 308, 3] x, y pixels, and 0 unknown or outside, 1 hidden, 2 visible
    boxes_xywh: Tensor  # [n, 4] pixels, around the visible part
    stature_m: Tensor  # [n] height at rest

    @property
    def size_hw(self) -> SizeHW:
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
    pack: AssetPack,
    count: int,
    *,
    seed: int,
    device: torch.device | str | None = None,
    options: RenderOptions = DEFAULT_OPTIONS,
    pyramid: TexturePyramid | None = None,
) -> Samples:
    """Draw `count` random people, one in each image. The same seed gives the same people.

    They are drawn on `device`, by default that of the pack.
    """
    pack = pack if device is None else pack.to(device)
    generator = torch.Generator().manual_seed(seed)
    people = sample_people(pack, count, generator)
    return _compress(render(people, pack, generator=generator, options=options, pyramid=pyramid))


def _compress(truth: GroundTruth) -> Samples:
    """Store images in few bytes; of each the first person."""
    codes, low, step = encode_depth(truth.pointmap[:, 2:], codes=_DEPTH_CODES)
    return Samples(
        **{name: _to_bytes(getattr(truth, name)) for name in ("image", "foreground", "alpha", "albedo")},
        normals=(truth.normals * 127).round().to(torch.int8),
        depth=codes.to(torch.int16),
        depth_low=low,
        depth_step=step,
        parts=truth.parts[:, None],
        intrinsics=truth.intrinsics,
        keypoints=truth.keypoints[:, 0],
        boxes_xywh=truth.boxes_xywh[:, 0],
        stature_m=truth.stature_m[:, 0],
    )


def _to_bytes(values: Tensor) -> Tensor:
    """Convert 0..1 to 0..255."""
    return (values * 255).round().clamp(0, 255).to(torch.uint8)


def depth_meters(samples: Samples) -> Tensor:
    """Return depth in meters, 0 where there is no person: [n, 1, H, W] float32."""
    return decode_depth(samples.depth, samples.depth_low, samples.depth_step)


def encode_depth(depth: Tensor, *, codes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Encode depth [n, ...], 0 where there is none, as codes from 1 (nearest) to `codes`, and 0.

    Returns the codes as rounded floats, the depth of code 1 [n], and the step to the next code [n].
    """
    flat = depth.flatten(1)
    low = torch.where(flat > 0, flat, torch.inf).amin(dim=1)
    high = flat.amax(dim=1)
    low, high = torch.where(high > 0, low, 1.0), torch.where(high > 0, high, 2.0)
    step = ((high - low) / (codes - 1)).clamp_min(1e-9)
    code = (1 + (flat - low[:, None]) / step[:, None]).round()
    return torch.where(flat > 0, code, 0.0).view_as(depth), low, step


def decode_depth(codes: Tensor, low: Tensor, step: Tensor) -> Tensor:
    """Undo `encode_depth`: low + step · (code − 1), and 0 where the code is 0; in the data type of `low` [n]."""
    low, step = (values.view(-1, *[1] * (codes.ndim - 1)) for values in (low, step))
    return torch.where(codes > 0, low + step * (codes.to(low.dtype) - 1), 0.0)
