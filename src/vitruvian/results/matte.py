"""`Matte`: how much of each pixel is the person, and the person's own colour there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.results.base import Picture, Result
from vitruvian.results.checks import check_array
from vitruvian.results.light import srgb_to_linear

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Matte(Result):
    """How much of each pixel is the person, and the person's own colour there.

    The foreground is *premultiplied*: colour times alpha, in sRGB values. A composite is
    ``foreground + (1 − alpha) · background``. *Straight* colour is the foreground divided by alpha; PNG, WebP and most
    editors expect that, and EXR expects premultiplied linear light: `save` writes each as expected.

    Attributes:
        alpha: 0 (background) to 1 (person), float32 [H, W].
        foreground: Premultiplied RGB, 0 to 1, float32 [H, W, 3].
    """

    task: ClassVar[str] = "matte"
    endings: ClassVar[tuple[str, ...]] = (".png", ".webp", ".npz", ".exr")

    alpha: NDArray[np.float32]
    foreground: NDArray[np.float32]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_array("alpha", self.alpha, dtype=np.float32, shape=self.size_hw)
        check_array("foreground", self.foreground, dtype=np.float32, shape=(*self.size_hw, 3))
        for name, values in (("alpha", self.alpha), ("foreground", self.foreground)):
            low, high = float(values.min()), float(values.max())
            if not (low >= -1e-3 and high <= 1 + 1e-3):  # also false for NaN
                raise InputError(f"{name}: expected values from 0 to 1, got {low:.3g} to {high:.3g}.")

    def premultiplied(self) -> NDArray[np.float32]:
        """Return RGBA with colour times alpha, float32 [H, W, 4]."""
        both: NDArray[np.float32] = np.concatenate([self.foreground, self.alpha[..., None]], axis=-1)  # [H, W, 4]
        return np.clip(both, np.float32(0), np.float32(1))

    def straight(self) -> NDArray[np.float32]:
        """Return RGBA with the full colour, float32 [H, W, 4]; black where alpha is too small to tell a colour."""
        alpha = np.clip(self.alpha, 0, 1)[..., None]  # [H, W, 1]
        tellable = alpha >= 0.5 / 255
        colour = np.where(tellable, self.foreground / np.where(tellable, alpha, 1), 0)
        return np.concatenate([np.clip(colour, 0, 1), alpha], axis=-1).astype(np.float32)  # [H, W, 4]

    def rgba(self) -> NDArray[np.uint8]:
        """Return straight RGBA in 8 bits, uint8 [H, W, 4]."""
        return np.round(self.straight() * 255).astype(np.uint8)

    def over(self, background: str | Path | tuple[int, int, int] | Picture | Image) -> Picture:
        """Put the person over a background: uint8 [H, W, 3].

        Args:
            background: A colour, as (red, green, blue) from 0 to 255 or as text ("white", "#00ff00"); or a picture, as
                a path, PIL or uint8 [h, w, 3]. A picture of another size is enlarged or shrunk to cover this one and
                cut at the edges. For a video, call this for each frame.
        """
        from vitruvian.draw import lay_over

        return lay_over(np.clip(self.foreground, 0, 1), np.clip(self.alpha, 0, 1), ground(background, self.size_hw))

    def plot(self) -> Image:
        """Show the person over a checkerboard."""
        from PIL import Image

        from vitruvian.draw import over_checkerboard

        return Image.fromarray(over_checkerboard(np.clip(self.foreground, 0, 1), np.clip(self.alpha, 0, 1)))

    def write(self, path: Path, ending: str) -> None:
        """Write straight 8-bit RGBA as PNG or WebP, the numbers as NPZ, or EXR: premultiplied, in linear light."""
        from vitruvian.files.arrays import write_exr
        from vitruvian.files.pictures import write_rgba

        if ending in (".png", ".webp"):
            write_rgba(path, self.rgba())
        elif ending == ".exr":
            straight = self.straight()
            channels = {name: srgb_to_linear(straight[..., i]) * straight[..., 3] for i, name in enumerate("RGB")}
            channels["A"] = np.ascontiguousarray(straight[..., 3])
            write_exr(path, channels, comments="premultiplied alpha, linear light, sRGB primaries")
        else:
            super().write(path, ending)

    def why_not(self, ending: str) -> str:
        """Say why there is no JPEG of a matte."""
        if ending in (".jpg", ".jpeg"):
            return " JPEG has no alpha: choose .png, or put the person over a colour with over() and save that."
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Return the share of the picture that is the person; NPZ and EXR hold the maps."""
        return super().to_dict() | {"coverage": round(float(self.alpha.mean()), 6)}


def ground(background: Any, size_hw: tuple[int, int]) -> Picture:
    """Return a background of the size, uint8 [H, W, 3], from a colour or a picture."""
    from PIL import Image

    colour = as_colour(background)
    if colour is not None:
        return np.broadcast_to(np.array(colour, np.uint8), (*size_hw, 3)).copy()
    if isinstance(background, np.ndarray):
        check_array("background", background, dtype=np.uint8, shape=("h", "w", 3))
        picture = Image.fromarray(background)
    elif isinstance(background, (str, Path, Image.Image)):
        from vitruvian.images import load_image

        picture = load_image(background)
    else:
        raise InputError(f"background: expected a colour or a picture, got {type(background).__name__}.")
    return cover(picture, size_hw)


def as_colour(background: Any) -> tuple[int, int, int] | None:
    """Return the colour that this stands for, or None where it is something else."""
    from PIL import ImageColor

    if isinstance(background, (tuple, list)):
        if len(background) != 3 or not all(isinstance(v, (int, np.integer)) and 0 <= v <= 255 for v in background):
            raise InputError(f"background: expected (red, green, blue) from 0 to 255, got {background!r}.")
        return int(background[0]), int(background[1]), int(background[2])
    if isinstance(background, str):
        try:
            return ImageColor.getrgb(background)[:3]
        except ValueError:
            return None
    return None


def cover(picture: Image, size_hw: tuple[int, int]) -> Picture:
    """Resize a picture to cover this size, and cut its middle out: uint8 [H, W, 3]."""
    from PIL import Image, ImageOps

    rgb = picture.convert("RGB")
    if rgb.size != size_hw[::-1]:
        rgb = ImageOps.fit(rgb, size_hw[::-1], Image.Resampling.LANCZOS)
    return np.asarray(rgb)
