"""Which kind of file answers a request, and its bytes.

A kind is what `--save` of the command line takes: json, npz, png, 16.png, webp, exr, ply, glb, plot, plot.jpg. A
request names it with the parameter `as`, or with the header Accept; a parameter of the media type tells kinds of one
type apart: ``image/png;kind=plot``. JSON is the default.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vitruvian.files import json_text
from vitruvian.pipelines.saving import save_as
from vitruvian.serving.errors import RequestError
from vitruvian.tasks import PLOTS, TASKS, file_extension

if TYPE_CHECKING:
    from vitruvian.results import Result
    from vitruvian.serving.options import TaskOptions

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
    **{f".{kind}": media for kind, media in MEDIA_TYPES.items() if kind not in PLOTS},
    ".jsonl": "application/x-ndjson",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".mov": "video/quicktime",
}


def kinds_of(task: str) -> tuple[str, ...]:
    """Return the kinds of files that can answer a request for a task, the default first."""
    return tuple(dict.fromkeys(("json", *TASKS[task].image_formats())))


def choose_kind(task: str, *, accept: str | None, asked: str | None) -> str:
    """Return the kind of file for a request, or raise an error 406."""
    kinds = kinds_of(task)
    if asked is not None:
        if asked in kinds:
            return asked
        raise RequestError(406, subject="as", expected=f"one of {', '.join(kinds)} for {task}", got=repr(asked[:40]))
    shown_first = sorted(kinds, key=lambda kind: kind == "exr")  # browsers do not show EXR; stable
    ranges = sorted(_read_accept(accept or "*/*"), key=lambda one: -one[0])  # stable: the first of equals
    for quality, media, wanted in ranges:
        for kind in shown_first:
            if quality > 0 and wanted in (None, kind) and _matches(MEDIA_TYPES[kind], media):
                return kind
    types = ", ".join(dict.fromkeys(MEDIA_TYPES[kind] for kind in kinds))
    raise RequestError(
        406, subject="Accept", expected=f"one of {types} for {task}", got=repr((accept or "")[:80]),
        hint=f"Or name a kind: ?as=KIND, one of {', '.join(kinds)}.",
    )  # fmt: skip


def encode(result: Result, kind: str, options: TaskOptions, folder: Path) -> bytes:
    """Return a result as the bytes of a file; `folder` is for temporary files."""
    output = options.output()
    converted = output.convert(result)
    if kind == "json":
        return json_text(converted.to_dict()).encode()
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / f"result{file_extension(kind)}"
        if kind in PLOTS:
            save_as(kind, converted, path, draw=output.draw)
        else:
            save: Callable[..., object] = converted.save
            save(path, **output.save_options(kind))
        return path.read_bytes()


def _read_accept(text: str) -> list[tuple[float, str, str | None]]:
    """Return quality, media range and kind of each entry of an Accept header."""
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
