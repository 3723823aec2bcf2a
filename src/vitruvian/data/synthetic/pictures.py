"""Pictures of a pack: stored as JPEG and PNG, opened as one tensor, with grey twins; and made-up cloth and skin."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitruvian.data.synthetic.people import TEXTURE_SIZE
from vitruvian.data.synthetic.texture import linear_to_srgb, srgb_to_linear
from vitruvian.errors import CheckpointError

GREY_MEAN = 0.62  # mean linear value of a grey twin: a tint of colour / GREY_MEAN gives that colour on average


def decode_textures(rgb: Sequence[bytes], alpha: Sequence[bytes]) -> Tensor:
    """Open pictures (alpha may be empty bytes: opaque) as [T, 512, 512, 4] uint8."""
    out = np.full((len(rgb), TEXTURE_SIZE, TEXTURE_SIZE, 4), 255, np.uint8)
    for index, (colour, holes) in enumerate(zip(rgb, alpha, strict=True)):
        out[index, ..., :3] = _opened(colour, "RGB")
        if holes:
            out[index, ..., 3] = _opened(holes, "L")
    return torch.from_numpy(out)


def _opened(data: bytes, mode: str) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(data)) as picture:
            sized = picture.convert(mode).resize((TEXTURE_SIZE, TEXTURE_SIZE), Image.Resampling.BICUBIC)
    except OSError as error:
        raise CheckpointError(f"pack: expected readable pictures, got {error}. Build the pack again.") from error
    return np.asarray(sized)


def grey_twin(texture: Tensor) -> Tensor:
    """Take the colour out of [512, 512, 4] uint8 and level it: its linear mean, where opaque, becomes GREY_MEAN."""
    values = texture.float() / 255
    linear = srgb_to_linear(values[..., :3]) @ torch.tensor([0.2126, 0.7152, 0.0722])  # [512, 512]
    weight = values[..., 3] + 1e-3
    mean = (linear * weight).sum() / weight.sum()
    # Dark cloth has dark folds: contrast is kept as a ratio, within what can be shown.
    level = (linear / mean.clamp_min(1e-3)).clamp(0.15, 1 / GREY_MEAN) * GREY_MEAN
    level = level * GREY_MEAN / ((level * weight).sum() / weight.sum())
    grey = linear_to_srgb(level.clamp(0, 1))[..., None].expand(-1, -1, 3)
    return (torch.cat([grey, values[..., 3:]], -1) * 255).round().byte()  # [512, 512, 4]


def made_up_fabrics() -> Tensor:
    """Three plain cloths, grey, that tile: even cotton, knitted ribs, coarse twill. [3, 512, 512, 4] uint8."""
    generator = torch.Generator().manual_seed(7)
    y, x = torch.meshgrid(torch.arange(TEXTURE_SIZE), torch.arange(TEXTURE_SIZE), indexing="ij")
    turn = 2 * torch.pi / TEXTURE_SIZE
    cotton = tiling_noise(generator, cells=64)
    knit = torch.sin(turn * 40 * x) * 0.6 + torch.sin(turn * 80 * y + 2 * torch.sin(turn * 40 * x)) * 0.4
    twill = torch.sin(turn * 60 * (x + y)) * 0.7 + tiling_noise(generator, cells=128)
    out = []
    for weave, strength in ((cotton, 0.05), (knit, 0.10), (twill, 0.08)):
        worn = tiling_noise(generator, cells=6)
        level = (GREY_MEAN * (1 + strength * weave + 0.06 * worn)).clamp(0, 1)
        grey = linear_to_srgb(level)[..., None].expand(-1, -1, 3)
        out.append(torch.cat([grey, torch.ones_like(grey[..., :1])], -1))
    return (torch.stack(out) * 255).round().byte()


def made_up_skins() -> Tensor:
    """Plain skin in light, middle and dark, with faint blotches: for packs without pictures. [3, 512, 512, 4] uint8."""
    generator = torch.Generator().manual_seed(11)
    out = []
    for colour in ((0.86, 0.67, 0.57), (0.66, 0.47, 0.36), (0.36, 0.24, 0.18)):
        blotches = sum(tiling_noise(generator, cells=cells) / cells**0.5 for cells in (8, 24, 96))
        base = torch.tensor(colour) * (1 + 0.12 * torch.as_tensor(blotches)[..., None] * torch.tensor([0.7, 1.0, 1.1]))
        out.append(torch.cat([base.clamp(0, 1), torch.ones_like(base[..., :1])], -1))
    return (torch.stack(out) * 255).round().byte()


def made_up_eye() -> Tensor:
    """A brown eye for the texture coordinates of an eyeball: white, iris and pupil around the centre. [512, 512, 4]."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, TEXTURE_SIZE), torch.linspace(-1, 1, TEXTURE_SIZE), indexing="ij")
    radius = (x**2 + y**2).sqrt()[..., None]
    white, brown, black = torch.tensor([0.93, 0.91, 0.89]), torch.tensor([0.32, 0.2, 0.11]), torch.tensor([0.02] * 3)
    colour = torch.where(radius < 0.07, black, torch.where(radius < 0.17, brown, white))
    return (torch.cat([colour, torch.ones_like(radius)], -1) * 255).round().byte()


def tiling_noise(generator: torch.Generator, *, cells: int) -> Tensor:
    """Smooth noise of mean 0 and about unit size that repeats without a seam: [512, 512]."""
    coarse = torch.randn(1, 1, cells, cells, generator=generator)
    coarse = torch.nn.functional.pad(coarse, (2, 2, 2, 2), mode="circular")
    step = TEXTURE_SIZE // cells
    fine = torch.nn.functional.interpolate(coarse, scale_factor=step, mode="bicubic", align_corners=False)[0, 0]
    fine = fine[2 * step :, 2 * step :]
    size = step * cells
    whole = fine[:size, :size]
    repeats = -(-TEXTURE_SIZE // size)
    return whole.repeat(repeats, repeats)[:TEXTURE_SIZE, :TEXTURE_SIZE]
