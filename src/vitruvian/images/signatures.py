"""What a file really is, told from its first bytes, for messages a person can act on."""

from __future__ import annotations

from typing import NamedTuple

_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}

_RASTER_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF8", "GIF"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"II+\x00", "TIFF"),
    (b"MM\x00+", "TIFF"),
    (b"BM", "BMP"),
    (b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"8BPS", "Photoshop"),
    (b"qoif", "QOI"),
)

_AGAIN = "Copy or download it again."
_ARCHIVE = "Unpack it and pass the picture inside."
_VIDEO = "Pass a still picture, or read its frames with vitruvian's video support."
_FOREIGN_STARTS = (
    (b"%PDF", "a PDF document", "Export the page as PNG or JPEG first."),
    (b"%!PS", "a PostScript drawing", "Render it to PNG first."),
    (b"PK\x03\x04", "a ZIP archive", _ARCHIVE),
    (b"\x1f\x8b", "a gzip archive", _ARCHIVE),
    (b"7z\xbc\xaf", "a 7-Zip archive", _ARCHIVE),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video", _VIDEO),
    (b"\x00\x00\x01\xba", "an MPEG video", _VIDEO),
    (b"\x00\x00\x01\xb3", "an MPEG video", _VIDEO),
    (
        b"\x76\x2f\x31\x01",
        "an OpenEXR image",
        "Tone-map it to PNG first, or pass its pixels as a float array from 0 to 1.",
    ),
    (b"\x93NUMPY", "a NumPy array file", "Read it with numpy.load and pass the array."),
    (b"version https://git-lfs", "a Git LFS pointer, not the picture itself", "Run: git lfs pull"),
)


class Kind(NamedTuple):
    """What a file is (`a PDF document`) and what a person can do about it."""

    what: str
    advice: str


def _brands(head: bytes) -> set[bytes]:
    """Return the brands of an ISO media file (MP4, HEIC, AVIF …), or none where `head` is something else."""
    if head[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(head[:4], "big"), len(head))
    return {head[8:12]} | {head[start : start + 4] for start in range(16, end - 3, 4)}


def is_heif(head: bytes) -> bool:
    """Tell HEIC and HEIF pictures, which need pillow-heif, from AVIF ones, which Pillow reads itself."""
    brands = _brands(head)
    return bool(brands & _HEIF_BRANDS) and not brands & _AVIF_BRANDS


def raster_format(head: bytes) -> str | None:
    """Name the picture format whose signature `head` carries, or None."""
    for start, name in _RASTER_STARTS:
        if head.startswith(start):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    brands = _brands(head)
    if brands & _AVIF_BRANDS:
        return "AVIF"
    return "HEIF" if brands & _HEIF_BRANDS else None


def foreign_kind(head: bytes) -> Kind:
    """Say what bytes that are no picture probably are."""
    for start, what, advice in _FOREIGN_STARTS:
        if head.startswith(start):
            return Kind(what, advice)
    if _brands(head):
        return Kind("a video or other MPEG-4 file", _VIDEO)
    if head[:4] == b"RIFF" and head[8:11] == b"AVI":
        return Kind("an AVI video", _VIDEO)
    text = _as_text(head)
    if text is None:
        return Kind(f"bytes of an unknown kind (they start with {head[:8].hex(' ')})", "Save it as PNG or JPEG first.")
    if "<svg" in text:
        return Kind("an SVG drawing, which holds shapes and no pixels", "Render it to PNG first.")
    if "<html" in text or "<!doctype html" in text:
        return Kind(
            "an HTML page, often an error page saved under a picture's name", "Download the picture's own address."
        )
    return Kind("a text file", "Pass the picture itself; check that the name or download is right.")


def _as_text(head: bytes) -> str | None:
    """Return `head` as lower-case text where it is text, else None."""
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    text = head.decode(encoding, errors="ignore").lstrip("\ufeff")  # the last character may be cut in two
    plain = sum(character.isprintable() or character in "\t\r\n\f" for character in text)
    enough = len(text) >= 0.9 * len(head) / (2 if encoding == "utf-16" else 1) - 4
    return text.lower() if text and plain == len(text) and enough else None
