"""A stream of bytes → a decoded PIL image, or one line that says what the bytes are and what to do.

Pillow is asked plugin by plugin instead of through `PIL.Image.open`: that function compares the size with a global
limit and warns on large pictures, so a limit of our own would mean changing global state under other threads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import IO

from PIL import Image, ImageFile

from vitruvian.errors import ImageError
from vitruvian.images.signatures import Kind, foreign_kind, is_heif, raster_format

_HEAD_BYTES = 1024
_REFUSED_PLUGINS = {"EPS"}  # Pillow hands PostScript to an outside interpreter
_DAMAGED = "Copy or download it again, or export it anew as PNG or JPEG."

_PILLOW_LIMITS = (Image.DecompressionBombError, Image.DecompressionBombWarning)

_Factory = Callable[[IO[bytes], str], ImageFile.ImageFile]
_Accept = Callable[[bytes], bool | str]


def decode_image(stream: IO[bytes], *, subject: str, max_pixels: int) -> Image.Image:
    """Decode the first frame of the picture in a seekable `stream`; the size is checked before any pixel is.

    The mode and the orientation are the file's own. `subject` names the picture in messages.
    """
    stream.seek(0)
    head = stream.read(_HEAD_BYTES)
    if not head:
        raise ImageError(f"{subject}: expected an image, got an empty file (0 bytes). Copy or download it again.")
    image = _identify(stream, head, subject=subject)
    check_pixel_count(image.size, subject=subject, max_pixels=max_pixels)
    load_pixels(image, subject=subject)
    return image


def check_pixel_count(size_wh: tuple[int, int], *, subject: str, max_pixels: int) -> None:
    """Refuse a picture without pixels, and one with more than `max_pixels`."""
    width, height = size_wh
    if width < 1 or height < 1:
        raise ImageError(f"{subject}: expected at least one pixel, got {width}×{height}. Pass a picture with pixels.")
    if width * height > max_pixels:
        raise ImageError(
            f"{subject}: expected at most {max_pixels:,} pixels, got {width}×{height} = {width * height:,}. "
            "Make it smaller, or raise max_pixels if you trust the file and have the memory."
        )


def load_pixels(image: Image.Image, *, subject: str) -> None:
    """Decode the pixels of an opened `image` in place."""
    try:
        image.load()
    except MemoryError as error:
        raise ImageError(
            f"{subject}: expected room for {image.width}×{image.height} pixels, got too little memory. Make it smaller."
        ) from error
    except _PILLOW_LIMITS as error:
        raise _over_pillow_limit(error, subject=subject) from error
    except Exception as error:  # plugins raise errors of every kind on damaged files
        name = image.format or "image"
        state = "breaks off before its last pixel" if "truncated" in str(error).lower() else "holds damaged pixel data"
        raise ImageError(
            f"{subject}: expected a whole image, got {name} data that {state} ({one_line(error)}). {_DAMAGED}"
        ) from error


def one_line(text: object, *, limit: int = 160) -> str:
    """Squeeze `text` into one line of at most `limit` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _identify(stream: IO[bytes], head: bytes, *, subject: str) -> ImageFile.ImageFile:
    """Open the stream with the first plugin that takes it; no pixel is decoded yet."""
    reasons: list[str] = []
    for factory, accept in _plugins_for(head, subject=subject):
        try:
            verdict = accept(head[:16]) if accept else True
            if isinstance(verdict, str):  # the plugin knows the file, but its codec was left out of this Pillow
                reasons.append(one_line(verdict))
            elif verdict:
                stream.seek(0)
                return factory(stream, "")
        except _PILLOW_LIMITS as error:
            raise _over_pillow_limit(error, subject=subject) from error
        except Exception as error:  # noqa: BLE001 - plugins raise errors of every kind on damaged files
            if accept:
                reasons.append(_reason(error))
    raise _unreadable(head, reasons, subject=subject)


def _plugins_for(head: bytes, *, subject: str) -> Iterator[tuple[_Factory, _Accept | None]]:
    """Go through Pillow's plugins, the common formats first; the others are imported only when those are through."""
    if is_heif(head):
        yield _heif_factory(subject), lambda prefix: True
        return
    tried = set(_REFUSED_PLUGINS)
    for import_plugins in (Image.preinit, Image.init):
        import_plugins()
        names = [name for name in Image.ID if name not in tried]
        tried.update(names)
        for name in names:
            yield Image.OPEN[name]


def _reason(error: Exception) -> str:
    if isinstance(error, IndexError | EOFError | struct.error):
        return "its header breaks off"
    if "not identified by this driver" in str(error):
        return "its header gives no usable size"
    return one_line(error)


def _over_pillow_limit(error: Exception, *, subject: str) -> ImageError:
    """Some plugins compare the size with Pillow's own limit, which is not ours to change."""
    return ImageError(
        f"{subject}: expected a picture within PIL.Image.MAX_IMAGE_PIXELS, got a larger one ({one_line(error)}). "
        "Make it smaller, or raise that limit if you trust the file and have the memory."
    )


def _heif_factory(subject: str) -> _Factory:
    try:
        import pillow_heif
    except ImportError as error:
        raise ImageError(
            f"{subject}: expected a format that Pillow reads, got a HEIC picture. "
            'Install its reader with: pip install "vitruvian[heif]"'
        ) from error
    factory: _Factory = pillow_heif.HeifImageFile
    return factory


def _unreadable(head: bytes, reasons: list[str], *, subject: str) -> ImageError:
    name = raster_format(head)
    if name is None:
        kind = foreign_kind(head)
    elif name == "AVIF" and name not in Image.OPEN:
        kind = Kind("an AVIF file, which this Pillow cannot read", "Upgrade Pillow to 11.3 or later.")
    else:
        why = f" ({reasons[0]})" if reasons else ""
        kind = Kind(f"a damaged or unsupported {name} file{why}", _DAMAGED)
    return ImageError(f"{subject}: expected an image, got {kind.what}. {kind.advice}")
