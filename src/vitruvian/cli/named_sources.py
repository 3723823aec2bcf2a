"""What the user names on the command line → the images and videos to process, each with a name for its results.

photo.jpg                          photo
photos/ with a.jpg and b/c.jpg     a, b/c (with --recursive)
one/photo.jpg two/photo.jpg        one/photo, two/photo: as many folders in front as it takes
photo.jpg photo.png                photo_jpg, photo_png

A source is identified by its real path or address. The names that people read are made from it, never the reverse.
"""

from __future__ import annotations

import functools
import hashlib
import os
import posixpath
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

from vitruvian.cli.option_groups import STDIO
from vitruvian.errors import InputError, VitruvianError
from vitruvian.filesystem.json_files import read_json_object
from vitruvian.filesystem.media_files import (
    FRAME_PATTERN,
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    is_url,
    sequence_files,
    source_kind,
    walk_files,
)
from vitruvian.filesystem.output_paths import DistinctNames, name_key, safe_name
from vitruvian.images.download import redacted_url
from vitruvian.pipelines.sources import FrameLoader, glob_files, open_source

Kind = Literal["image", "video", "camera", "stdin"]


@dataclass(frozen=True, kw_only=True)
class NamedSource:
    """One image, video or camera.

    Attributes:
        identity: Its real path or redacted URL; no two sources of a run have the same.
        name: The path as the user gave it, or the redacted URL, for messages and in results.
        kind: What it is.
        source: What `open_source` takes, or a loader of it.
        path: The file, if it is one.
        frames: The files of an image sequence.
        file_name: Its name in datasets: relative to the folder that was named as a source. No two are the same.
        stem: Name of its results, without the task; may begin with folders. No two sources of a run have the same.
        listed: Whether it was listed in a folder rather than named.
        error: Why it cannot be processed, where that is known already.
    """

    identity: str
    name: str
    kind: Kind
    source: str | int | Path | FrameLoader = ""
    path: Path | None = None
    frames: tuple[Path, ...] = ()
    file_name: str = ""
    stem: str = ""
    listed: bool = False
    error: VitruvianError | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that it is made of."""
        return self.frames if self.path is None else (self.path,)

    @property
    def is_video(self) -> bool:
        """Whether it is a video or a camera, rather than an image."""
        return self.kind in ("video", "camera")

    @property
    def remote(self) -> bool:
        """Whether it is downloaded."""
        return isinstance(self.source, str) and is_url(self.source)


def find_sources(
    sources: Sequence[str],
    *,
    recursive: bool = False,
    sequences_are_videos: bool = False,
    folders_are_videos: bool = False,
) -> list[NamedSource]:
    """List everything that the sources name, in their order, each once, with distinct names for results.

    Args:
        sources: What the user names.
        recursive: Whether to search folders inside folders.
        sequences_are_videos: Whether numbered images (frame_%04d.png) are one video rather than many images.
        folders_are_videos: Whether the same holds for a folder that has images and no videos.
    """
    items: dict[str, NamedSource] = {}
    for text in sources:
        try:
            path = Path(text).expanduser()
            if folders_are_videos and path.is_dir() and not recursive and _holds_images_only(path):
                found: Iterable[NamedSource] = [_sequence_source(path, text)]
            else:
                found = _sources_of(text, recursive=recursive, sequences_are_videos=sequences_are_videos)
            for item in found:
                items.setdefault(item.identity, item)
        except VitruvianError as error:
            items.setdefault(text, NamedSource(identity=text, name=text, kind="image", error=error))
    counts = Counter(item.file_name for item in items.values())
    for key, item in items.items():
        if not item.file_name or counts[item.file_name] > 1:
            items[key] = replace(item, file_name=item.name)
    good = iter(_with_distinct_stems([item for item in items.values() if item.error is None]))
    names = _display_names()
    found = (item if item.error is not None else next(good) for item in items.values())
    return [replace(item, name=names.get(item.name, item.name)) for item in found]


def _display_names() -> dict[str, str]:
    """Return the names of sources in messages and results, where they are not those of the files.

    The server sets them for its jobs: its files have numbers for names.
    """
    path = os.environ.get("VITRUVIAN_INPUT_NAMES")
    return {} if path is None else {str(file): str(name) for file, name in read_json_object(Path(path)).items()}


def _sources_of(text: str, *, recursive: bool, sequences_are_videos: bool) -> Iterator[NamedSource]:
    """List what one source names."""
    path, kind = Path(text).expanduser(), source_kind(text)
    if text == STDIO:
        yield NamedSource(identity=STDIO, name="standard input", kind="stdin", stem="stdin")
    elif kind == "camera":
        number = int(text.partition(":")[2])
        yield NamedSource(identity=f"camera:{number}", name=text, kind="camera", source=number, stem=f"camera{number}")
    elif kind == "url":
        name = redacted_url(text)
        parts = urlsplit(name)
        stem = safe_name(Path(parts.path).stem or parts.hostname or "image")
        yield NamedSource(identity=name, name=name, kind="image", source=text, stem=stem)
    elif kind == "data":
        digest = hashlib.sha256(os.fsencode(text)).hexdigest()
        yield NamedSource(identity=f"data:{digest}", name=f"data:{digest[:12]}", kind="image", source=text, stem="data")
    elif kind == "folder":
        yield from _files_in(path, recursive=recursive)
    elif kind == "sequence":
        if sequences_are_videos:
            yield _sequence_source(path, text)
            return
        for loader in open_source(text).loaders():
            if loader.path is not None:
                yield replace(_file_source(loader.path), source=loader)
    elif kind == "glob":
        yield from map(_file_source, glob_files(str(path)))
    else:
        yield _file_source(path)


def _sequence_source(path: Path, text: str) -> NamedSource:
    """Make the source of numbered images, or of a folder of images, as one video."""
    folder = Path(os.path.realpath(path)) if path.is_dir() else None
    identity = os.path.join(_real_path(path.parent), path.name) if folder is None else str(folder)
    stem = FRAME_PATTERN.sub("", path.stem).strip("_- .") or path.absolute().parent.name
    return NamedSource(
        identity=identity,
        name=text,
        kind="video",
        source=str(path),
        frames=tuple(sequence_files(path)),
        stem=safe_name(stem if folder is None else folder.name),
    )


def _holds_images_only(folder: Path) -> bool:
    """Return whether a folder has images and no videos."""
    suffixes = {Path(entry.path).suffix.lower() for entry in walk_files(folder, ordered=False)}
    return not suffixes.isdisjoint(IMAGE_SUFFIXES) and suffixes.isdisjoint(VIDEO_SUFFIXES)


def _file_source(path: Path, *, folder: Path | None = None) -> NamedSource:
    """Make the source of a file; below `folder` its results are in the same folders."""
    parts = () if folder is None else path.parent.relative_to(folder).parts
    return NamedSource(
        identity=os.path.join(_real_path(path.parent), path.name),
        name=str(path),
        kind="video" if path.suffix.lower() in VIDEO_SUFFIXES else "image",
        source=path,
        path=path,
        file_name=str(PurePosixPath(*parts, path.name)),
        stem="/".join(safe_name(part) for part in (*parts, path.stem)),
    )


@functools.lru_cache(maxsize=1024)
def _real_path(folder: Path) -> str:
    """Return the path of a folder without links and `..`."""
    return os.path.realpath(folder)


def _files_in(folder: Path, *, recursive: bool) -> Iterator[NamedSource]:
    """List the images and videos in a folder by name; hidden ones are left out."""
    files = [Path(entry.path) for entry in walk_files(folder, recursive=recursive)]
    chosen = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES]
    if not chosen:
        deeper = not recursive and any(entry.is_dir() for entry in folder.iterdir())
        hint = "Add --recursive to search its folders." if deeper else "Check the path."
        got = f"{len(files)} other files" if files else "no files"
        raise InputError(f"{folder}: expected images or videos in the folder, got {got}. {hint}")
    for file in chosen:
        yield replace(_file_source(file, folder=folder), listed=True)


# ------------------------------------------------------------------------------------------------ distinct stems


def _with_distinct_stems(items: list[NamedSource]) -> list[NamedSource]:
    """Change the stems of sources whose results would have the same names."""
    items = _changed(items, lambda item: f"{_folder_of(item)}/{item.stem}", _with_extension)
    items = _numbered(items, _folder_of)  # in one folder nothing else tells them apart: a.png and A.png
    while (longer := _changed(items, lambda item: item.stem, _with_folder)) != items:
        items = longer
    return _numbered(items, lambda item: "")


def _numbered(items: list[NamedSource], folder: Callable[[NamedSource], str]) -> list[NamedSource]:
    """Add numbers to stems that some file system treats as one, in one folder."""
    names: defaultdict[str, DistinctNames] = defaultdict(DistinctNames)
    return [replace(item, stem=names[folder(item)].add(item.stem)) for item in items]


def _changed(
    items: list[NamedSource], key: Callable[[NamedSource], str], change: Callable[[NamedSource], NamedSource]
) -> list[NamedSource]:
    """Change the sources that share a key with others."""
    counts = Counter(name_key(key(item)) for item in items)
    return [change(item) if counts[name_key(key(item))] > 1 else item for item in items]


def _folder_of(item: NamedSource) -> str:
    """Return the folder of a source, or host and folder of an address."""
    if item.path is not None:
        return os.path.dirname(item.identity)
    parts = urlsplit(item.identity)
    return (parts.hostname or "") + posixpath.normpath(f"/{posixpath.dirname(parts.path).lstrip('/')}")


def _with_extension(item: NamedSource) -> NamedSource:
    """Tell photo.jpg from photo.png beside it."""
    extension = item.path.suffix.lstrip(".") if item.path is not None else ""
    return replace(item, stem=f"{item.stem}_{safe_name(extension)}") if extension else item


def _with_folder(item: NamedSource) -> NamedSource:
    """Put one more folder in front of a stem."""
    parents = [safe_name(part) for part in Path(_folder_of(item)).parts if part not in ("/", "\\")]
    folders = item.stem.count("/")  # from --recursive, or from earlier calls
    if folders >= len(parents):
        return item
    return replace(item, stem="/".join((*parents[len(parents) - folders - 1 :], item.stem.rpartition("/")[2])))
