"""Decode bytes and arrays to upright 8-bit RGB images, or raise one line that says what they are and what to do.

Pillow's plugins are called one by one instead of through `PIL.Image.open`: that function compares the size with a
global limit, which a limit of our own would have to change under other threads.

White levels: bool is 0 and 1, uint8 0..255, uint16 0..65535 (divided by 257, never clipped), floats 0..1. Integers
wider than 16 bits have no defined white level: up to 255 they count as 8-bit, up to 65535 as 16-bit, and anything else
is refused, as are floats outside of 0..1, since stretching them would silently change the image.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import IO

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image, ImageFile
from torch import Tensor

from vitruvian.errors import ImageError

# ------------------------------------------------------------------------------------------------ file signatures

_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}

_ARCHIVE = "Unpack it and pass the image inside."
_VIDEO = "Pass an image, or read its frames with vitruvian's video support."
_OTHER_SIGNATURES = (
    (b"%PDF", "a PDF document", "Export the page as PNG or JPEG first."),
    (b"%!PS", "a PostScript drawing", "Render it to PNG first."),
    (b"PK\x03\x04", "a ZIP archive", _ARCHIVE),
    (b"\x1f\x8b", "a gzip archive", _ARCHIVE),
    (b"7z\xbc\xaf", "a 7-Zip archive", _ARCHIVE),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video", _VIDEO),
    (b"\x00\x00\x01\xba", "an MPEG video", _VIDEO),
    (b"\x00\x00\x01\xb3", "an MPEG video", _VIDEO),
    (b"\x76\x2f\x31\x01", "an OpenEXR image", "Tone-map it to PNG first, or pass its pixels as floats from 0 to 1."),
    (b"\x93NUMPY", "a NumPy array file", "Read it with numpy.load and pass the array."),
    (b"version https://git-lfs", "a Git LFS pointer, not the image itself", "Run: git lfs pull"),
)


def _brands(head: bytes) -> set[bytes]:
    """Return the brands of an ISO media file (MP4, HEIC, AVIF …), or none for other files."""
    if head[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(head[:4], "big"), len(head))
    return {head[8:12]} | {head[start : start + 4] for start in range(16, end - 3, 4)}


def is_heif(head: bytes) -> bool:
    """Return whether this is a HEIC or HEIF image, which needs pillow-heif; Pillow reads AVIF itself."""
    brands = _brands(head)
    return bool(brands & _HEIF_BRANDS) and not brands & _AVIF_BRANDS


def _other_kind(head: bytes) -> tuple[str, str]:
    """Return what bytes that are not an image probably are (`a PDF document`), and what to do about it."""
    for start, what, advice in _OTHER_SIGNATURES:
        if head.startswith(start):
            return what, advice
    if _brands(head):
        return "a video or other MPEG-4 file", _VIDEO
    if head[:4] == b"RIFF" and head[8:11] == b"AVI":
        return "an AVI video", _VIDEO
    text = _as_text(head)
    if text is None:
        return f"bytes of an unknown format (they start with {head[:8].hex(' ')})", "Save it as PNG or JPEG first."
    if "<svg" in text:
        return "an SVG drawing, which holds shapes and no pixels", "Render it to PNG first."
    if "<html" in text or "<!doctype html" in text:
        return "an HTML page, often an error page saved under an image's name", "Download the image's own address."
    return "a text file", "Pass the image itself; check that the name or download is right."


def _as_text(head: bytes) -> str | None:
    """Return `head` as lower-case text, or None where it is not text."""
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    text = head.decode(encoding, errors="ignore").lstrip("\ufeff")  # the last character may be truncated
    printable = sum(character.isprintable() or character in "\t\r\n\f" for character in text)
    enough = len(text) >= 0.9 * len(head) / (2 if encoding == "utf-16" else 1) - 4
    return text.lower() if text and printable == len(text) and enough else None


# ------------------------------------------------------------------------------------------------ Pillow's plugins

_HEAD_BYTES = 1024
# Supported formats, the common ones first, and Pillow's plugins. No other plugin sees a file: most are seldom used and
# seldom tested, and some start other programs. The JPEG plugin opens MPO too; HEIF has a package of its own.
_FORMATS = {
    "JPEG": "Jpeg", "PNG": "Png", "WEBP": "WebP", "GIF": "Gif", "BMP": "Bmp", "TIFF": "Tiff", "PPM": "Ppm",
    "AVIF": "Avif", "JPEG2000": "Jpeg2K", "QOI": "Qoi",
}  # fmt: skip
_DECODING_BYTES = 12  # a pixel, until the image is RGB: two images of Pillow, or one and an array
# Called with the bytes that an image takes before it is decoded.
on_decode: ContextVar[Callable[[int], None] | None] = ContextVar("on_decode", default=None)
_DAMAGED = "Copy or download it again, or export it anew as PNG or JPEG."

_PILLOW_LIMITS = (Image.DecompressionBombError, Image.DecompressionBombWarning)

_Factory = Callable[[IO[bytes], str], ImageFile.ImageFile]
_Accept = Callable[[bytes], bool | str]


def decode_image(stream: IO[bytes], *, subject: str, max_pixels: int) -> Image.Image:
    """Decode the first frame of the image in a seekable `stream`; checks the size before it decodes any pixel.

    Mode and orientation are those of the file. `subject` names the image in messages.
    """
    stream.seek(0)
    head = stream.read(_HEAD_BYTES)
    if not head:
        raise ImageError(f"{subject}: expected an image, got an empty file (0 bytes). Copy or download it again.")
    image = _identify(stream, head, subject=subject)
    check_pixel_count(image.size, subject=subject, max_pixels=max_pixels)
    reserve_memory(image.size)
    load_pixels(image, subject=subject)
    return image


def reserve_memory(size_wh: tuple[int, int]) -> None:
    """Tell the caller that set `on_decode` how many bytes an image will take; it may wait."""
    reserve = on_decode.get()
    if reserve is not None:
        reserve(size_wh[0] * size_wh[1] * _DECODING_BYTES)


def check_pixel_count(size_wh: tuple[int, int], *, subject: str, max_pixels: int) -> None:
    """Raise `ImageError` for an image without pixels or with more than `max_pixels`."""
    width, height = size_wh
    if width < 1 or height < 1:
        raise ImageError(f"{subject}: expected at least one pixel, got {width}×{height}. Pass another image.")
    if width * height > max_pixels:
        error = ImageError(
            f"{subject}: expected at most {max_pixels:,} pixels, got {width}×{height} = {width * height:,}. "
            "Make it smaller, or, if you trust it and have the memory, raise max_pixels or the limit image_pixels."
        )
        error.limit = "image_pixels"
        raise error


def load_pixels(image: Image.Image, *, subject: str) -> None:
    """Decode the pixels of an opened `image` in place."""
    try:
        image.load()
    except MemoryError as error:
        raise ImageError(
            f"{subject}: expected memory for {image.width}×{image.height} pixels, got too little. Make it smaller."
        ) from error
    except _PILLOW_LIMITS as error:
        raise _over_pillow_limit(error, subject=subject) from error
    except Exception as error:  # plugins raise errors of every kind on damaged files
        name = image.format or "image"
        state = "is truncated" if "truncated" in str(error).lower() else "has damaged pixel data"
        raise ImageError(
            f"{subject}: expected a whole image, got {name} data that {state} ({one_line(error)}). {_DAMAGED}"
        ) from error


def one_line(text: object, *, limit: int = 160) -> str:
    """Return `text` on one line of at most `limit` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def is_image(head: bytes) -> bool:
    """Return whether bytes start with the signature of an image format."""
    return is_heif(head) or any(accept is not None and accept(head[:16]) is True for _, _, accept in _plugins())


def _identify(stream: IO[bytes], head: bytes, *, subject: str) -> ImageFile.ImageFile:
    """Open the stream with the first plugin that accepts it, without decoding pixels."""
    refusals: list[tuple[str, str]] = []  # name of a format that the file has by its signature, and a reason
    plugins = [("HEIF", _heif_factory(subject), lambda prefix: True)] if is_heif(head) else _plugins()
    for name, factory, accept in plugins:
        try:
            verdict = accept(head[:16]) if accept else True
            if isinstance(verdict, str):  # the plugin knows the file, but this Pillow lacks its codec
                refusals.append((name, one_line(verdict)))
            elif verdict:
                stream.seek(0)
                return factory(stream, "")
        except _PILLOW_LIMITS as error:
            raise _over_pillow_limit(error, subject=subject) from error
        except Exception as error:  # noqa: BLE001 - plugins raise errors of every kind on damaged files
            if accept:
                refusals.append((name, _reason(error)))
    if refusals:
        name, why = refusals[0]
        kind, advice = f"a damaged or unsupported {name} file ({why})", _DAMAGED
    else:
        kind, advice = _other_kind(head)
    raise ImageError(f"{subject}: expected an image, got {kind}. {advice}")


def _plugins() -> Iterator[tuple[str, _Factory, _Accept | None]]:
    """Yield the plugins of the supported formats, which are imported when they are tried."""
    for name, module in _FORMATS.items():
        importlib.import_module(f"PIL.{module}ImagePlugin")
        yield name, *Image.OPEN[name]


def _reason(error: Exception) -> str:
    if isinstance(error, IndexError | EOFError | struct.error):
        return "its header is truncated"
    if "not identified by this driver" in str(error):
        return "its header has no valid size"
    return one_line(error)


def _over_pillow_limit(error: Exception, *, subject: str) -> ImageError:
    """Return the error for plugins that check Pillow's own limit, which we do not change."""
    return ImageError(
        f"{subject}: expected an image within PIL.Image.MAX_IMAGE_PIXELS, got a larger one ({one_line(error)}). "
        "Make it smaller, or raise that limit if you trust the file and have the memory."
    )


def _heif_factory(subject: str) -> _Factory:
    try:
        import pillow_heif
    except ImportError as error:
        raise ImageError(
            f"{subject}: expected a format that Pillow reads, got a HEIC image. "
            'Install its reader with: pip install "vitruvian[heif]"'
        ) from error
    return pillow_heif.HeifImageFile


# ------------------------------------------------------------------------------------------- upright 8-bit RGB

_Turn = Image.Transpose
_TO_UPRIGHT = {
    2: _Turn.FLIP_LEFT_RIGHT, 3: _Turn.ROTATE_180, 4: _Turn.FLIP_TOP_BOTTOM, 5: _Turn.TRANSPOSE,
    6: _Turn.ROTATE_270, 7: _Turn.TRANSVERSE, 8: _Turn.ROTATE_90,
}  # fmt: skip
_DEEP_MODES = {"I", "F", "I;16", "I;16L", "I;16B", "I;16N"}
_PLAIN_MODES = {"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV"}
_FLOAT_TOLERANCE = 1e-3  # resampling and half precision may leave 0..1

_Array = npt.NDArray[np.generic]


def to_upright_rgb(image: Image.Image, *, subject: str, background: tuple[int, int, int]) -> Image.Image:
    """Return a new RGB image, rotated by its EXIF tag, with alpha composited over `background` and the colour profile.

    The EXIF block is dropped, so that an image that is read twice is not rotated twice.
    """
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # noqa: BLE001 - broken EXIF raises errors of every kind, and the pixels are fine
        orientation = None
    rgb = to_rgb(image, subject=subject, background=background)
    if orientation in _TO_UPRIGHT:
        rgb = rgb.transpose(_TO_UPRIGHT[orientation])
    rgb.info = {"icc_profile": image.info["icc_profile"]} if image.info.get("icc_profile") else {}
    return rgb


def array_to_rgb(source: _Array | Tensor, *, max_pixels: int, background: tuple[int, int, int]) -> Image.Image:
    """Convert [H, W], [H, W, C] or [C, H, W] values with 1, 3 or 4 channels (RGBA) to an RGB image.

    Ambiguous shapes are [H, W, C] for arrays and [C, H, W] for tensors.
    """
    subject = "tensor" if isinstance(source, Tensor) else "array"
    if isinstance(source, Tensor):
        values = source.detach().cpu()
        source = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    pixels = _channels_last(source, channels_first=subject == "tensor", subject=subject)  # [H, W, C]
    check_pixel_count((pixels.shape[1], pixels.shape[0]), subject=subject, max_pixels=max_pixels)
    pixels = to_uint8(pixels, subject=subject)
    pixels = np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)  # [H, W] or [H, W, C]
    return to_rgb(Image.fromarray(pixels), subject=subject, background=background)


def to_uint8(values: _Array, *, subject: str, white: int | None = None) -> npt.NDArray[np.uint8]:
    """Scale values to 0..255 by the white level of their type, or by `white` where the file states one."""
    if values.dtype == np.uint8:
        return values.view(np.uint8)
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if np.issubdtype(values.dtype, np.floating):
        if not (values.min() >= -_FLOAT_TOLERANCE and values.max() <= 1 + _FLOAT_TOLERANCE):  # also false for NaN
            raise ImageError(
                f"{subject}: expected floating-point values from 0 to 1, got {values.min():.4g} to {values.max():.4g}. "
                "Divide by the white level first (255 for 8-bit values)."
            )
        scaled = np.multiply(values, 255, dtype=np.float32)
        return np.rint(scaled, out=scaled).clip(0, 255, out=scaled).astype(np.uint8)
    if not np.issubdtype(values.dtype, np.integer):
        raise ImageError(
            f"{subject}: expected bool, integer or float values, got {values.dtype}. Convert them to uint8 first."
        )
    low, high = int(values.min()), int(values.max())
    if white is None:
        sixteen_bit = values.dtype.kind == "u" and values.dtype.itemsize == 2  # in either byte order
        white = 65535 if sixteen_bit or high > 255 else 255
    if low < 0 or high > white:
        raise ImageError(
            f"{subject}: expected integers from 0 to {white}, got {low} to {high}. "
            "Scale them to uint8 (0 to 255) or uint16 (0 to 65535) first."
        )
    return ((values.astype(np.uint32) * 255 + white // 2) // white).astype(np.uint8)


def _channels_last(array: _Array, *, channels_first: bool, subject: str) -> _Array:
    """Convert [H, W], [H, W, C] or [C, H, W] to [H, W, C]."""
    if array.ndim == 2:
        return array[..., None]  # [H, W, 1]
    if array.ndim == 3:
        ends = {"first": array.shape[0] in (1, 3, 4), "last": array.shape[-1] in (1, 3, 4)}
        if ends["first"] and (channels_first or not ends["last"]):
            return np.moveaxis(array, 0, -1)  # [H, W, C]
        if ends["last"]:
            return array
    hint = "Pass one image at a time, or the batch to load_images." if array.ndim == 4 else "Reorder or slice it."
    raise ImageError(
        f"{subject}: expected shape [H, W], [H, W, C] or [C, H, W] with 1, 3 or 4 channels, "
        f"got {list(array.shape)}. {hint}"
    )


def to_rgb(image: Image.Image, *, subject: str, background: tuple[int, int, int]) -> Image.Image:
    """Return a new RGB image with the pixels of `image`, without EXIF rotation."""
    if image.mode in _DEEP_MODES:
        gray = to_uint8(np.asarray(image), subject=subject, white=_stated_white(image))  # [H, W]
        return Image.fromarray(gray).convert("RGB")
    if image.has_transparency_data:
        key = image.info.get("transparency")
        if image.mode == "RGB" and isinstance(key, tuple) and max(key) > 255:
            # Pillow reduces a 16-bit PNG to 8 bits, but not its transparent colour.
            image = image.copy()
            image.info["transparency"] = tuple(value >> 8 for value in key)
        straight = image.convert("RGBA")  # premultiplied modes become straight
        canvas = Image.new("RGB", image.size, background)
        canvas.paste(straight.convert("RGB"), mask=straight.getchannel("A"))
        return canvas
    if image.mode in _PLAIN_MODES:
        return image.convert("RGB")
    raise ImageError(
        f"{subject}: expected a gray, RGB, CMYK or palette image, got mode {image.mode}. Convert it to RGB first."
    )


def _stated_white(image: Image.Image) -> int | None:
    """Return the white level that the file states, where its mode does not define it."""
    if image.format in ("PNG", "PPM") and image.mode == "I":
        return 65535
    bits = getattr(image, "tag_v2", {}).get(258)  # BitsPerSample of a TIFF
    return 4095 if image.mode == "I;16" and bits == (12,) else None
