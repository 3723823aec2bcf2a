"""Content negotiation: which file format answers a request, and the media types of formats.

A file format is what `--save` of the command line takes: json, npz, png, 16.png, webp, exr, ply, glb, plot, plot.jpg. A
request names it with the parameter `as`, or with the header Accept; a parameter of the media type tells formats of one
type apart: ``image/png;kind=plot``. JSON is the default.
"""

from __future__ import annotations

from typing import NamedTuple

from vitruvian.serving.errors import RequestError
from vitruvian.tasks import PLOTS, TASKS

MEDIA_TYPES = {
    "json": "application/json",
    "npz": "application/x-npz",
    "png": "image/png",
    "16.png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "exr": "image/x-exr",
    "ply": "model/x-ply",
    "glb": "model/gltf-binary",
    "mesh.glb": "model/gltf-binary",
    "txt": "text/plain",
    "crops.zip": "application/zip",
    "parts.zip": "application/zip",
    "plot": "image/png",
    "plot.jpg": "image/jpeg",
}
FILE_TYPES = {
    **{f".{file_format}": media for file_format, media in MEDIA_TYPES.items() if file_format not in PLOTS},
    ".jsonl": "application/x-ndjson",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".mov": "video/quicktime",
}


class _Range(NamedTuple):
    """An entry of an Accept header: its quality, media type or range, and file format."""

    quality: float
    media: str
    kind: str | None


def formats_of(task: str) -> tuple[str, ...]:
    """Return the file formats that can answer a request for a task, the default first."""
    return tuple(dict.fromkeys(("json", *TASKS[task].image_formats())))


def choose_format(task: str, *, accept: str | None, asked: object) -> str:
    """Return the file format for a request, or raise an error 406; `asked` is what it has as the parameter `as`."""
    formats = formats_of(task)
    if asked is not None:
        if isinstance(asked, str) and asked in formats:
            return asked
        raise RequestError(406, subject="as", expected=f"one of {', '.join(formats)} for {task}", got=repr(asked)[:40])
    ranges = _read_accept(accept or "*/*")
    shown_first = sorted(formats, key=lambda file_format: file_format == "exr")  # browsers do not show EXR; stable
    found = [(_preference(file_format, ranges), file_format) for file_format in shown_first]
    (quality, _), best = max(found, key=lambda one: one[0])  # the first of equals
    if quality > 0:
        return best
    types = ", ".join(dict.fromkeys(MEDIA_TYPES[file_format] for file_format in formats))
    raise RequestError(
        406, subject="Accept", expected=f"one of {types} for {task}", got=repr((accept or "")[:80]),
        hint=f"Or name a format: ?as=FORMAT, one of {', '.join(formats)}.",
    )  # fmt: skip


def _preference(file_format: str, ranges: list[_Range]) -> tuple[float, int]:
    """Return the quality of a file format, by the most specific range that it is in, and how early that range comes."""
    media = MEDIA_TYPES[file_format]
    found = [
        (specific, one.quality, -place)
        for place, one in enumerate(ranges)
        if (specific := _specificity(media, file_format, one)) > 0
    ]
    return max(found)[1:] if found else (0.0, 0)


def _specificity(media: str, file_format: str, one: _Range) -> int:
    """Return how exactly a media range names a file format; 0 if it is not in the range."""
    whole, _, part = one.media.partition("/")
    if one.kind not in (None, file_format):
        return 0
    if media == one.media:
        return 3 if one.kind is None else 4
    return 1 if one.media == "*/*" else 2 if part == "*" and media.startswith(f"{whole}/") else 0


def _read_accept(text: str) -> list[_Range]:
    """Return the entries of an Accept header."""
    entries = []
    for entry in text.split(",")[:32]:
        media, *parameters = (part.strip() for part in entry.split(";"))
        values = dict(part.split("=", 1) for part in parameters if "=" in part)
        try:
            quality = float(values.get("q", "1"))
        except ValueError:
            quality = 0.0
        quality = min(quality, 1.0) if quality >= 0 else 0.0
        entries.append(_Range(quality, media.lower(), values.get("kind")))
    return entries
