"""The paths of result files: for the command line, for datasets and for ``save="out/{stem}.npz"``.

A path stays inside its output folder, its name is one that file systems take, and two results never share one.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import unicodedata
from pathlib import Path

from vitruvian.errors import InputError
from vitruvian.filesystem.media_files import is_url

MAX_NAME_BYTES = 255  # length of a name on common file systems
_TEMPORARY_BYTES = 24  # what temporary names add, such as `.NAME.1a2b3c4d.part`
_MAX_WRITTEN = 64  # results that may be written again
_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]+')


def output_path(folder: str | Path, stem: str, extension: str) -> Path:
    """Return the path of a result, `folder`/`stem``extension`.

    Characters that some file systems refuse become ``_``. A long name is cut, with a hash of the whole name in it.

    Args:
        folder: The output folder.
        stem: Name without its extension, below folders if it contains slashes.
        extension: What follows the stem, such as ``_pose.json``.

    Raises:
        InputError: The path leaves the folder, by its own name or by a symbolic link.
    """
    *folders, name = stem.split("/")
    if any(part in ("", ".", "..") for part in (*folders, name)):
        raise InputError(f"{stem}{extension}: would be written outside of {folder}. Rename the source.")
    directory = Path(folder, *(_short_name(safe_name(part)) for part in folders))
    path = directory / (_short_name(safe_name(name), reserved_bytes=len(os.fsencode(extension))) + extension)
    _check_inside(folder, path)
    return path


def _check_inside(folder: str | Path, path: Path) -> None:
    """Raise `InputError` unless a path lies inside a folder, symbolic links followed."""
    directory = Path(os.path.realpath(path.parent))
    if not directory.is_relative_to(os.path.realpath(folder)):
        raise InputError(f"{path}: would be written to {directory}, outside of {folder}. Check for symbolic links.")


def safe_name(name: str) -> str:
    """Return a file name without characters that some file systems refuse; never empty, ``.`` or ``..``."""
    cleaned = _UNSAFE.sub("_", name).strip()
    return "image" if cleaned in ("", ".", "..") else cleaned


def _short_name(name: str, *, reserved_bytes: int = 0) -> str:
    """Cut a name to what file systems take; a hash of the whole name keeps cut names distinct."""
    most = MAX_NAME_BYTES - _TEMPORARY_BYTES - reserved_bytes
    content = os.fsencode(name)
    if len(content) <= most:
        return name
    mark = f"~{hashlib.sha256(content).hexdigest()[:8]}"
    while len(os.fsencode(name)) > most - len(mark):
        name = name[:-1]
    return name + mark


def name_key(name: str) -> str:
    """Return a key that is equal for names that some file system treats as one: case-folded, NFC."""
    return unicodedata.normalize("NFC", name.casefold())


class DistinctNames:
    """Hands out names that differ on every file system: ``a``, ``a_2``, ``a_3``."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, name: str) -> str:
        """Return `name`, or `name` with a number behind it where it was handed out before."""
        distinct = name
        while name_key(distinct) in self._counts:
            self._counts[name_key(name)] += 1
            distinct = f"{name}_{self._counts[name_key(name)]}"
        self._counts[name_key(distinct)] = 1
        return distinct


class PathPattern:
    """File names with ``{stem}`` and ``{frame}`` in them, such as ``"out/{stem}_{frame:05d}.png"``.

    Sources are announced in their order, so that two of one stem get the same names in every run: with ``{frame}`` in
    the pattern each source has a stem of its own, otherwise each result. Thread-safe.

    Attributes:
        pattern: The pattern.
        folder: The folder that all files are in, or below.
    """

    def __init__(self, pattern: str | Path) -> None:
        self.pattern = str(pattern)
        if "{stem}" not in self.pattern and "{frame" not in self.pattern:
            raise InputError(f'save: expected a function, or a name with {{stem}} in it, got "{self.pattern}".')
        self._by_source = "{frame" in self.pattern
        self.folder = Path(os.path.dirname(self.pattern[: self.pattern.index("{")]))
        self._names = DistinctNames()
        self._by_index: dict[int, str] = {}  # stems of results that are not written yet
        self._written: dict[int, str] = {}  # of the latest results, which may be written again
        self._by_path: dict[str, str] = {}  # stems of sources, where results share that of their source
        self._lock = threading.Lock()

    def announce(self, source: str, index: int) -> None:
        """Choose the stem of the result that is number `index`, before any later one.

        Args:
            source: Path or URL of its source as it is, not as it is displayed.
            index: Number of the result.
        """
        with self._lock:
            stem = self._by_path.get(source) if self._by_source else None
            if stem is None:
                stem = self._names.add(safe_name(Path(source.partition("?")[0] if is_url(source) else source).stem))
            if self._by_source:
                self._by_path[source] = stem
            self._by_index[index] = stem

    def path(self, source: str, index: int, frame: int) -> Path:
        """Return where the result that is number `index` goes; announces it where that was not done."""
        if index not in self._by_index and index not in self._written:
            self.announce(source, index)
        with self._lock:
            stem = self._by_index.pop(index, None) or self._written.pop(index)
            self._written[index] = stem
            if len(self._written) > _MAX_WRITTEN:
                del self._written[next(iter(self._written))]
        name = self._format(stem, frame)
        longest = max(len(os.fsencode(part)) for part in Path(name).parts)
        path = Path(self._format(_short_name(stem, reserved_bytes=longest - len(os.fsencode(stem))), frame))
        _check_inside(self.folder, path)
        return path

    def _format(self, stem: str, frame: int) -> str:
        try:
            return self.pattern.format(stem=stem, frame=frame)
        except (KeyError, IndexError, ValueError) as error:
            raise InputError(f'save: expected {{stem}} and {{frame}} in the name, got "{self.pattern}".') from error
