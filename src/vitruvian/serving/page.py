"""The page at `/`: the files in `web/`, which are served as they are, and an example image.

They are read when the server starts, so no path of a client reaches the file system.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Request, Response

from vitruvian.serving.errors import not_found

_MEDIA_TYPES = {  # not those of the system, which may differ: browsers run no script with another type
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class _File:
    """A file of the page."""

    body: bytes
    media_type: str
    tag: str

    def answer(self, request: Request) -> Response:
        """Answer with the file, or that the browser has it already."""
        headers = {"ETag": self.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


def add_page(app: FastAPI) -> None:
    """Add the page to an application."""
    pages = _read_files()

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return pages["index.html"].answer(request)

    @app.get("/web/{name:path}", include_in_schema=False)
    async def file(request: Request, name: str) -> Response:
        if name not in pages:
            raise not_found("file", repr(name[:80]), "The page is at /.")
        return pages[name].answer(request)


def _read_files() -> Mapping[str, _File]:
    """Return the files of the page by their names, as in ``vendor/three/OrbitControls.js``."""
    package = files("vitruvian")
    found = dict(_walk(package / "serving" / "web", ""))
    found["example.jpg"] = _read(package / "builtin" / "astronaut.jpg")
    return found


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, _File]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        elif _suffix(entry.name) in _MEDIA_TYPES:
            found.append((prefix + entry.name, _read(entry)))
    return found


def _read(entry: Traversable) -> _File:
    body = entry.read_bytes()
    return _File(body, _MEDIA_TYPES[_suffix(entry.name)], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
