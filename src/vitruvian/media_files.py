"""Which files are images and videos, by their suffixes; the files of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from vitruvian.errors import InputError, one_line

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


def walk_files(folder: str | Path, *, recursive: bool = False, ordered: bool = True) -> Iterator[os.DirEntry[str]]:
    """Yield the files in a folder without hidden ones, by name or as the disk has them, which takes no memory.

    Hidden folders, and links to folders, are not searched.

    Raises:
        InputError: The folder cannot be read.
    """
    folders: list[str] = []  # searched after the files, unless ordered
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda one: one.name) if ordered else entries:
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
