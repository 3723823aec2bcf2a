"""Sources of images: `open_source(anything)` returns a `Source` of frames.

    path · URL · bytes · file object · PIL · numpy · torch            one image
    folder · glob · frame_%04d.png · list · batch · generator         many
    video file · camera                                               many, with frame numbers and times

A source yields *loaders*, each a name and a function that reads one image, so that several threads can read
concurrently. Iterating over the source itself reads one image at a time.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from vitruvian.errors import InputError, VitruvianError, one_line
from vitruvian.files.video import DecodedFrame, SequenceReader, VideoReader, import_av
from vitruvian.filesystem.media_files import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    is_url,
    natural_key,
    sequence_files,
    source_kind,
    walk_files,
)
from vitruvian.images.download import download, redacted_url
from vitruvian.images.exif_focal import exif_focal
from vitruvian.images.read import load_rgb
from vitruvian.images.types import RgbImage, SizeHW

# Platform → format of PyAV and the name of camera number n. On Windows cameras have names, not numbers.
_CAMERA_FORMATS = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}")}


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """An upright image and its origin.

    Attributes:
        image: RGB, uint8 [H, W, 3].
        name: File name or URL, or the kind of the source: "array", "PIL image", "bytes".
        path: The file, if it is one.
        index: Its index in the source.
        frame: Its number in a video or an image sequence.
        time: Seconds from the start of the video.
        exif_focal_px: Focal length in pixels, if the file states it.
    """

    image: RgbImage
    name: str
    path: Path | None = None
    index: int = 0
    frame: int | None = None
    time: float | None = None
    exif_focal_px: float | None = None

    @property
    def size_hw(self) -> SizeHW:
        """Height and width in pixels."""
        return self.image.shape[0], self.image.shape[1]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An image that could not be read, or has no result.

    Attributes:
        name: File name, URL or "array".
        error: The exception.
        index: Its index in the source.
        frame: Its frame number in a video.
    """

    name: str
    error: Exception
    index: int = 0
    frame: int | None = None

    @property
    def message(self) -> str:
        """The error in one line, with the name of the image in front."""
        text = " ".join(str(self.error).split()) or type(self.error).__name__
        return text if text.startswith(self.name) else f"{self.name}: {text}"


@dataclass(frozen=True, kw_only=True)
class FrameLoader:
    """An image that is not read yet. `load` may be called once, from any thread.

    Attributes:
        name: File name or URL, or the kind of the source.
        load: Reads the image.
        path: The file, if it is one.
        frame: Number of the frame in a video or an image sequence.
        remote: Whether it is downloaded, which may take long.
        decoded_bytes: Bytes that a frame of a video takes already.
    """

    name: str
    load: Callable[[], Frame]
    path: Path | None = None
    frame: int | None = None
    remote: bool = False
    decoded_bytes: int = 0

    def read(self, index: int) -> Frame | Failure:
        """Read the image that has this index in its source."""
        try:
            return replace(self.load(), index=index)
        except Exception as error:  # noqa: BLE001 - one image must not stop the others; the error is passed on
            return Failure(name=self.name, error=error, index=index, frame=self.frame)


@dataclass(frozen=True)
class Source:
    """A sequence of images. `open_source` creates it.

    Attributes:
        loaders: Yields one loader for each image, in order. Videos and generators advance as loaders are taken.
        single: Whether it is one image rather than a sequence.
        count: Number of images, if known.
        video: The video file, if it is one.
        live: Whether images arrive in real time.
        close: Ends `loaders`, also if it waits for images; called from another thread once no more are taken.
    """

    loaders: Callable[[], Iterator[FrameLoader]]
    single: bool = False
    count: int | None = None
    video: VideoReader | None = None
    live: bool = False
    close: Callable[[], object] | None = None

    def __iter__(self) -> Iterator[Frame | Failure]:
        return (loader.read(index) for index, loader in enumerate(self.loaders()))


def open_source(source: object) -> Source:
    """Open anything that holds images.

    Args:
        source: A path, folder, glob, URL, ``data:`` URL, the bytes of a file, a file object, PIL image, array or
            tensor ([H, W, C], [C, H, W] or [H, W], or a batch of them with 4 dimensions); a video file; a number or
            ``"camera:0"`` for a camera; an image sequence such as ``"frame_%04d.png"``; a `Frame`; or a list or
            generator of any of these. Folders are read in the order of names and not recursively (for that, use
            ``"folder/**/*.jpg"``).
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, str | os.PathLike):
        return _from_text(os.fspath(source))
    if isinstance(source, int) and not isinstance(source, bool):
        return _from_camera(source)
    if isinstance(source, np.ndarray | Tensor) and source.ndim == 4:
        return Source(lambda: (_memory_loader(frame) for frame in source), count=len(source))
    if isinstance(source, np.ndarray | Tensor | Image.Image | bytes | bytearray | memoryview | Frame) or hasattr(
        source, "read"
    ):
        return _single(_memory_loader(source))
    if isinstance(source, list | tuple):
        if not source:
            raise InputError("source: expected at least one image, got an empty list.")
        return Source(lambda: _each(source, copy=False), count=_count(source))
    if isinstance(source, Iterable):
        count = len(source) if isinstance(source, Sized) else None
        return Source(lambda: _each(source, copy=True), count=count)
    raise InputError(
        "source: expected a path, folder, URL, bytes, PIL image, array, tensor, list, generator, video or camera, "
        f"got {type(source).__name__}."
    )


def _single(loader: FrameLoader) -> Source:
    return Source(lambda: iter([loader]), single=True, count=1)


def _from_text(text: str) -> Source:
    """Open what a string names."""
    kind = source_kind(text)
    if kind == "camera":
        return _from_camera(int(text.partition(":")[2]))
    if kind == "url":
        name = redacted_url(text)
        if Path(name.partition("#")[0]).suffix.lower() in VIDEO_SUFFIXES:
            raise InputError(f"{one_line(name)}: expected the URL of an image, got a video. Download it first.")
        return _single(_url_loader(text))
    if kind == "data":
        return _single(FrameLoader(name="data", load=lambda: Frame(image=load_rgb(text), name="data")))
    path = Path(text).expanduser()
    if kind == "folder":
        return _from_files(_images_in(path))
    if kind == "sequence":
        return _from_sequence(path)
    if kind == "glob":
        return _from_files(glob_files(str(path)))
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return _from_video(path)
    return _single(_file_loader(path, text=text))


def _images_in(folder: Path) -> list[Path]:
    """List the images in a folder by name, without hidden files."""
    files = [Path(entry.path) for entry in walk_files(folder)]
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        other = f"{len(files)} other files" if files else "no files"
        videos = [file.name for file in files if file.suffix.lower() in VIDEO_SUFFIXES]
        hint = f"Pass a video on its own, such as {videos[0]}." if videos else "Check the path."
        raise InputError(f"{folder}: expected images in the folder, got {other}. {hint}")
    return images


def glob_files(pattern: str) -> list[Path]:
    """List the files that match a glob, by name; only images and videos if it has no fixed suffix."""
    paths = [
        Path(name) for name in sorted(glob.glob(pattern, recursive=True), key=natural_key) if not os.path.isdir(name)
    ]
    if glob.has_magic(Path(pattern).suffix) or not Path(pattern).suffix:
        paths = [path for path in paths if path.suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES]
    if not paths:
        raise InputError(f"{pattern}: no file matches. Check the pattern and the folder.")
    return paths


def _from_files(paths: list[Path]) -> Source:
    return Source(lambda: _each(paths, copy=False), count=_count(paths))


def _from_sequence(pattern: Path) -> Source:
    """Open ``name_%04d.png``: the matching files in the order of their numbers, counted from 0."""
    files = sequence_files(pattern)
    return Source(lambda: (_file_loader(path, number=number) for number, path in enumerate(files)), count=len(files))


def _each(items: Iterable[object], *, copy: bool) -> Iterator[FrameLoader]:
    """Yield the loaders of a list or generator, and those of items that hold several images.

    With `copy`, arrays are copied when they arrive, since generators often reuse one buffer.
    """
    for item in items:
        if isinstance(item, str | os.PathLike):
            try:
                yield from _from_text(os.fspath(item)).loaders()
            except VitruvianError as error:
                text = os.fspath(item)
                yield _failed_loader(redacted_url(text) if is_url(text) else text, error)
        elif isinstance(item, list | tuple) or (isinstance(item, np.ndarray | Tensor) and item.ndim == 4):
            yield from _each(item, copy=copy)
        elif copy and isinstance(item, np.ndarray):
            yield _memory_loader(item.copy())
        elif copy and isinstance(item, Tensor):
            yield _memory_loader(item.detach().clone())
        else:
            yield _memory_loader(item)


def _count(items: Iterable[object]) -> int | None:
    """Count the images of a list; None if that is not possible without reading them."""
    counts = [_count_one(item) for item in items]
    return None if None in counts else sum(count or 0 for count in counts)


def _count_one(item: object) -> int | None:
    if isinstance(item, list | tuple):
        return _count(item)
    if isinstance(item, np.ndarray | Tensor) and item.ndim == 4:
        return len(item)
    if isinstance(item, str | os.PathLike) and Path(item).suffix.lower() not in IMAGE_SUFFIXES:
        with contextlib.suppress(VitruvianError):
            return _from_text(os.fspath(item)).count
    return 1


def _failed_loader(name: str, error: Exception) -> FrameLoader:
    def load() -> Frame:
        raise error

    return FrameLoader(name=name, load=load)


def _file_loader(path: Path, *, text: str | None = None, number: int | None = None) -> FrameLoader:
    name = one_line(path if text is None else text)

    def load() -> Frame:
        image = load_rgb(text if text is not None and not os.path.exists(path) else path)
        return Frame(image=image, name=name, path=path, frame=number, exif_focal_px=exif_focal(path, image.shape[:2]))

    return FrameLoader(name=name, load=load, path=path, frame=number)


def _url_loader(url: str) -> FrameLoader:
    name = redacted_url(url)

    def load() -> Frame:
        stream = io.BytesIO(download(url, timeout=30.0))
        stream.name = name  # for error messages
        image = load_rgb(stream)
        return Frame(image=image, name=name, exif_focal_px=exif_focal(stream.getvalue(), image.shape[:2]))

    return FrameLoader(name=name, load=load, remote=True)


def _memory_loader(item: object) -> FrameLoader:
    """Return the loader of an image in memory or of a file object."""
    if isinstance(item, Frame):
        return FrameLoader(name=item.name, load=lambda: item, path=item.path, decoded_bytes=item.image.nbytes)
    name = "array" if isinstance(item, np.ndarray | Tensor) else one_line(getattr(item, "name", "bytes"))
    if isinstance(item, Image.Image):
        name = one_line(getattr(item, "filename", "") or "PIL image")

    def load() -> Frame:
        image = load_rgb(item)
        return Frame(image=image, name=name, exif_focal_px=exif_focal(item, image.shape[:2]))

    return FrameLoader(name=name, load=load)


def _from_video(path: Path) -> Source:
    reader = VideoReader(path)
    return replace(video_source(reader), count=reader.count, video=reader)


def video_source(reader: VideoReader | SequenceReader, start: int = 0) -> Source:
    """Return the frames of a video from a frame on; the source fails at the end of a file that breaks off."""

    def loaders() -> Iterator[FrameLoader]:
        if isinstance(reader, SequenceReader):
            for number, path in enumerate(reader.files[start:], start):
                yield _sequence_loader(reader, path, number)
        else:
            for decoded in reader.decoded_frames(start):
                yield _video_loader(reader.path, decoded)
            reader.check_end()

    return Source(loaders)


def _sequence_loader(reader: SequenceReader, path: Path, number: int) -> FrameLoader:
    """Return the loader of an image as a frame of a video, whose name it gets."""

    def load() -> Frame:
        time = float(number / reader.rate)
        return Frame(image=load_rgb(path), name=str(reader.path), path=reader.path, frame=number, time=time)

    return FrameLoader(name=one_line(path), load=load, path=path, frame=number)


def _video_loader(path: Path, decoded: DecodedFrame) -> FrameLoader:
    """Return a loader that converts a frame of a video to RGB."""

    def load() -> Frame:
        return Frame(image=decoded.to_rgb(), name=str(path), path=path, frame=decoded.number, time=decoded.time)

    return FrameLoader(name=str(path), load=load, path=path, frame=decoded.number, decoded_bytes=decoded.nbytes)


def _from_camera(number: int) -> Source:
    def loaders() -> Iterator[FrameLoader]:
        for index, (seconds, image) in enumerate(_camera_frames(number)):
            yield _memory_loader(Frame(image=image, name=f"camera:{number}", frame=index, time=seconds))

    return Source(loaders, live=True)


def _camera_frames(number: int) -> Iterator[tuple[float, RgbImage]]:
    """Yield (seconds since the first frame, image uint8 [H, W, 3]) of a camera for as long as it runs."""
    av = import_av()
    if sys.platform not in _CAMERA_FORMATS:
        raise InputError(
            f"camera:{number}: expected Linux or macOS, got {sys.platform}. Read the camera with another library, and "
            "pass a generator of its frames."
        )
    device_format, name = _CAMERA_FORMATS[sys.platform]
    options = {"framerate": "30"} if device_format == "avfoundation" else {}
    try:
        container = av.open(name.format(number), format=device_format, options=options)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise InputError(
            f"camera:{number}: expected a camera, got {one_line(error)}. Check that it is plugged in and not in use."
        ) from error
    start = time.monotonic()
    with container:
        for frame in container.decode(video=0):
            yield time.monotonic() - start, frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
