"""Content negotiation: which file format answers a request, and the media types of formats.

A file format is what `--save` of the command line takes: json, npz, png, 16.png, webp, exr, ply, glb, plot, plot.jpg. A
request names it with the parameter `as`, or with the header Accept; a parameter of the media type tells formats of one
type apart: ``image/png;kind=plot``. JSON is the default.
"""

from __future__ import annotations

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


def formats_of(task: str) -> tuple[str, ...]:
    """Return the file formats that can answer a request for a task, the default first."""
    return tuple(dict.fromkeys(("json", *TASKS[task].image_formats())))


def choose_format(task: str, *, accept: str | None, asked: str | None) -> str:
    """Return the file format for a request, or raise an error 406."""
    formats = formats_of(task)
    if asked is not None:
        if asked in formats:
            return asked
        raise RequestError(406, subject="as", expected=f"one of {', '.join(formats)} for {task}", got=repr(asked[:40]))
    shown_first = sorted(formats, key=lambda file_format: file_format == "exr")  # browsers do not show EXR; stable
    ranges = sorted(_read_accept(accept or "*/*"), key=lambda one: -one[0])  # stable: the first of equals
    for quality, media, wanted in ranges:
        for file_format in shown_first:
            if quality > 0 and wanted in (None, file_format) and _matches(MEDIA_TYPES[file_format], media):
                return file_format
    types = ", ".join(dict.fromkeys(MEDIA_TYPES[file_format] for file_format in formats))
    raise RequestError(
        406, subject="Accept", expected=f"one of {types} for {task}", got=repr((accept or "")[:80]),
        hint=f"Or name a format: ?as=FORMAT, one of {', '.join(formats)}.",
    )  # fmt: skip


def _read_accept(text: str) -> list[tuple[float, str, str | None]]:
    """Return quality, media range and file format of each entry of an Accept header."""
    entries = []
    for entry in text.split(",")[:32]:
        media, *parameters = (part.strip() for part in entry.split(";"))
        values = dict(part.split("=", 1) for part in parameters if "=" in part)
        try:
            quality = float(values.get("q", "1"))
        except ValueError:
            quality = 0.0
        entries.append((quality, media.lower(), values.get("kind")))
    return entries


def _matches(media: str, pattern: str) -> bool:
    """Return whether a media type is in a range such as ``image/*``."""
    whole, _, part = pattern.partition("/")
    return pattern == "*/*" or media == pattern or (part == "*" and media.startswith(f"{whole}/"))
