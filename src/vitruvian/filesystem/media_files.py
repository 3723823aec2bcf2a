"""What the text of a source names; which files are images and videos, by their suffixes; the files of a folder."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from vitruvian.errors import InputError, near_matches, one_line

# fmt: off
IMAGE_SUFFIXES = frozenset({
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".j2k", ".jp2", ".jpe", ".jpeg", ".jpg",
    ".pbm", ".pgm", ".png", ".ppm", ".qoi", ".tif", ".tiff", ".webp",
})
VIDEO_SUFFIXES = frozenset({
    ".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".webm",
    ".wmv",
})
# fmt: on
SourceKind = Literal["camera", "url", "data", "folder", "sequence", "glob", "file"]
CAMERA = re.compile(r"camera:(\d+)")
FRAME_PATTERN = re.compile(r"%(?:0?(\d+))?d")  # where a file name has the number of a frame
_MAX_PATH = 4096  # characters; a longer text is an image in base64


def source_kind(text: str) -> SourceKind:
    """Return what the text of a source names. A file or folder that exists takes precedence over patterns."""
    if not text:  # Path("") is the current folder
        raise InputError("source: expected a path or a URL, got an empty string.")
    if CAMERA.fullmatch(text):
        return "camera"
    if is_url(text):
        return "url"
    if len(text) > _MAX_PATH or text[:5].lower() == "data:" or "\0" in text:
        return "data"
    path = os.path.expanduser(text)
    if os.path.isdir(path):
        return "folder"
    if os.path.exists(path):
        return "file"
    if FRAME_PATTERN.search(os.path.basename(path)):
        return "sequence"
    return "glob" if glob.has_magic(text) else "file"


def is_url(text: str) -> bool:
    """Return whether a text is an http or https URL."""
    return text[:16].lstrip().lower().startswith(("http://", "https://"))


def natural_key(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a key that sorts names as people do: 2.png before 10.png."""
    parts = re.findall(r"(\d+)|(\D+)", name)
    return [(int(digits), "") if digits else (-1, text) for digits, text in parts], name


def walk_files(folder: str | Path, *, recursive: bool = False, ordered: bool = True) -> Iterator[os.DirEntry[str]]:
    """Yield the files in a folder, without hidden ones: by name (`natural_key`), or unordered, which takes no memory.

    Hidden folders, and links to folders, are not searched.

    Raises:
        InputError: The folder cannot be read.
    """
    folders: list[str] = []  # searched after the files, unless ordered
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: natural_key(entry.name)) if ordered else entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_file():
                    yield entry
                elif recursive and entry.is_dir(follow_symlinks=False):
                    if ordered:
                        yield from walk_files(entry.path, recursive=True)
                    else:
                        folders.append(entry.path)
    except OSError as error:
        raise InputError(f"{folder}: expected a readable folder, got {one_line(error.strerror or error)}.") from error
    for path in folders:
        yield from walk_files(path, recursive=True, ordered=False)


def sequence_files(path: str | Path) -> list[Path]:
    """List the images of a sequence in order: numbered images (``name_%05d.png``), or those of a folder."""
    if not Path(path).is_dir():
        return _numbered_images(Path(path))
    files = [Path(entry.path) for entry in walk_files(path)]
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        raise InputError(f"{path}: expected images in the folder, got none. Check the path.")
    return images


def _numbered_images(path: Path) -> list[Path]:
    """List the files ``name_%05d.png`` in the order of their numbers, with or without gaps."""
    number = FRAME_PATTERN.search(path.name)
    if number is None or FRAME_PATTERN.search(path.name[number.end() :]):
        raise InputError(f"{path}: expected one %d or %04d in the name.")
    before, after = re.escape(path.name[: number.start()]), re.escape(path.name[number.end() :])
    file_name = re.compile(f"{before}(\\d{{{int(number.group(1) or 1)},}}){after}")
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    numbered = sorted((int(match.group(1)), name) for name in names if (match := file_name.fullmatch(name)))
    if not numbered:
        near = near_matches(path.name, names)
        raise InputError(f"{path}: no numbered image matches. Check the pattern.{near}")
    return [path.parent / name for _, name in numbered]
