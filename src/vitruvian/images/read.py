"""Read a picture from wherever it is: path, address, bytes, file object, PIL image, array or tensor → upright RGB.

    source → bytes or stream → decode.py (PIL image, size checked first) → modes.py (upright, 8-bit, RGB)
    array or tensor ------------------------------------------------------> modes.py

Colour profiles are carried along in `image.info["icc_profile"]`; pixel values stay as they are in the file.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import urllib.parse
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from vitruvian.errors import ImageError, InputError, near_matches
from vitruvian.images.decode import check_pixel_count, decode_image, load_pixels, one_line
from vitruvian.images.download import download, read_bounded
from vitruvian.images.modes import array_to_rgb, to_rgb, to_upright_rgb
from vitruvian.images.signatures import raster_format

ImageSource = (
    str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Image.Image | npt.NDArray[Any] | Tensor
)
MAX_PIXELS = 178_956_970
WHITE = (255, 255, 255)
_SMALLEST_FILE = 26  # bytes of the shortest picture file there is, a GIF


def load_image(
    source: ImageSource,
    *,
    timeout: float | None = 30.0,
    max_pixels: int = MAX_PIXELS,
    background: tuple[int, int, int] = WHITE,
) -> Image.Image:
    """Read one picture as an upright RGB image; the caller's object is never changed.

    Args:
        source: a path; an http(s) address; a `data:` address or the base64 text of a picture; the bytes of a file; a
            binary file object (read from its start); a PIL image; an array or tensor. Arrays are [H, W], [H, W, C] or
            [C, H, W] with 1, 3 or 4 channels, as bool, uint8, uint16 (0..65535) or float (0..1); where both ends of a
            shape could be channels, arrays are [H, W, C] and tensors [C, H, W].
        timeout: the longest silence of a server in seconds; None waits for ever.
        max_pixels: pictures with more pixels are refused, files before anything is decoded.
        background: the RGB colour that shows through transparent pixels.

    Animations and multipage files give their first frame. EXIF orientation is applied; an impossible one is ignored.
    16-bit values are scaled, not clipped. Float files must hold 0..1.

    Raises:
        ImageError: one line that says what the source really is, and what to do about it.
    """
    _check_background(background)
    if isinstance(source, Tensor | np.ndarray):
        return _from_array(source, max_pixels=max_pixels, background=background)
    if isinstance(source, Image.Image):
        subject = one_line(getattr(source, "filename", "") or "PIL image")
        check_pixel_count(source.size, subject=subject, max_pixels=max_pixels)
        load_pixels(source, subject=subject)
        return to_upright_rgb(source, subject=subject, background=background)
    subject, stream = _open(source, timeout=timeout)
    with stream:
        image = decode_image(stream, subject=subject, max_pixels=max_pixels)
        return to_upright_rgb(image, subject=subject, background=background)


def load_images(
    sources: Any,
    *,
    timeout: float | None = 30.0,
    max_pixels: int = MAX_PIXELS,
    background: tuple[int, int, int] = WHITE,
) -> Any:
    """Read one picture, or every picture of a list, nested list or [B, …] array, and keep the nesting of the input."""
    batch = isinstance(sources, Tensor | np.ndarray) and sources.ndim == 4
    if batch or isinstance(sources, list | tuple):
        return [load_images(item, timeout=timeout, max_pixels=max_pixels, background=background) for item in sources]
    return load_image(sources, timeout=timeout, max_pixels=max_pixels, background=background)


def image_to_tensor(image: Image.Image) -> Tensor:
    """Turn a PIL image, as it stands, into uint8 [3, H, W]; `load_image` is what turns it upright.

    The memory stays in pixel order (H, W, 3): `resize` reads that two to three times faster than planes.
    """
    load_pixels(image, subject="PIL image")
    rgb = image if image.mode == "RGB" else to_rgb(image, subject="PIL image", background=WHITE)
    return torch.from_numpy(np.array(rgb)).permute(2, 0, 1)  # [3, H, W]


def tensor_to_image(pixels: Tensor) -> Image.Image:
    """Turn uint8 (0..255) or float (0..1) [3, H, W], or one channel [1, H, W], into an RGB image."""
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        raise ImageError(f"pixels: expected shape [3, H, W] or [1, H, W], got {list(pixels.shape)}. Pass one image.")
    return _from_array(pixels, max_pixels=pixels[0].numel(), background=WHITE)


def _from_array(source: Tensor | npt.NDArray[Any], *, max_pixels: int, background: tuple[int, int, int]) -> Image.Image:
    if isinstance(source, Tensor):
        values = source.detach().cpu()
        array = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        subject = "tensor"
    else:
        array, subject = source, "array"
    return array_to_rgb(
        array, channels_first=subject == "tensor", subject=subject, max_pixels=max_pixels, background=background
    )


def _open(source: object, *, timeout: float | None) -> tuple[str, IO[bytes]]:
    """Return the name of `source` for messages, and a seekable stream of its bytes that the caller may close."""
    if isinstance(source, str):
        return _open_text(source, timeout=timeout)
    if isinstance(source, os.PathLike):
        path = os.fsdecode(source)
        return one_line(path), _open_path(path)
    if isinstance(source, bytes | bytearray | memoryview):
        return "image bytes", io.BytesIO(source)
    if hasattr(source, "read"):
        subject = one_line(getattr(source, "name", "file object"))
        return subject, io.BytesIO(_read_file_object(source, subject=subject))
    hint = "Pass one picture, or use load_images." if isinstance(source, list | tuple) else "See load_image."
    raise ImageError(
        "image: expected a path, an address, bytes, a file object, a PIL image, an array or a tensor, "
        f"got {type(source).__name__}. {hint}"
    )


def _open_text(source: str, *, timeout: float | None) -> tuple[str, IO[bytes]]:
    """Tell addresses, paths and base64 text apart, in this order; a file that exists beats base64."""
    start = source[:16].lstrip().lower()
    if start.startswith(("http://", "https://")):
        return one_line(source), io.BytesIO(download(source.strip(), timeout=timeout))
    if start.startswith("data:"):
        return "data: address", io.BytesIO(_data_address_bytes(source.strip()))
    path = os.path.expanduser(source)
    if not os.path.exists(path):
        payload = _base64_image_bytes(source)
        if payload is not None:
            return "base64 text", io.BytesIO(payload)
        scheme, separator, _ = source.partition("://")
        if separator:
            raise ImageError(
                f"{one_line(source)}: expected a path or an http(s) address, got a {one_line(scheme)} address. "
                "Download the picture and pass its path."
            )
    return one_line(path), _open_path(path)


def _open_path(path: str) -> IO[bytes]:
    subject = one_line(path)
    if not path:
        raise ImageError("image: expected a path or an address, got an empty string. Pass the picture's path.")
    if os.path.isdir(path):
        raise ImageError(f"{subject}: expected an image file, got a folder. Pass the files inside it one by one.")
    try:
        stream: IO[bytes] = open(path, "rb")  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        raise _no_such_file(path) from None
    except PermissionError as error:
        raise ImageError(
            f"{subject}: expected a readable file, got no permission to open it. Change its access rights."
        ) from error
    except (OSError, ValueError) as error:
        raise ImageError(f"{subject}: expected a readable file, got {one_line(error)}. Check the path.") from error
    if stream.seekable():
        return stream
    with stream:  # a pipe: decoders need to go back and forth
        return io.BytesIO(read_bounded(stream, subject=subject))


def _no_such_file(path: str) -> ImageError:
    folder = Path(path).parent
    if not folder.is_dir():
        return ImageError(f"{one_line(path)}: expected an image file, got a path to a missing folder. Check the path.")
    near = near_matches(Path(path).name, (entry.name for entry in folder.iterdir()))
    return ImageError(f"{one_line(path)}: expected an image file, got no such file. Check the path.{near}")


def _read_file_object(source: Any, *, subject: str) -> bytes:
    try:
        if not hasattr(source, "seekable") or source.seekable():
            source.seek(0)
        if isinstance(source.read(0), str):
            raise ImageError(f'{subject}: expected a binary file object, got a text one. Open it with mode "rb".')
        return read_bounded(source, subject=subject)
    except (OSError, ValueError, AttributeError) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{subject}: expected a readable file object, got {one_line(error)}. Reopen it.") from error


def _data_address_bytes(source: str) -> bytes:
    header, comma, payload = source.partition(",")
    if not comma:
        raise ImageError("data: address: expected a comma before the data, got none. Copy the whole address.")
    if not header.lower().endswith(";base64"):
        return urllib.parse.unquote_to_bytes(payload)
    data = _from_base64(urllib.parse.unquote(payload))
    if data is None:
        raise ImageError("data: address: expected base64 text, got other characters. Copy the whole address.")
    return data


def _base64_image_bytes(source: str) -> bytes | None:
    """Return the bytes behind base64 text where they are a picture's, else None: the text then is a path."""
    data = _from_base64(source)
    if data is None or len(data) < _SMALLEST_FILE or raster_format(data) is None:
        return None
    return data


def _from_base64(text: str) -> bytes | None:
    compact = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _check_background(background: tuple[int, int, int]) -> None:
    if len(background) != 3 or not all(isinstance(value, int) and 0 <= value <= 255 for value in background):
        raise InputError(f"background: expected three integers from 0 to 255, got {background}. Try (255, 255, 255).")
