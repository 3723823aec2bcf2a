"""Request bodies: an image, a form, JSON or an address, within the limits.

An image comes as the raw body, as the file of a form (multipart/form-data), or, where the server allows it, as the
address of one (`url`). Options come as query parameters, form fields or the fields of a JSON object. The bodies of all
requests together are bounded. What a client calls a file is a name in results, never a path; `upload_folder` has files
on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from vitruvian.errors import one_line
from vitruvian.filesystem.media_files import is_url
from vitruvian.images.download import download, redacted_url
from vitruvian.serving.errors import RequestError, too_large, too_many
from vitruvian.serving.forms import MAX_FIELD_BYTES, MULTIPART, FormField, FormFile, read_form
from vitruvian.serving.settings import ServerLimits

_MAX_NAME = 100
_MAX_FETCHES = 4  # at the same time: each holds a thread
_OPTION_SECONDS = 30.0  # for a body with options
_JSON = "application/json"


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
        self.pending_bytes = self._fetches = 0

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
        if kind == MULTIPART:
            async for part in limited.form(max_files=1):
                if isinstance(part, FormFile):
                    upload.body, upload.name = b"".join([chunk async for chunk in part.chunks]), file_name(part.name)
                else:
                    upload.fields[part.name] = part.value
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
        if self._fetches >= _MAX_FETCHES:
            raise too_many("url", _MAX_FETCHES, "addresses that are fetched", retry_seconds=1)
        self._fetches += 1
        try:
            limit = self._limits.upload_bytes
            body = await asyncio.to_thread(download, url, timeout=10.0, allow_private=False, max_bytes=limit)
        finally:
            self._fetches -= 1
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

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        deadline, more = asyncio.get_running_loop().time() + self._seconds, True
        while more:
            try:
                async with asyncio.timeout_at(deadline):
                    message = await self._request.receive()
            except TimeoutError:
                raise RequestError(
                    408, subject="upload", expected=f"one of at most {self._seconds} seconds", got="a slower one"
                ) from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body, more = message.get("body", b""), message.get("more_body", False)
            self._count += len(body)
            if self._count > self._max_bytes:
                raise too_large("upload", self._max_bytes, "bytes")
            if self._on_bytes is not None:
                self._on_bytes(len(body))
            yield body

    async def body(self) -> bytes:
        """Return the body."""
        return b"".join([chunk async for chunk in self.chunks()])

    def form(self, *, max_files: int) -> AsyncIterator[FormField | FormFile]:
        """Parse the body as a form."""
        return read_form(self._request.headers["content-type"], self.chunks(), max_files=max_files)


async def read_options(request: Request) -> dict[str, Any]:
    """Read options from query parameters and from the fields of a JSON object or a form without files."""
    fields: dict[str, Any] = dict(request.query_params)
    limited = LimitedRequest(request, MAX_FIELD_BYTES, _OPTION_SECONDS)
    if media_type(request) == MULTIPART:
        async for part in limited.form(max_files=0):
            if isinstance(part, FormField):
                fields[part.name] = part.value
        return fields
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
