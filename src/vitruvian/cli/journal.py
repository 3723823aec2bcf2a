"""What is done already: a line in OUT/.vitruvian.jsonl for each source, so that running again goes on.

A file that exists counts as done when it was made from the same source with the same settings. The journal also knows
which files are results, so that these are not taken for sources.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitruvian.cli.items import Item
from vitruvian.errors import InputError

JOURNAL = ".vitruvian.jsonl"
State = Literal["new", "done", "changed"]


@dataclass(frozen=True)
class Origin:
    """What a file was made from: the source (its path or address, and size and time of a file) and the settings."""

    source: str
    stamp: tuple[int, int] | None
    settings: str

    def same_source(self, other: Origin) -> bool:
        """Whether it is the same picture; one that was moved still has its size and time."""
        if self.stamp is not None and other.stamp is not None:
            same_name = os.path.basename(self.source) == os.path.basename(other.source)
            return self.source == other.source or (same_name and self.stamp == other.stamp)
        return self.source == other.source


@dataclass
class Journal:
    """The journal of one folder of results."""

    folder: Path
    entries: dict[str, Origin] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Journal:
        """Open the journal of a folder; lines that are broken are passed over."""
        found = cls(folder)
        try:
            lines = (folder / JOURNAL).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return found
        for line in lines:
            try:
                entry = json.loads(line)
                stamp = None if entry["stamp"] is None else (int(entry["stamp"][0]), int(entry["stamp"][1]))
                origin = Origin(str(entry["source"]), stamp, str(entry["settings"]))
                found.entries.update({str(name): origin for name in entry["files"]})
            except (ValueError, KeyError, TypeError, IndexError):
                continue
        return found

    def state(self, item: Item, files: Iterable[Path], settings: str) -> State:
        """Tell whether the files of an item are there and still right.

        Raises:
            InputError: A file holds the result of another source.
        """
        mine = origin_of(item, settings)
        names = {self.name_of(path): path for path in files}
        there = [name for name, path in names.items() if path.exists()]
        known = {name: self.entries[name] for name in there if name in self.entries}
        for name, origin in known.items():
            if not origin.same_source(mine):
                raise InputError(
                    f"{names[name]}: holds the result of {origin.source}. Choose another --out, or add --overwrite."
                )
        if any(origin.settings != settings or origin.stamp != mine.stamp for origin in known.values()):
            return "changed"
        return "done" if len(there) == len(names) else "new"

    def add(self, item: Item, files: Iterable[Path], settings: str) -> None:
        """Note that the files of an item are whole."""
        origin = origin_of(item, settings)
        names = [self.name_of(path) for path in files]
        self.entries.update(dict.fromkeys(names, origin))
        line: dict[str, Any] = {
            "source": origin.source,
            "stamp": origin.stamp,
            "settings": settings,
            "files": names,
        }
        try:
            with (self.folder / JOURNAL).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            raise InputError(f"{self.folder}: expected a folder to write in, got {error.strerror}.") from error

    def wrote(self, path: Path) -> bool:
        """Whether a file is a result that this journal knows, or one of a folder of them."""
        return self.name_of(path) in self.entries or self.name_of(path.parent) in self.entries

    def name_of(self, path: Path) -> str:
        """Name a file as the journal does: below its folder where it is there."""
        try:
            return path.absolute().relative_to(self.folder.absolute()).as_posix()
        except ValueError:
            return str(path.absolute())


def origin_of(item: Item, settings: str) -> Origin:
    """Tell what an item is, for comparison with later runs."""
    if item.path is None:
        return Origin(item.name, None, settings)
    stamp = None
    try:
        facts = item.path.stat()
        stamp = facts.st_size, facts.st_mtime_ns
    except OSError:
        pass
    return Origin(str(item.path.absolute()), stamp, settings)
