"""Read an image from a path, URL, bytes, file object, PIL image, array or tensor as upright RGB.

    source → bytes or stream → decode.py (PIL image, size checked first) → upright_rgb.py (EXIF orientation, 8 bits)
                                                                         └▶ jpeg.py, for arrays of most JPEG files

Color profiles stay in `image.info["icc_profile"]`; pixel values are those of the file.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import urllib.parse
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from vitruvian.errors import ImageError, InputError, near_matches, one_line
from vitruvian.filesystem.media_files import is_url
from vitruvian.images.decode import check_size, decode_image, is_image, load_pixels, open_image
from vitruvian.images.download import download, redacted_url
from vitruvian.images.jpeg import decode_jpeg
from vitruvian.images.types import RgbImage
from vitruvian.images.upright_rgb import array_to_rgb, is_upright_rgb, to_array, to_rgb, to_upright_rgb
from vitruvian.limits import get_limits, read_bounded

ImageSource = (
    str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Image.Image | npt.NDArray[np.generic] | Tensor
)
_WHITE = (255, 255, 255)
_MIN_FILE_BYTES = 26  # size of the smallest image file, a GIF


def load_image(
    source: ImageSource,
    *,
    timeout: float | None = 30.0,
    max_pixels: int | None = None,
    background: tuple[int, int, int] = _WHITE,
) -> Image.Image:
    """Read one image as an upright RGB image; `source` is not modified.

    Args:
        source: A path; an http(s) URL; a `data:` URL or the base64 text of an image; the bytes of a file; a binary file
            object (read from its start); a PIL image; an array or tensor. Arrays are [H, W], [H, W, C] or [C, H, W]
            with 1, 3 or 4 channels, as bool, uint8, uint16 (0..65535) or float (0..1); ambiguous shapes are [H, W, C]
            for arrays and [C, H, W] for tensors.
        timeout: Seconds to wait for a server each time; see `download`.
        max_pixels: Images with more pixels are an `ImageError`, before they are decoded; by default
            `Limits.image_pixels`. Less for formats whose decoders need more memory, such as WebP and JPEG 2000.
        background: The RGB color behind transparent pixels.

    Animations and multipage files give their first frame. EXIF orientation is applied; an invalid one is ignored.
    16-bit values are scaled, not clipped. Float files must be within 0..1.

    Raises:
        ImageError: With one line that says what the source is, and what to do about it.
    """
    return _load(source, timeout=timeout, max_pixels=max_pixels, background=background, copy=True)


def load_rgb(source: object) -> RgbImage:
    """Read what `load_image` reads as an array, uint8 [H, W, 3]. An array of that form is not copied."""
    if (
        isinstance(source, np.ndarray)
        and source.dtype == np.uint8
        and source.ndim == 3
        and source.shape[2] == 3
        and source.size
    ):
        return np.ascontiguousarray(source)
    if isinstance(source, Tensor | np.ndarray | Image.Image):
        return to_array(_load(source, timeout=None, max_pixels=None, background=_WHITE, copy=False))
    subject, stream = _open(source, timeout=30.0)
    with stream:
        image = open_image(stream, subject=subject, max_pixels=get_limits().image_pixels)
        pixels = decode_jpeg(image, stream) if is_upright_rgb(image) else None
        if pixels is None:
            load_pixels(image, subject=subject)
            pixels = to_array(to_upright_rgb(image, subject=subject, background=_WHITE, copy=False))
        return pixels


def _load(
    source: object, *, timeout: float | None, max_pixels: int | None, background: tuple[int, int, int], copy: bool
) -> Image.Image:
    """Read an image, see `load_image`. Without `copy` it may be the source itself, or still have the data of a file."""
    if len(background) != 3 or not all(isinstance(value, int) and 0 <= value <= 255 for value in background):
        raise InputError(f"background: expected three integers from 0 to 255, got {background}. Try (255, 255, 255).")
    max_pixels = get_limits().image_pixels if max_pixels is None else max_pixels
    if isinstance(source, Tensor | np.ndarray):
        return array_to_rgb(source, max_pixels=max_pixels, background=background)
    if isinstance(source, Image.Image):
        subject = one_line(getattr(source, "filename", "") or "PIL image")
        check_size(source, subject=subject, max_pixels=max_pixels)
        load_pixels(source, subject=subject)
        return to_upright_rgb(source, subject=subject, background=background, copy=copy)
    subject, stream = _open(source, timeout=timeout)
    with stream:
        return to_upright_rgb(  # frees the decoded image
            decode_image(stream, subject=subject, max_pixels=max_pixels),
            subject=subject,
            background=background,
            copy=copy,
        )


def load_images(
    sources: Any,  # nested lists of ImageSource
    *,
    timeout: float | None = 30.0,
    max_pixels: int | None = None,
    background: tuple[int, int, int] = _WHITE,
) -> Any:
    """Read one image, or every image of a list, nested list or [B, …] array, with the nesting of the input."""
    batch = isinstance(sources, Tensor | np.ndarray) and sources.ndim == 4
    if batch or isinstance(sources, list | tuple):
        return [load_images(item, timeout=timeout, max_pixels=max_pixels, background=background) for item in sources]
    return load_image(sources, timeout=timeout, max_pixels=max_pixels, background=background)


def image_to_tensor(image: Image.Image) -> Tensor:
    """Convert a PIL image to uint8 [3, H, W], without EXIF rotation, which `load_image` applies.

    The memory format is channels-last, which `resize` reads two to three times faster.
    """
    load_pixels(image, subject="PIL image")
    rgb = image if image.mode == "RGB" else to_rgb(image, subject="PIL image", background=_WHITE)
    return torch.from_numpy(to_array(rgb)).permute(2, 0, 1)  # [3, H, W]


def tensor_to_image(pixels: Tensor) -> Image.Image:
    """Convert uint8 (0..255) or float (0..1) [3, H, W], or one channel [1, H, W], to an RGB image."""
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        raise ImageError(f"pixels: expected shape [3, H, W] or [1, H, W], got {list(pixels.shape)}. Pass one image.")
    return array_to_rgb(pixels, max_pixels=pixels[0].numel(), background=_WHITE)


def _open(source: object, *, timeout: float | None) -> tuple[str, IO[bytes]]:
    """Return the name of `source` for messages, and a seekable stream of its bytes, which the caller closes."""
    if isinstance(source, str):
        return _open_text(source, timeout=timeout)
    if isinstance(source, os.PathLike):
        path = os.fsdecode(source)
        return one_line(path), _open_path(path)
    if isinstance(source, bytes | bytearray | memoryview):
        return "image bytes", io.BytesIO(source)
    if hasattr(source, "read"):
        subject = one_line(getattr(source, "name", "file object"))
        return subject, io.BytesIO(_read_file_object(cast(IO[bytes], source), subject=subject))
    hint = "Pass one image, or use load_images." if isinstance(source, list | tuple) else "See load_image."
    raise ImageError(
        "image: expected a path, a URL, bytes, a file object, a PIL image, an array or a tensor, "
        f"got {type(source).__name__}. {hint}"
    )


def _open_text(source: str, *, timeout: float | None) -> tuple[str, IO[bytes]]:
    """Open a URL, a path or base64 text, in this order; a file that exists has priority over base64."""
    if is_url(source):
        return one_line(redacted_url(source)), io.BytesIO(download(source, timeout=timeout))
    if source[:16].lstrip().lower().startswith("data:"):
        return "data: URL", io.BytesIO(_data_url_bytes(source.strip()))
    path = os.path.expanduser(source)
    if not os.path.exists(path):
        data = _from_base64(source)
        if data is not None and len(data) >= _MIN_FILE_BYTES and is_image(data):
            return "base64 text", io.BytesIO(data)
        scheme, separator, _ = source.partition("://")
        if separator:
            raise ImageError(
                f"{one_line(redacted_url(source))}: expected a path or an http(s) URL, got a {one_line(scheme)} URL. "
                "Download the image and pass its path."
            )
    return one_line(path), _open_path(path)


def _open_path(path: str) -> IO[bytes]:
    """Open a file for reading; a pipe is read to its end, since decoders seek."""
    subject = one_line(path)
    if not path:
        raise ImageError("image: expected a path or a URL, got an empty string. Pass the image's path.")
    if os.path.isdir(path):
        raise ImageError(f"{subject}: expected an image file, got a folder. Pass the files inside it one by one.")
    try:
        stream: IO[bytes] = open(path, "rb")  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        raise _no_such_file(path) from None
    except (OSError, ValueError) as error:
        reason = one_line(getattr(error, "strerror", None) or error)
        raise ImageError(f"{subject}: expected a readable file, got {reason}. Check the path.") from error
    if stream.seekable():
        return stream
    with stream:
        return io.BytesIO(read_bounded(stream, "file_bytes", subject=subject))


def _no_such_file(path: str) -> ImageError:
    """Return the error for a file that does not exist, with names in its folder that are close."""
    folder = Path(path).parent
    if not folder.is_dir():
        return ImageError(f"{one_line(path)}: file not found: its folder does not exist. Check the path.")
    near = near_matches(Path(path).name, (entry.name for entry in folder.iterdir()))
    return ImageError(f"{one_line(path)}: file not found. Check the path.{near}")


def _read_file_object(source: IO[bytes], *, subject: str) -> bytes:
    """Read a binary file object from its start to its end."""
    try:
        if not hasattr(source, "seekable") or source.seekable():
            source.seek(0)
        if isinstance(source.read(0), str):
            raise ImageError(f'{subject}: expected a binary file object, got a text one. Open it with mode "rb".')
        return read_bounded(source, "file_bytes", subject=subject)
    except (OSError, ValueError, AttributeError) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{subject}: expected a readable file object, got {one_line(error)}. Reopen it.") from error


def _data_url_bytes(source: str) -> bytes:
    """Decode the data of a `data:` URL, base64 or percent-encoded."""
    get_limits().check("file_bytes", len(source) * 3 // 4, subject="data: URL", error=ImageError)
    header, comma, payload = source.partition(",")
    if not comma:
        raise ImageError("data: URL: expected a comma before the data, got none. Copy the whole URL.")
    if not header.lower().endswith(";base64"):
        return urllib.parse.unquote_to_bytes(payload)
    data = _from_base64(urllib.parse.unquote(payload))
    if data is None:
        raise ImageError("data: URL: expected base64 text, got other characters. Copy the whole URL.")
    return data


def _from_base64(text: str) -> bytes | None:
    """Decode base64 in either alphabet, with or without padding; None for other text."""
    compact = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
