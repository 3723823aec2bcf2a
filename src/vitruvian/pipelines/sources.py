"""Pictures from wherever they are, one after another: `open_source(anything)` → a `Source` of frames.

    path · URL · bytes · file object · PIL · numpy · torch            one picture
    folder · glob · frame_%04d.png · list · batch · generator         many
    video file · camera                                               many, with numbers and times

A source hands out *tickets*: a name and a way to read the picture, so that several threads can read at once. Iterating
over the source itself reads one at a time.
"""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from vitruvian.errors import InputError, VitruvianError, near_matches
from vitruvian.images import load_image
from vitruvian.images.decode import one_line
from vitruvian.images.read import download
from vitruvian.pipelines.exif import focal_of_file, focal_of_image

Picture = npt.NDArray[np.uint8]  # [H, W, 3], RGB

# fmt: off
PICTURE_ENDINGS = frozenset({
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".j2k", ".jp2", ".jpe", ".jpeg", ".jpg",
    ".pbm", ".pgm", ".png", ".ppm", ".qoi", ".tif", ".tiff", ".webp",
})
VIDEO_ENDINGS = frozenset({
    ".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".webm",
    ".wmv",
})
# fmt: on
_NUMBER = re.compile(r"%(0(\d+))?d")
_CAMERA = re.compile(r"camera:(\d+)")
_WEB = ("http://", "https://")


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """One picture, upright, and what is known of it.

    Attributes:
        picture: RGB, uint8 [H, W, 3].
        name: File name, URL, or what else it came as: "array", "PIL image", "bytes".
        path: The file, where it is one.
        index: Its place in the source, from 0.
        frame: Its number in a video or an image sequence.
        time: Seconds from the start of the video.
        exif_focal_px: Focal length in pixels, where the file tells.
    """

    picture: Picture
    name: str
    path: Path | None = None
    index: int = 0
    frame: int | None = None
    time: float | None = None
    exif_focal_px: float | None = None

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.picture.shape[0], self.picture.shape[1]


@dataclass(frozen=True, kw_only=True, eq=False)
class BadFrame:
    """A picture that could not be read, and why."""

    name: str
    error: Exception
    path: Path | None = None
    index: int = 0


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """What a video says of itself: `rate` in frames a second, `count` of frames as its header states it."""

    path: Path | None
    rate: Fraction | None
    size_hw: tuple[int, int]
    count: int | None = None
    sound: bool = False


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A picture that is not read yet. `read` may be called once, from any thread."""

    name: str
    read: Callable[[], Frame]
    path: Path | None = None

    def frame(self, index: int) -> Frame | BadFrame:
        """Read the picture that is number `index` of its source."""
        try:
            return replace(self.read(), index=index)
        except Exception as error:  # noqa: BLE001 - one picture must not stop the others; the error is passed on
            return BadFrame(name=self.name, error=error, path=self.path, index=index)


class Source:
    """Pictures one after another. Made by `open_source`.

    Attributes:
        single: Whether it is one picture rather than a series.
        count: How many pictures there are, where that is known.
        video: What the video says of itself, where it is one.
        live: Whether pictures come in real time.
    """

    def __init__(
        self,
        tickets: Callable[[], Iterator[Ticket]],
        *,
        single: bool = False,
        count: int | None = None,
        video: VideoInfo | None = None,
        live: bool = False,
    ) -> None:
        self._tickets = tickets
        self.single, self.count, self.video, self.live = single, count, video, live

    def tickets(self) -> Iterator[Ticket]:
        """Hand out one ticket a picture, in order. Videos and generators are read on as tickets are taken."""
        return self._tickets()

    def __iter__(self) -> Iterator[Frame | BadFrame]:
        return (ticket.frame(index) for index, ticket in enumerate(self.tickets()))


def open_source(source: Any) -> Source:
    """Open anything that holds pictures.

    Args:
        source: A path, folder, glob, URL, ``data:`` address, the bytes of a file, a file object, PIL image, array or
            tensor ([H, W, C], [C, H, W] or [H, W]; a fourth dimension in front for several); a video file; a number or
            ``"camera:0"`` for a camera; an image sequence such as ``"frame_%04d.png"``; a `Frame`; or a list or
            generator of any of these. Folders are read in the order of names, without folders inside them (for
            those, use ``"folder/**/*.jpg"``).
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, str | os.PathLike):
        return _from_text(os.fspath(source))
    if isinstance(source, int) and not isinstance(source, bool):
        return _from_camera(source)
    if isinstance(source, np.ndarray | Tensor) and source.ndim == 4:
        return Source(lambda: (_picture_ticket(one) for one in source), count=len(source))
    if isinstance(source, np.ndarray | Tensor | Image.Image | bytes | bytearray | memoryview | Frame):
        return Source(lambda: iter([_picture_ticket(source)]), single=True, count=1)
    if hasattr(source, "read"):
        return Source(lambda: iter([_picture_ticket(source)]), single=True, count=1)
    if isinstance(source, list | tuple):
        if not source:
            raise InputError("source: expected at least one picture, got an empty list.")
        return Source(lambda: _each(source, snapshot=False), count=_count(source))
    if isinstance(source, Iterable):
        count = len(source) if isinstance(source, Sized) else None
        return Source(lambda: _each(source, snapshot=True), count=count)
    raise InputError(
        "source: expected a path, folder, URL, bytes, PIL image, array, tensor, list, generator, video or camera, "
        f"got {type(source).__name__}."
    )


# ------------------------------------------------------------------------------------------------------ texts


def _from_text(text: str) -> Source:
    """Tell what a string means; a file or folder that exists beats patterns."""
    camera = _CAMERA.fullmatch(text)
    if camera:
        return _from_camera(int(camera.group(1)))
    if text.lower().startswith(_WEB):
        if Path(text.partition("?")[0]).suffix.lower() in VIDEO_ENDINGS:
            raise InputError(f"{one_line(text)}: expected the address of a picture, got a video's. Download it first.")
        return Source(lambda: iter([_url_ticket(text)]), single=True, count=1)
    if len(text) > 4096 or text[:5].lower() == "data:" or "\0" in text:
        return Source(lambda: iter([_text_ticket(text)]), single=True, count=1)
    path = Path(text).expanduser()
    # os.path takes text that is far too long for a name, such as base64, for a missing file; Path raises.
    if os.path.isdir(path):
        return _from_files(_pictures_in(path))
    if path.suffix.lower() in VIDEO_ENDINGS:
        return _from_video(path)
    if not os.path.exists(path):
        if _NUMBER.search(path.name):
            return _from_sequence(path)
        if glob.has_magic(text):
            return _from_files(_pictures_like(str(path)))
    return Source(lambda: iter([_file_ticket(path, text=text)]), single=True, count=1)


def _pictures_in(folder: Path) -> list[Path]:
    """List the pictures in a folder by name; hidden files are left out."""
    try:
        files = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: expected a readable folder, got {one_line(error.strerror or error)}.") from error
    found = [file for file in files if file.suffix.lower() in PICTURE_ENDINGS]
    if not found:
        other = f"{len(files)} other files" if files else "no files"
        videos = [file.name for file in files if file.suffix.lower() in VIDEO_ENDINGS]
        hint = f"Pass a video on its own, such as {videos[0]}." if videos else "Check the path."
        raise InputError(f"{folder}: expected pictures in the folder, got {other}. {hint}")
    return found


def _pictures_like(pattern: str) -> list[Path]:
    """List the files that a glob means, by name; where it names no ending, the pictures and videos among them."""
    found = [Path(name) for name in sorted(glob.glob(pattern, recursive=True)) if not os.path.isdir(name)]
    if glob.has_magic(Path(pattern).suffix) or not Path(pattern).suffix:
        found = [path for path in found if path.suffix.lower() in PICTURE_ENDINGS | VIDEO_ENDINGS]
    if not found:
        raise InputError(f"{pattern}: expected files that match, got none. Check the pattern and the folder.")
    return found


def _from_files(paths: list[Path]) -> Source:
    return Source(lambda: _each(paths, snapshot=False), count=_count(paths))


def _from_sequence(pattern: Path) -> Source:
    """Open ``name_%04d.png``: the files of that form in the order of their numbers, gaps allowed."""
    place = _NUMBER.search(pattern.name)
    if place is None or _NUMBER.search(pattern.name[place.end() :]):
        raise InputError(f"{pattern}: expected one %d or %04d in the name.")
    before, after = re.escape(pattern.name[: place.start()]), re.escape(pattern.name[place.end() :])
    width = int(place.group(2) or 1)
    form = re.compile(f"{before}(\\d{{{width},}}){after}")
    names = [entry.name for entry in pattern.parent.iterdir()] if pattern.parent.is_dir() else []
    numbered = sorted((int(hit.group(1)), name) for name in names if (hit := form.fullmatch(name)))
    if not numbered:
        near = near_matches(pattern.name, names)
        raise InputError(f"{pattern}: expected numbered pictures of this form, got none. Check the pattern.{near}")
    return Source(
        lambda: (_file_ticket(pattern.parent / name, number=number) for number, name in numbered), count=len(numbered)
    )


# ------------------------------------------------------------------------------------------------------ tickets


def _each(items: Iterable[Any], *, snapshot: bool) -> Iterator[Ticket]:
    """Hand out the tickets of a list or generator; items that hold several pictures are opened on the way.

    With `snapshot`, arrays are copied as they come: generators often fill one buffer again and again.
    """
    for item in items:
        if isinstance(item, str | os.PathLike):
            try:
                yield from _from_text(os.fspath(item)).tickets()
            except VitruvianError as error:
                yield _broken_ticket(str(item), error)
        elif isinstance(item, list | tuple) or (isinstance(item, np.ndarray | Tensor) and item.ndim == 4):
            yield from _each(item, snapshot=snapshot)
        elif snapshot and isinstance(item, np.ndarray):
            yield _picture_ticket(item.copy())
        elif snapshot and isinstance(item, Tensor):
            yield _picture_ticket(item.detach().clone())
        else:
            yield _picture_ticket(item)


def _count(items: Iterable[Any]) -> int | None:
    """Count the pictures of a list as far as it can be told without reading them."""
    total = 0
    for item in items:
        plain = not isinstance(item, str | os.PathLike | list | tuple)
        if plain or (not isinstance(item, list | tuple) and Path(item).suffix.lower() in PICTURE_ENDINGS):
            total += len(item) if getattr(item, "ndim", 0) == 4 else 1
            continue
        try:
            own = _count(item) if isinstance(item, list | tuple) else _from_text(os.fspath(item)).count
        except VitruvianError:
            own = 1
        if own is None:
            return None
        total += own
    return total


def _broken_ticket(name: str, error: Exception) -> Ticket:
    def read() -> Frame:
        raise error

    return Ticket(name=name, read=read)


def _file_ticket(path: Path, *, text: str | None = None, number: int | None = None) -> Ticket:
    name = one_line(path if text is None else text)

    def read() -> Frame:
        picture = as_picture(text if text is not None and not os.path.exists(path) else path)
        focal = None
        if os.path.isfile(path):
            with path.open("rb") as stream:
                focal = focal_of_file(stream, (picture.shape[0], picture.shape[1]))
        return Frame(picture=picture, name=name, path=path, frame=number, exif_focal_px=focal)

    return Ticket(name=name, read=read, path=path)


def _text_ticket(text: str) -> Ticket:
    """Take a ``data:`` address or base64 text."""
    return Ticket(name="data", read=lambda: Frame(picture=as_picture(text), name="data"))


def _url_ticket(url: str) -> Ticket:
    name = one_line(url)

    def read() -> Frame:
        stream = _NamedBytes(download(url, timeout=30.0), name)
        picture = as_picture(stream)
        focal = focal_of_file(stream, (picture.shape[0], picture.shape[1]))
        return Frame(picture=picture, name=name, exif_focal_px=focal)

    return Ticket(name=name, read=read)


class _NamedBytes(io.BytesIO):
    """Bytes with a name, which messages about them use."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


def _picture_ticket(item: Any) -> Ticket:
    """Take one picture that is in memory, or a file object."""
    if isinstance(item, Frame):
        return Ticket(name=item.name, read=lambda: item, path=item.path)
    if isinstance(item, np.ndarray | Tensor):
        return Ticket(name="array", read=lambda: Frame(picture=as_picture(item), name="array"))
    if isinstance(item, Image.Image):
        own = one_line(getattr(item, "filename", "") or "PIL image")
        return Ticket(name=own, read=lambda: _from_pil(item, own))
    name = one_line(getattr(item, "name", "bytes"))

    def read() -> Frame:
        if not isinstance(item, bytes | bytearray | memoryview):
            return Frame(picture=as_picture(item), name=name)
        picture = as_picture(item)
        focal = focal_of_file(io.BytesIO(item), (picture.shape[0], picture.shape[1]))
        return Frame(picture=picture, name=name, exif_focal_px=focal)

    return Ticket(name=name, read=read)


def _from_pil(image: Image.Image, name: str) -> Frame:
    picture = as_picture(image)
    return Frame(picture=picture, name=name, exif_focal_px=focal_of_image(image, (picture.shape[0], picture.shape[1])))


def as_picture(item: Any) -> Picture:
    """Read one picture of any kind as upright RGB, uint8 [H, W, 3]; an array of that form is taken as it is."""
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 3 and item.shape[2] == 3 and item.size:
        return np.ascontiguousarray(item)
    return np.array(load_image(item))


# ------------------------------------------------------------------------------------------------------ moving pictures


def _from_video(path: Path) -> Source:
    from vitruvian.files.video import open_video

    reader = open_video(path)
    video = VideoInfo(path=path, rate=reader.rate, size_hw=reader.size_hw, count=reader.count, sound=reader.has_sound)

    def tickets() -> Iterator[Ticket]:
        for number, time, picture in reader:
            yield _picture_ticket(Frame(picture=picture, name=str(path), path=path, frame=number, time=time))

    return Source(tickets, count=video.count, video=video)


def _from_camera(number: int) -> Source:
    from vitruvian.pipelines.camera import camera_frames

    def tickets() -> Iterator[Ticket]:
        for index, (time, picture) in enumerate(camera_frames(number)):
            yield _picture_ticket(Frame(picture=picture, name=f"camera:{number}", frame=index, time=time))

    return Source(tickets, live=True)
