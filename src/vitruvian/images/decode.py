"""Decode image files with Pillow, or raise one line that says what the bytes are and what to do.

The pixels of most JPEG files are decoded by simplejpeg instead (`jpeg.py`, called by `load_rgb` in `read.py`).

Pillow's plugins are called one by one instead of through `PIL.Image.open`: that function compares the size with a
global limit, which a limit of our own would have to change under other threads.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import IO

from PIL import Image, ImageFile

from vitruvian.errors import ImageError, one_line

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
_DECODING_BYTES = 9  # a pixel, until the image is RGB: Pillow's image, its RGB copy, and 8 bits for gray
# More for decoders with buffers of the whole image, as measured: output, planes in 16 bits, other frames.
_FORMAT_BYTES = {"TIFF": 10, "WEBP": 19, "AVIF": 21, "HEIF": 16, "QOI": 18}
# Called with the bytes that an image takes before it is decoded.
on_decode: ContextVar[Callable[[int], None] | None] = ContextVar("on_decode", default=None)
_DAMAGED = "Copy or download it again, or export it again as PNG or JPEG."

_PILLOW_LIMITS = (Image.DecompressionBombError, Image.DecompressionBombWarning)

_Factory = Callable[[IO[bytes], str], ImageFile.ImageFile]
_Accept = Callable[[bytes], bool | str]


def decode_image(stream: IO[bytes], *, subject: str, max_pixels: int) -> Image.Image:
    """Decode the first frame of the image in a seekable `stream`; checks the size before it decodes any pixel.

    Mode and orientation are those of the file. `subject` names the image in messages.
    """
    image = open_image(stream, subject=subject, max_pixels=max_pixels)
    load_pixels(image, subject=subject)
    return image


def open_image(stream: IO[bytes], *, subject: str, max_pixels: int) -> Image.Image:
    """Open the image in a seekable `stream` and check its size, as `decode_image` does, without decoding it."""
    stream.seek(0)
    head = stream.read(_HEAD_BYTES)
    if not head:
        raise ImageError(f"{subject}: expected an image, got an empty file (0 bytes). Copy or download it again.")
    image = _identify(stream, head, subject=subject)
    check_size(image, subject=subject, max_pixels=max_pixels)
    return image


def check_size(image: Image.Image, *, subject: str, max_pixels: int) -> None:
    """Check the size of an opened image; tell the caller that set `on_decode` how many bytes it takes, which may wait.

    In formats whose decoders need more memory, fewer pixels than `max_pixels` are allowed.
    """
    pixel_bytes = max(_DECODING_BYTES, _decoder_bytes(image))
    most = max_pixels * _DECODING_BYTES // pixel_bytes
    check_pixel_count(image.size, subject=subject, max_pixels=most, kind="" if most == max_pixels else image.format)
    reserve = on_decode.get()
    if reserve is not None:
        reserve(image.width * image.height * pixel_bytes)


def _decoder_bytes(image: Image.Image) -> int:
    """Return the bytes that a pixel takes while it is decoded, with Pillow's image."""
    channels = len(image.getbands())
    if image.format in ("JPEG", "MPO"):
        return 4 + 2 * channels if image.info.get("progressive") else 0  # coefficients of 16 bits
    if image.format == "JPEG2000":
        return 5 + 5 * channels  # 32 bits a channel
    return _FORMAT_BYTES.get(image.format or "", 0)


def check_pixel_count(size_wh: tuple[int, int], *, subject: str, max_pixels: int, kind: str | None = "") -> None:
    """Raise `ImageError` for an image without pixels or with more than `max_pixels`; `kind` names its format."""
    width, height = size_wh
    if width < 1 or height < 1:
        raise ImageError(f"{subject}: expected at least one pixel, got {width}×{height}. Pass another image.")
    if width * height > max_pixels:
        where = f" in {kind}" if kind else ""
        error = ImageError(
            subject=subject,
            expected=f"at most {max_pixels:,} pixels{where}",
            got=f"{width}×{height} = {width * height:,}",
            hint="Make it smaller or, if you trust it and have the memory, raise max_pixels or the limit image_pixels.",
        )
        error.limit = "image_pixels"
        raise error


def load_pixels(image: Image.Image, *, subject: str) -> None:
    """Decode the pixels of an opened `image` in place."""
    try:
        image.load()
    except MemoryError as error:
        raise ImageError(
            subject=subject,
            expected="an image that fits into memory",
            got=f"{image.width}×{image.height} pixels",
            hint="Use a smaller image.",
        ) from error
    except _PILLOW_LIMITS as error:
        raise _over_pillow_limit(error, subject=subject) from error
    except Exception as error:  # plugins raise errors of every kind on damaged files
        name, why = image.format or "image", one_line(error)
        truncated = "truncated" in str(error).lower()
        got = f"a truncated {name} file ({why})" if truncated else f"a {name} file with damaged pixel data ({why})"
        raise ImageError(subject=subject, expected="an image", got=got, hint=_DAMAGED) from error


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
