"""`Matte`: the opacity of the person at each pixel, and the person's color there."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageOps

from vitruvian.draw import checkerboard, composite
from vitruvian.errors import InputError
from vitruvian.files.arrays import write_exr
from vitruvian.files.images import write_image
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.images import load_image
from vitruvian.images.srgb import srgb_to_linear
from vitruvian.images.types import RgbImage, SizeHW
from vitruvian.results.base import Result, array_of, box_window, check_array


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Matte(Result):
    """The opacity of the person at each pixel, and the person's color there.

    The foreground is *premultiplied*: color times alpha, in sRGB values. A composite is
    ``foreground + (1 − alpha) · background``. *Straight* color is the foreground divided by alpha; PNG, WebP and most
    editors expect that, and EXR expects premultiplied linear light: `save` writes each as expected.

    Attributes:
        alpha: 0 (background) to 1 (person), float32 [H, W].
        foreground: Premultiplied RGB, 0 to 1, float32 [H, W, 3].
    """

    task = "matte"
    extensions = (".png", ".webp", ".npz", ".exr", ".crops.zip")
    refused_extensions = dict.fromkeys(
        (".jpg", ".jpeg"),
        " JPEG has no alpha: choose .png. For a composite, use over() in Python, or --over and --save plot.jpg.",
    )

    alpha: NDArray[np.float32] = field(metadata=array_of(np.float32, "H", "W"))
    foreground: NDArray[np.float32] = field(metadata=array_of(np.float32, "H", "W", 3))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values in (("alpha", self.alpha), ("foreground", self.foreground)):
            low, high = float(values.min()), float(values.max())
            if not (low >= -1e-3 and high <= 1 + 1e-3):  # also false for NaN
                raise InputError(f"{name}: expected values from 0 to 1, got {low:.3g} to {high:.3g}.")

    def premultiplied(self) -> NDArray[np.float32]:
        """Return RGBA with color times alpha, float32 [H, W, 4]."""
        both: NDArray[np.float32] = np.concatenate([self.foreground, self.alpha[..., None]], axis=-1)  # [H, W, 4]
        return np.clip(both, np.float32(0), np.float32(1))

    def straight(self) -> NDArray[np.float32]:
        """Return RGBA with the full color, float32 [H, W, 4]; black where alpha is too small to know the color."""
        alpha = np.clip(self.alpha, 0, 1)[..., None]  # [H, W, 1]
        visible = alpha >= 0.5 / 255
        color = np.where(visible, self.foreground / np.where(visible, alpha, 1), 0)
        return np.concatenate([np.clip(color, 0, 1), alpha], axis=-1).astype(np.float32)  # [H, W, 4]

    def rgba(self) -> NDArray[np.uint8]:
        """Return straight RGBA in 8 bits, uint8 [H, W, 4]."""
        return np.round(self.straight() * 255).astype(np.uint8)

    def crops(self) -> list[NDArray[np.uint8]]:
        """Return the bounding box of each person with the background cut out: straight RGBA, uint8 [h, w, 4]."""
        rgba = self.rgba()
        boxes = () if self.people is None else self.people.boxes_xyxy
        return [rgba[box_window(box, self.size_hw)] for box in boxes]

    def over(self, background: str | Path | tuple[int, int, int] | RgbImage | Image.Image) -> RgbImage:
        """Composite the person over a background: uint8 [H, W, 3].

        Args:
            background: A color, as (red, green, blue) from 0 to 255 or as text ("white", "#00ff00"); or an image, as a
                path, PIL or uint8 [h, w, 3]. An image of another size is resized to cover this one and cropped. For a
                video, call this for each frame.
        """
        pixels = _background(background, self.size_hw)
        return composite(np.clip(self.foreground, 0, 1), np.clip(self.alpha, 0, 1), pixels)

    def plot(self) -> Image.Image:
        """Show the person over a checkerboard."""
        return Image.fromarray(self.over(checkerboard(self.size_hw)))

    def write(self, path: Path, extension: str) -> None:
        """Write straight 8-bit RGBA as PNG or WebP, the arrays as NPZ, or EXR: premultiplied, in linear light."""
        if extension in (".png", ".webp"):
            write_image(path, self.rgba())
        elif extension == ".exr":
            straight = self.straight()
            alpha = straight[..., 3]
            linear = srgb_to_linear(torch.from_numpy(straight[..., :3])).numpy()
            channels = {name: linear[..., i] * alpha for i, name in enumerate("RGB")} | {"A": alpha}
            write_exr(path, channels, comments="premultiplied alpha, linear light, sRGB primaries")
        else:
            super().write(path, extension)

    def to_dict(self) -> JsonObject:
        """Return the share of the image that the person covers; NPZ and EXR hold the maps."""
        return super().to_dict() | {"coverage": round(float(self.alpha.mean()), 6)}


def _background(background: object, size_hw: SizeHW) -> RgbImage:
    """Return a background of this size, uint8 [H, W, 3], from a color or an image."""
    color: object = background
    if isinstance(background, str):
        with contextlib.suppress(ValueError):  # the name of a file
            color = ImageColor.getrgb(background)[:3]
    if isinstance(color, (tuple, list)):
        if len(color) != 3 or not all(isinstance(v, (int, np.integer)) and 0 <= v <= 255 for v in color):
            raise InputError(f"background: expected (red, green, blue) from 0 to 255, got {background!r}.")
        return np.full((*size_hw, 3), color, np.uint8)
    if isinstance(background, np.ndarray):
        check_array("background", background, dtype=np.uint8, shape=("h", "w", 3))
        if background.shape[:2] == size_hw:
            return background
        image = Image.fromarray(background)
    elif isinstance(background, (str, Path, Image.Image)):
        image = load_image(background)
    else:
        raise InputError(f"background: expected a color or an image, got {type(background).__name__}.")
    if image.size != size_hw[::-1]:
        image = ImageOps.fit(image, size_hw[::-1], Image.Resampling.LANCZOS)  # resizes to cover, and crops
    return np.asarray(image)
