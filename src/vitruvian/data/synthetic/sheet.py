"""A contact sheet: pictures of a set side by side with everything that is true of them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from vitruvian.data.synthetic.set_files import PictureMaps
from vitruvian.data.synthetic.truth import NORMALS_FOR_DISPLAY, VISIBLE
from vitruvian.human import KEYPOINTS, PART_COLOURS

GAP = 4
PAPER = (24, 24, 28)
CHECKER = (0.42, 0.58)  # two greys, in squares of eight pixels


def contact_sheet(rows: list[tuple[PictureMaps, Tensor]], *, height: int = 192) -> Image.Image:
    """Draw one row for each picture and its keypoints [M, 308, 3]: picture, keypoints, parts, normals, depth, albedo,
    cut-out; each `height` pixels tall."""
    strips = [_row(maps, keypoints, height) for maps, keypoints in rows]
    width = max(strip.width for strip in strips)
    sheet = Image.new("RGB", (width, sum(strip.height + GAP for strip in strips) - GAP), PAPER)
    top = 0
    for strip in strips:
        sheet.paste(strip, (0, top))
        top += strip.height + GAP
    return sheet


def _row(maps: PictureMaps, keypoints: Tensor, height: int) -> Image.Image:
    tiles = [
        Image.fromarray(maps.image.permute(1, 2, 0).numpy()),
        _drawn_keypoints(maps.image, keypoints),
        Image.fromarray(_part_colours(maps.parts)),
        _from_unit(_displayed_normals(maps.normals)),
        _from_unit(_displayed_depth(maps.depth)),
        _from_unit(maps.albedo),
        _from_unit(_over_checker(maps.matte)),
    ]
    width = max(1, round(maps.image.shape[2] * height / maps.image.shape[1]))
    strip = Image.new("RGB", (len(tiles) * (width + GAP) - GAP, height), PAPER)
    for number, tile in enumerate(tiles):
        strip.paste(tile.resize((width, height), Image.Resampling.LANCZOS), (number * (width + GAP), 0))
    return strip


def _drawn_keypoints(image: Tensor, keypoints: Tensor) -> Image.Image:
    """Dots where keypoints are: filled where visible, rings where hidden."""
    scale = max(1, round(384 / image.shape[1]))
    canvas = Image.fromarray(image.permute(1, 2, 0).numpy())
    canvas = canvas.resize((canvas.width * scale, canvas.height * scale), Image.Resampling.BILINEAR)
    pen = ImageDraw.Draw(canvas)
    radius = max(2.0, canvas.height / 130)
    for person in keypoints.tolist():
        for point, (x, y, state) in zip(KEYPOINTS, person, strict=True):
            if state > 0:
                u, v = (x + 0.5) * scale, (y + 0.5) * scale
                box = (u - radius, v - radius, u + radius, v + radius)
                pen.ellipse(box, fill=point.colour if state == VISIBLE else None, outline=point.colour)
    return canvas


def _part_colours(parts: Tensor | None) -> NDArray[np.uint8]:
    """[H, W] labels -> [H, W, 3]."""
    table = np.array(PART_COLOURS, np.uint8)
    return table[np.zeros((1, 1), np.uint8) if parts is None else parts.numpy()]


def _displayed_normals(normals: Tensor | None) -> Tensor | None:
    if normals is None:
        return None
    turned = normals * torch.tensor(NORMALS_FOR_DISPLAY)[:, None, None]  # [3, H, W]
    return (turned / 2 + 0.5) * (normals.abs().sum(0) > 0)


def _displayed_depth(depth: Tensor | None) -> Tensor | None:
    """Near is bright, [H, W] -> [3, H, W]."""
    if depth is None:
        return None
    seen = depth > 0
    if not seen.any():
        return torch.zeros(3, *depth.shape)
    low, high = float(depth[seen].min()), float(depth[seen].max())
    return (torch.where(seen, 1 - 0.85 * (depth - low) / max(high - low, 1e-6), 0.0)).expand(3, -1, -1)


def _over_checker(matte: Tensor | None) -> Tensor | None:
    """Straight colour and alpha [4, H, W] over a checkerboard: [3, H, W]."""
    if matte is None:
        return None
    H, W = matte.shape[1:]
    squares = (torch.arange(-(-H // 8))[:, None] + torch.arange(-(-W // 8))) % 2  # [H/8, W/8]
    behind = torch.tensor(CHECKER)[squares]
    behind = F.interpolate(behind[None, None], scale_factor=8.0, mode="nearest")[0, 0, :H, :W]
    return matte[:3] * matte[3:] + behind * (1 - matte[3:])


def _from_unit(values: Tensor | None) -> Image.Image:
    """[3, H, W] in 0..1 -> a picture; black where there is no such map."""
    if values is None:
        return Image.new("RGB", (1, 1))
    return Image.fromarray((values.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy())
