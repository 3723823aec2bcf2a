"""What stands behind people: crops of real pictures, blurred panoramas, and made-up backdrops, shapes and rooms.

`pack_scenery` turns the asset folder's light probes and pictures into a few small arrays; `load_scenery` opens them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitruvian.data.synthetic.camera import Cameras, turn
from vitruvian.data.synthetic.chance import Chance
from vitruvian.data.synthetic.filters import blur_far
from vitruvian.data.synthetic.lights import look_up
from vitruvian.data.synthetic.texture import linear_to_srgb
from vitruvian.errors import InputError

STORED_SIDE = 320  # short side of a stored picture
LOADED_SIDE = 320  # side of the squares that pictures are drawn from
PREFIX = "scenery/"
PHOTO, PANORAMA, BACKDROP, CLOUDS, SHAPES, ROOM = range(6)


@dataclass(frozen=True)
class Scenery:
    """Light probes and pictures without people; both may be empty."""

    environments: Tensor  # [E, 64, 128, 3] float32 linear, row 0 is straight up
    backgrounds: Tensor  # [G, S, S, 3] uint8 sRGB

    @classmethod
    def nothing(cls) -> Scenery:
        """No measured light and no pictures: everything will be made up."""
        return cls(torch.zeros(0, 64, 128, 3), torch.zeros(0, LOADED_SIDE, LOADED_SIDE, 3, dtype=torch.uint8))


def pack_scenery(assets_dir: str | Path, backgrounds: str | Path | None = None) -> dict[str, np.ndarray]:
    """Read `hdri/env_64x128.npz` and `backgrounds/*.jpg` of an asset folder into arrays (about 2 MB) for the pack.

    `backgrounds` is another folder of pictures (.jpg, .png, .webp) without people, to be added. Keys start with
    `scenery/`: `environments` [E, 64, 128, 3] float16, `jpeg` [bytes] uint8 and `jpeg_ends` [G] int64.
    """
    folder = Path(assets_dir)
    probes = folder / "hdri" / "env_64x128.npz"
    if not probes.is_file():
        raise InputError(f"{folder}: expected the file hdri/env_64x128.npz, got none. Point to a people-assets folder.")
    with np.load(probes) as archive:
        environments = archive["rgb"].astype(np.float16)
    coded: list[bytes] = []
    paths = sorted((folder / "backgrounds").glob("*.jpg"))
    if backgrounds is not None:
        more = [path for path in Path(backgrounds).iterdir() if path.suffix.lower() in (".jpg", ".png", ".webp")]
        if not more:
            raise InputError(f"{backgrounds}: expected pictures (.jpg, .png, .webp), got none.")
        paths += sorted(more)
    for path in paths:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
        ratio = STORED_SIDE / min(picture.size)
        if ratio < 1:
            size = (round(picture.width * ratio), round(picture.height * ratio))
            picture = picture.resize(size, Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        picture.save(buffer, format="JPEG", quality=80)
        coded.append(buffer.getvalue())
    return {
        PREFIX + "environments": environments,
        PREFIX + "jpeg": np.frombuffer(b"".join(coded), dtype=np.uint8).copy(),
        PREFIX + "jpeg_ends": np.cumsum([len(c) for c in coded], dtype=np.int64),
    }


def load_scenery(arrays: Mapping[str, np.ndarray]) -> Scenery:
    """Open what `pack_scenery` wrote; each picture becomes two squares, its beginning and its end.

    Arrays without those keys give an empty scenery.
    """
    if PREFIX + "environments" not in arrays:
        return Scenery.nothing()
    environments = torch.from_numpy(np.asarray(arrays[PREFIX + "environments"]).astype(np.float32))
    coded, ends = np.asarray(arrays[PREFIX + "jpeg"]), np.asarray(arrays[PREFIX + "jpeg_ends"]).tolist()
    squares: list[np.ndarray] = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        with Image.open(io.BytesIO(coded[start:end].tobytes())) as opened:
            picture = opened.convert("RGB")
        side = min(picture.size)
        for left, top in ((0, 0), (picture.width - side, picture.height - side)):
            square = picture.crop((left, top, left + side, top + side))
            squares.append(np.asarray(square.resize((LOADED_SIDE, LOADED_SIDE), Image.Resampling.LANCZOS)))
    if not squares:
        return Scenery(environments, Scenery.nothing().backgrounds)
    return Scenery(environments, torch.from_numpy(np.stack(squares)))


def sample_backgrounds(scenery: Scenery, cameras: Cameras, *, chance: Chance) -> Tensor:
    """One background a camera, sRGB [B, 3, H, W] on the device of `chance`."""
    H, W = cameras.size_hw
    B = len(cameras.intrinsics)
    device = chance.device
    weights = [0.62, 0.08, 0.09, 0.05, 0.07, 0.09]
    if not len(scenery.backgrounds):
        weights[PHOTO] = 0.0
    if not len(scenery.environments):
        weights[PANORAMA] = 0.0
    kind = chance.choice(weights, B)  # [B]
    pictures = torch.zeros(B, 3, H, W, device=device)
    for number in range(len(weights)):
        chosen = (kind == number).nonzero()[:, 0]  # [b]
        if len(chosen):
            pictures[chosen] = _draw_kind(number, scenery, cameras.pick(chosen), chance)
    strength = chance.choice((0.35, 0.4, 0.25), B)
    reach = torch.tensor([0.0015, 0.008, 0.045], device=device)[strength] * H
    pictures = blur_far(pictures, reach * chance.uniform(0.3, 1.0, B))
    return _jittered(pictures, chance).clamp(0.0, 1.0)


def _draw_kind(kind: int, scenery: Scenery, cameras: Cameras, chance: Chance) -> Tensor:
    H, W = cameras.size_hw
    B = len(cameras.intrinsics)
    if kind == PHOTO:
        return photo_crops(scenery.backgrounds, B, (H, W), chance=chance)
    if kind == PANORAMA:
        return _panoramas(scenery.environments, cameras, chance)
    if kind == BACKDROP:
        return _backdrops(B, (H, W), chance)
    if kind == CLOUDS:
        return clouds(B, (H, W), chance=chance)
    if kind == SHAPES:
        start = clouds(B, (H, W), chance=chance) * 0.5 + 0.5 * _backdrops(B, (H, W), chance)
        return _with_shapes(start, 14, chance, upright=False)
    return _rooms(B, (H, W), chance)


def photo_crops(photos: Tensor, count: int, size_hw: tuple[int, int], *, chance: Chance) -> Tensor:
    """Random crops of square photos [G, S, S, 3] uint8: part, mirrored, slightly turned; [count, 3, H, W] sRGB."""
    H, W = size_hw
    chosen = photos[chance.integers(len(photos), count).to(photos.device)].to(chance.device)
    images = chosen.permute(0, 3, 1, 2).float() / 255.0  # [B, 3, S, S]
    largest = min(1.0, W / H), min(1.0, H / W)  # width, height of the crop as a share of the square
    zoom = chance.uniform(0.6, 1.0, count)
    lean = chance.normal(0.0, 0.04, count)
    mirror = torch.where(chance.flip(0.5, count), -1.0, 1.0)
    half_w, half_h = zoom * largest[0], zoom * largest[1]
    shift_x = chance.uniform(-1.0, 1.0, count) * (1 - half_w)
    shift_y = chance.uniform(-1.0, 1.0, count) * (1 - half_h)
    cos, sin = lean.cos(), lean.sin()
    theta = torch.stack(
        [
            torch.stack([mirror * cos * half_w, -sin * half_h, shift_x], dim=1),
            torch.stack([mirror * sin * half_w, cos * half_h, shift_y], dim=1),
        ],
        dim=1,
    )  # [B, 2, 3]
    grid = F.affine_grid(theta, [count, 3, H, W], align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def _panoramas(environments: Tensor, cameras: Cameras, chance: Chance) -> Tensor:
    """The view of each camera into a light probe, exposed for its middle tones."""
    B, (H, W) = len(cameras.intrinsics), cameras.size_hw
    maps = environments[chance.integers(len(environments), B).to(environments.device)].to(chance.device)
    rays = pixel_rays(cameras)  # [B, H·W, 3]
    angle = chance.uniform(0.0, 2 * math.pi, B, 1)
    x, y, z = F.normalize(rays, dim=-1).unbind(-1)
    turned = torch.stack([angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y, z], dim=-1)
    picture = torch.arange(B, device=maps.device).repeat_interleave(H * W)
    seen = look_up(maps, turned.flatten(0, 1), picture).view(B, H, W, 3).permute(0, 3, 1, 2)  # [B, 3, H, W]
    exposure = 0.2 / seen.mean(dim=1).flatten(1).median(dim=1).values.clamp_min(1e-3)
    exposed = seen * exposure[:, None, None, None]
    return linear_to_srgb((exposed / (1 + 0.5 * exposed)).clamp(0.0, 1.0))


def pixel_rays(cameras: Cameras) -> Tensor:
    """World directions through the pixel centres, with depth 1 along the camera's axis: [B, H·W, 3]."""
    H, W = cameras.size_hw
    device = cameras.intrinsics.device
    K = cameras.intrinsics[:, :, :, None]  # [B, 3, 3, 1]
    pixel = torch.arange(H * W, device=device)[None]  # [1, H·W]
    x = (pixel % W - K[:, 0, 2]) / K[:, 0, 0]  # [B, H·W]
    y = (pixel.div(W, rounding_mode="floor") - K[:, 1, 2]) / K[:, 1, 1]
    rays = torch.stack([x, y, torch.ones_like(x)], dim=-1)  # [B, H·W, 3]
    return turn(rays, cameras.rotation.transpose(1, 2)[:, None])  # [B, H·W, 3]


def _grid(size_hw: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """x and y [1, 1, H, W]; y runs from -1 to 1, x in the same unit."""
    H, W = size_hw
    y = (torch.arange(H, device=device) + 0.5) / H * 2 - 1
    x = ((torch.arange(W, device=device) + 0.5) / W * 2 - 1) * (W / H)
    return x.view(1, 1, 1, W), y.view(1, 1, H, 1)


def _colours(B: int, chance: Chance, *, grey: float = 0.6) -> Tensor:
    """Random colours [B, 3, 1, 1]; `grey` of them have little colour."""
    level, colour = chance.uniform(0.05, 0.95, B, 1), chance.uniform(0.0, 1.0, B, 3)
    plain = (level + 0.12 * (colour - 0.5)).clamp(0.0, 1.0)
    colour = colour + (colour.mean(dim=1, keepdim=True) - colour) * chance.uniform(0.1, 0.8, B, 1)
    return torch.where(chance.flip(grey, B, 1), plain, colour)[:, :, None, None]


def _backdrops(B: int, size_hw: tuple[int, int], chance: Chance) -> Tensor:
    """Studio paper: two similar colours in a straight or round gradient."""
    x, y = _grid(size_hw, chance.device)
    angle = chance.uniform(0.0, 2 * math.pi, B, 1, 1, 1)
    straight = 0.5 + 0.4 * (x * angle.cos() + y * angle.sin())
    centre_x, centre_y = chance.normal(0.0, 0.4, B, 1, 1, 1), chance.normal(0.0, 0.4, B, 1, 1, 1)
    round_ = torch.hypot(x - centre_x, y - centre_y) / chance.uniform(0.8, 2.5, B, 1, 1, 1)
    t = torch.where(chance.flip(0.5, B, 1, 1, 1), straight, round_).clamp(0.0, 1.0)
    first = _colours(B, chance)
    second = (first * chance.uniform(0.3, 1.3, B, 1, 1, 1) + chance.normal(0.0, 0.05, B, 3, 1, 1)).clamp(0.0, 1.0)
    return first + (second - first) * t


def clouds(B: int, size_hw: tuple[int, int], *, chance: Chance) -> Tensor:
    """Coloured noise of several sizes, [B, 3, H, W] in 0..1: plaster, leaves, carpet."""
    H, W = size_hw
    total = torch.zeros(B, 3, H, W, device=chance.device)
    fade = chance.uniform(0.35, 0.9, B, 1, 1, 1)
    weight = torch.ones(B, 1, 1, 1, device=chance.device)
    for octave in range(6):
        h, w = min(3 * 2**octave, H), min(3 * 2**octave, W)
        grey = chance.field(B, 1, h, w) - 0.5
        colour = (chance.field(B, 3, h, w) - 0.5) * 0.35
        total = total + weight * F.interpolate(grey + colour, size=size_hw, mode="bicubic", align_corners=False)
        weight = weight * fade
    return (_colours(B, chance) + total * chance.uniform(0.1, 0.6, B, 1, 1, 1)).clamp(0.0, 1.0)


def soft_shape(
    B: int, size_hw: tuple[int, int], *, chance: Chance, upright: bool = False, largest: float = 0.6
) -> Tensor:
    """Coverage [B, 1, H, W] of one random box or ellipse a picture."""
    x, y = _grid(size_hw, chance.device)
    aspect = size_hw[1] / size_hw[0]
    x, y = x - chance.uniform(-aspect, aspect, B, 1, 1, 1), y - chance.uniform(-1.0, 1.0, B, 1, 1, 1)
    angle = chance.uniform(-math.pi, math.pi, B, 1, 1, 1) * (0.0 if upright else 1.0)
    u, v = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    half_u, half_v = chance.log_uniform(0.04, largest, B, 1, 1, 1), chance.log_uniform(0.04, largest, B, 1, 1, 1)
    box = torch.maximum(u.abs() - half_u, v.abs() - half_v)
    ellipse = (torch.hypot(u / half_u, v / half_v) - 1) * torch.minimum(half_u, half_v)
    distance = torch.where(chance.flip(0.3 if upright else 0.5, B, 1, 1, 1), ellipse, box)
    return (0.5 - distance * size_hw[0] / 2 / chance.log_uniform(1.0, 6.0, B, 1, 1, 1)).clamp(0.0, 1.0)


def _with_shapes(pictures: Tensor, count: int, chance: Chance, *, upright: bool) -> Tensor:
    """Lay boxes and ellipses, each with a gradient of its own, over pictures [B, 3, H, W]."""
    B, size_hw = len(pictures), (pictures.shape[2], pictures.shape[3])
    for _ in range(count):
        cover = soft_shape(B, size_hw, chance=chance, upright=upright) * chance.flip(0.6, B, 1, 1, 1)
        pictures = pictures + cover * (_backdrops(B, size_hw, chance) - pictures)
    return pictures


def _rooms(B: int, size_hw: tuple[int, int], chance: Chance) -> Tensor:
    """A wall with pictures and windows, a floor of boards or tiles, sometimes a second wall."""
    x, y = _grid(size_hw, chance.device)
    wall = _with_shapes(_backdrops(B, size_hw, chance), 5, chance, upright=True)
    corner = chance.uniform(-0.8, 0.8, B, 1, 1, 1)
    second = wall * chance.uniform(0.5, 0.95, B, 1, 1, 1)
    wall = torch.where((x > corner) & chance.flip(0.5, B, 1, 1, 1), second, wall)
    line = chance.uniform(-0.1, 0.9, B, 1, 1, 1) + chance.normal(0.0, 0.15, B, 1, 1, 1) * x
    depth = 1.0 / (y - line + 0.25).clamp_min(0.05)
    boards = torch.sin(x * depth * chance.log_uniform(4.0, 20.0, B, 1, 1, 1)) * torch.where(
        chance.flip(0.5, B, 1, 1, 1), torch.sin(depth * chance.log_uniform(4.0, 20.0, B, 1, 1, 1)), 1.0
    )
    floor = _colours(B, chance, grey=0.7) * (1 + chance.uniform(0.0, 0.25, B, 1, 1, 1) * boards.sign())
    floor = floor * (1 + 0.2 * (y - line))
    floor = floor + 0.06 * (clouds(B, size_hw, chance=chance) - 0.5)
    return torch.where(y > line, floor, wall).clamp(0.0, 1.0)


def _jittered(pictures: Tensor, chance: Chance) -> Tensor:
    """Change brightness, contrast and colour of pictures [B, 3, H, W] at random."""
    B = len(pictures)
    gamma = chance.log_uniform(0.65, 1.6, B, 1, 1, 1)
    pictures = pictures.clamp(1e-4, 1.0) ** gamma
    grey = pictures.mean(dim=1, keepdim=True)
    pictures = grey + (pictures - grey) * chance.uniform(0.5, 1.3, B, 1, 1, 1)
    return pictures * chance.log_uniform(0.75, 1.2, B, 1, 1, 1) * chance.normal(0.0, 0.04, B, 3, 1, 1).exp()
