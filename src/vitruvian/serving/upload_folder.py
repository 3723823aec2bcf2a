"""Files of a new job or video: written to a folder under numbers, within the limits; archives are unpacked."""

from __future__ import annotations

import asyncio
import contextlib
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fastapi import Request

from vitruvian.errors import InputError, one_line
from vitruvian.files.video import VideoReader
from vitruvian.filesystem.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from vitruvian.images.decode import is_image
from vitruvian.serving.errors import RequestError, is_disk_full, too_large
from vitruvian.serving.forms import MULTIPART, FormField
from vitruvian.serving.request_bodies import LimitedRequest, file_name, media_type, parse_json_object
from vitruvian.serving.settings import ServerLimits

_CHUNK_BYTES = 1 << 20
_MAX_CONTENTS_BYTES = 16 << 20  # of an archive: 150,000 files with names of 60 characters
_ZIP = b"PK\x03\x04"
_ARCHIVE_ERRORS = (  # of `zipfile` and of the decompressors that it uses
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError, EOFError, ValueError, OSError,
)  # fmt: skip
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
        count: Called with the size of what is written; raises an error if there is no space.
        sources: Names of the files in `folder`/input so far, and what the client calls them.
        size: Their bytes.
    """

    id: str
    folder: Path
    limits: ServerLimits
    count: Callable[[int], None]
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
            too_long = VideoReader(path).count_packets(self.limits.frames + 1) > self.limits.frames
        except InputError as error:
            detail = str(error).replace(str(path), name)
            raise RequestError(415, message=detail.removeprefix(f"{name}: "), subject=name) from None
        if too_long:
            raise too_large(name, self.limits.frames, "frames")

    def _unpack(self, path: Path) -> None:
        """Add the images and videos of an archive; other files and hidden ones are skipped."""
        try:
            with zipfile.ZipFile(_ArchiveFile(path)) as archive:
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
        except _ARCHIVE_ERRORS as error:
            if isinstance(error, InputError) or is_disk_full(error):
                raise
            raise RequestError(415, subject="archive", expected="a ZIP archive", got=one_line(error)) from None
        if not self.sources:
            raise RequestError(415, subject="archive", expected="images or videos in it", got="none")

    def _copy(self, source: IO[bytes], target: IO[bytes]) -> None:
        """Copy a file of an archive; what it declares as its size is not trusted."""
        left = self.limits.job_upload_bytes - self.size
        while chunk := source.read(_CHUNK_BYTES):
            left -= len(chunk)
            if left < 0:
                raise too_large("archive", self.limits.job_upload_bytes, "bytes, unpacked")
            self.count(len(chunk))
            target.write(chunk)


class _ArchiveFile(io.FileIO):
    """An archive whose table of contents, which `zipfile` reads and keeps as a whole, is of limited size."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_CONTENTS_BYTES:
            raise too_large("archive", _MAX_CONTENTS_BYTES, "bytes of its table of contents")
        return super().read(size) or b""


async def receive_files(request: Request, folder: UploadFolder) -> dict[str, Any]:
    """Write the files of a request into a folder, and return its options: the raw body, or the files of a form."""
    limits = folder.limits
    fields: dict[str, Any] = dict(request.query_params)
    limited = LimitedRequest(request, limits.job_upload_bytes, limits.upload_seconds * 10, folder.count)
    if media_type(request) == MULTIPART:
        async for part in limited.form(max_files=limits.job_files):
            if isinstance(part, FormField):
                fields[part.name] = part.value
                continue
            with folder.open_file() as file:
                async for chunk in part.chunks:
                    file.write(chunk)
            await asyncio.to_thread(folder.add_upload, file_name(part.name), part.media_type)
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
