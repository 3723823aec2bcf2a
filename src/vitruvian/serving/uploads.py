"""Request bodies: an image, a form, JSON or an address, within the limits.

An image comes as the raw body, as the file of a form (multipart/form-data), or, where the server allows it, as the
address of one (`url`). Options come as query parameters, form fields or the fields of a JSON object. The bodies of all
requests together are bounded. What a client calls a file is a name in results, never a path: files on disk
(`UploadFolder`) are stored under numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import zipfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect
from starlette.types import Message

from vitruvian.errors import InputError, one_line
from vitruvian.files.video import VideoReader
from vitruvian.images.decode import is_image
from vitruvian.images.download import download, redacted_url
from vitruvian.io.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES, is_url
from vitruvian.serving.errors import RequestError, too_large, too_many
from vitruvian.serving.settings import ServerLimits

_MAX_FIELDS = 64
_MAX_FIELD_BYTES = 1 << 20
_MAX_NAME = 100
_OPTION_SECONDS = 30.0  # for a body with options
FORM, _JSON = "multipart/form-data", "application/json"


@dataclass
class Upload:
    """What a request holds.

    Attributes:
        body: The image file; empty if there is none.
        name: Its name.
        fields: Options.
    """

    body: bytes = b""
    name: str = "image"
    fields: dict[str, Any] = field(default_factory=dict)


class UploadReader:
    """Reads request bodies, and counts the bytes that are in memory.

    Args:
        limits: Limits of the server.
        allow_urls: Whether images may be fetched from addresses.
    """

    def __init__(self, limits: ServerLimits, *, allow_urls: bool) -> None:
        self._limits, self._allow_urls = limits, allow_urls
        self.pending_bytes = 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[Upload]:
        """Read the image and the options of a request; their bytes count as pending within the block."""
        reserved = 0

        def reserve(count: int) -> None:
            nonlocal reserved
            if self.pending_bytes + count > self._limits.pending_bytes:
                raise too_many("uploads", self._limits.pending_bytes, "bytes of uploads", retry_seconds=1)
            reserved += count
            self.pending_bytes += count

        try:
            yield await self._read(request, reserve)
        finally:
            self.pending_bytes -= reserved

    async def _read(self, request: Request, reserve: Any) -> Upload:
        upload = Upload(fields=dict(request.query_params))
        limited = LimitedRequest(request, self._limits.upload_bytes, self._limits.upload_seconds, reserve)
        kind = media_type(request)
        if kind == FORM:
            async with limited.form(max_files=1) as form:
                for name, value in form.multi_items():
                    if isinstance(value, UploadFile):
                        upload.body, upload.name = await value.read(), file_name(value.filename)
                    else:
                        upload.fields[name] = value
        elif kind == _JSON:
            upload.fields = await read_options(request)
        else:
            upload.body = await limited.body()
        url = upload.fields.pop("url", None)
        upload.name = file_name(upload.fields.pop("name", upload.name))
        if url is not None:
            if upload.body:
                raise RequestError(422, subject="url", expected="an address or an image", got="both")
            upload.body, upload.name = await self._fetch(url)
            reserve(len(upload.body))
        return upload

    async def _fetch(self, url: object) -> tuple[bytes, str]:
        """Fetch an image from a public address; return it and its name."""
        if not self._allow_urls:
            raise RequestError(
                403, subject="url", expected="an uploaded image", got="an address",
                hint="Send the image itself. The server fetches addresses only if it is started with --allow-urls.",
            )  # fmt: skip
        if not isinstance(url, str) or not is_url(url):
            raise RequestError(422, subject="url", expected="an http or https address", got=repr(url)[:80])
        body = await asyncio.to_thread(download, url, timeout=10.0, allow_private=False)
        if len(body) > self._limits.upload_bytes:
            raise too_large("url", self._limits.upload_bytes, "bytes", f"{len(body):,}")
        return body, file_name(redacted_url(url).rpartition("/")[2] or "image")


class LimitedRequest:
    """A request whose body is bounded in bytes and in time.

    Args:
        request: The request.
        max_bytes: Bytes of the body.
        seconds: Time for all of it.
        on_bytes: Called with the size of each chunk.
    """

    def __init__(self, request: Request, max_bytes: int, seconds: float, on_bytes: Any = None) -> None:
        self._request, self._max_bytes, self._on_bytes = request, max_bytes, on_bytes
        self._seconds, self._count = seconds, 0
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > max_bytes:
            raise too_large("upload", max_bytes, "bytes", f"{int(length):,}")

    async def _receive(self) -> Message:
        message = await self._request.receive()
        count = len(message.get("body", b""))
        self._count += count
        if self._count > self._max_bytes:
            raise too_large("upload", self._max_bytes, "bytes")
        if self._on_bytes is not None:
            self._on_bytes(count)
        return message

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        with self._errors():
            async with asyncio.timeout(self._seconds):
                more = True
                while more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    more = message.get("more_body", False)
                    yield message.get("body", b"")

    async def body(self) -> bytes:
        """Return the body."""
        return b"".join([chunk async for chunk in self.chunks()])

    @contextlib.asynccontextmanager
    async def form(self, *, max_files: int) -> AsyncIterator[FormData]:
        """Parse a form; large files are in unnamed temporary files."""
        with self._errors():
            async with asyncio.timeout(self._seconds):
                request = Request(self._request.scope, self._receive)
                form = await request.form(max_files=max_files, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES)
        try:
            yield form
        finally:
            await form.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise RequestError(
                408, subject="upload", expected=f"one of at most {self._seconds} seconds", got="a slower one"
            ) from None
        except (MultiPartException, HTTPException, KeyError) as error:
            message = getattr(error, "message", None) or getattr(error, "detail", None) or "a damaged one"
            raise RequestError(400, subject="form", expected="a form of this size", got=one_line(message)) from None


async def read_options(request: Request) -> dict[str, Any]:
    """Read options from query parameters and from the fields of a JSON object or a form without files."""
    fields: dict[str, Any] = dict(request.query_params)
    limited = LimitedRequest(request, _MAX_FIELD_BYTES, _OPTION_SECONDS)
    if media_type(request) == FORM:
        async with limited.form(max_files=0) as form:
            return fields | {name: value for name, value in form.multi_items() if isinstance(value, str)}
    body = await limited.body()
    if body and media_type(request) != _JSON:
        raise RequestError(422, subject="body", expected="options as JSON", got="a file")
    return fields | parse_json_object(body)


def media_type(request: Request) -> str:
    """Return the media type of the body."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        values = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise RequestError(400, subject="body", expected="a JSON object", got="another text")
    return values


def file_name(text: object) -> str:
    """Return what a client calls a file as a short text without folders, for results and messages."""
    name = re.split(r"[/\\]", str(text or ""))[-1]
    return one_line(name)[:_MAX_NAME].strip() or "image"


# ------------------------------------------------------------------------------------------------ files on disk


_CHUNK = 1 << 20
_ZIP = b"PK\x03\x04"
_TYPES = {
    "image/jpeg": ".jpg", "image/png": ".png", "image/webp": ".webp", "image/tiff": ".tif", "image/gif": ".gif",
    "image/bmp": ".bmp", "image/avif": ".avif", "image/heic": ".heic", "image/heif": ".heif",
    "video/mp4": ".mp4", "video/quicktime": ".mov", "video/webm": ".webm", "video/x-matroska": ".mkv",
    "video/x-msvideo": ".avi", "video/mpeg": ".mpg",
    "application/zip": ".zip", "application/x-zip-compressed": ".zip",
}  # fmt: skip


@dataclass
class UploadFolder:
    """The folder of a new job or video while its files are uploaded.

    Attributes:
        id: The id of the job or video.
        folder: Its folder.
        limits: Limits of the server.
        sources: Names of the files in `folder`/input so far, and what the client calls them.
        size: Their bytes.
    """

    id: str
    folder: Path
    limits: ServerLimits
    sources: dict[str, str] = field(default_factory=dict)
    size: int = 0

    @contextlib.contextmanager
    def open_file(self) -> Iterator[IO[bytes]]:
        """Open a temporary file for one upload."""
        self.folder.joinpath("input").mkdir(parents=True, exist_ok=True)
        with self.folder.joinpath("upload").open("wb") as file:
            yield file

    def add_link(self, path: Path, name: str) -> None:
        """Add a file of this server without a copy."""
        self.folder.joinpath("input").mkdir(parents=True, exist_ok=True)
        link = self.folder / "upload"
        os.link(path, link)
        self._add(link, name, path.suffix)

    def add_upload(self, name: str, media_type: str) -> None:
        """Add the file that was uploaded: an image, a video, or the files of a ZIP archive."""
        path = self.folder / "upload"
        with path.open("rb") as file:
            head = file.read(64)
        suffix = PurePosixPath(name).suffix.lower()
        if head.startswith(_ZIP) and suffix not in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
            self._unpack(path)
            path.unlink()
            return
        if suffix not in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
            suffix = _TYPES.get(media_type, ".jpg" if is_image(head) else "")
        if suffix not in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
            raise RequestError(
                415, subject=name, expected="an image, a video or a ZIP archive of them", got="another file",
                hint="Name it with its ending: ?name=clip.mp4",
            )  # fmt: skip
        self._add(path, name, suffix)

    def is_video(self, stored: str) -> bool:
        """Return whether a file of `sources` is a video."""
        return PurePosixPath(stored).suffix in VIDEO_SUFFIXES

    def _add(self, path: Path, name: str, suffix: str) -> None:
        if len(self.sources) >= self.limits.job_files:
            raise too_large("job", self.limits.job_files, "files")
        self.size += path.stat().st_size
        if self.size > self.limits.job_upload_bytes:
            raise too_large("job", self.limits.job_upload_bytes, "bytes")
        stored = f"{len(self.sources) + 1:04d}{suffix}"
        target = self.folder / "input" / stored
        path.rename(target)
        self.sources[stored] = name
        if suffix in VIDEO_SUFFIXES:
            self._check_video(target, name)

    def _check_video(self, path: Path, name: str) -> None:
        """Raise an error for a file that is no video, or one with too many frames."""
        try:
            too_long = VideoReader(path).has_more_frames_than(self.limits.frames)
        except InputError as error:
            detail = str(error).replace(str(path), name)
            raise RequestError(415, message=detail.removeprefix(f"{name}: "), subject=name) from None
        if too_long:
            raise too_large(name, self.limits.frames, "frames")

    def _unpack(self, path: Path) -> None:
        """Add the images and videos of an archive; other files and hidden ones are skipped."""
        try:
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    name = PurePosixPath(entry.filename.replace("\\", "/"))
                    suffix = name.suffix.lower()
                    hidden = name.name.startswith(".") or "__MACOSX" in name.parts
                    if entry.is_dir() or hidden or suffix not in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
                        continue
                    part = self.folder / "entry"
                    with archive.open(entry) as source, part.open("wb") as target:
                        self._copy(source, target)
                    self._add(part, file_name(name.name), suffix)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, OSError) as error:
            if isinstance(error, InputError):
                raise
            raise RequestError(415, subject="archive", expected="a ZIP archive", got=one_line(error)) from None
        if not self.sources:
            raise RequestError(415, subject="archive", expected="images or videos in it", got="none")

    def _copy(self, source: IO[bytes], target: IO[bytes]) -> None:
        """Copy a file of an archive; what it declares as its size is not trusted."""
        left = self.limits.job_upload_bytes - self.size
        while chunk := source.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise too_large("archive", self.limits.job_upload_bytes, "bytes, unpacked")
            target.write(chunk)


async def receive_files(request: Request, folder: UploadFolder) -> dict[str, Any]:
    """Write the files of a request into a folder, and return its options: the raw body, or the files of a form."""
    limits = folder.limits
    fields: dict[str, Any] = dict(request.query_params)
    limited = LimitedRequest(request, limits.job_upload_bytes, limits.upload_seconds * 10)
    if media_type(request) == FORM:
        async with limited.form(max_files=limits.job_files) as form:
            for name, value in form.multi_items():
                if not isinstance(value, UploadFile):
                    fields[name] = value
                    continue
                with folder.open_file() as file:
                    while chunk := await value.read(_CHUNK):
                        file.write(chunk)
                await asyncio.to_thread(folder.add_upload, file_name(value.filename), value.content_type or "")
    else:
        name, size = file_name(fields.pop("name", "file")), 0
        with folder.open_file() as file:
            async for chunk in limited.chunks():
                size += len(chunk)
                file.write(chunk)
        if size:
            await asyncio.to_thread(folder.add_upload, name, media_type(request))
    if "options" in fields:
        fields |= parse_json_object(str(fields.pop("options")).encode())
    return fields
