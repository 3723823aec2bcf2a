"""What people name on the command line → the pictures and videos it stands for, each with a name of its own.

photo.jpg                          photo
photos/ with a.jpg and b/c.jpg     a, b/c (with --recursive)
one/photo.jpg two/photo.jpg        one/photo, two/photo: as many folders in front as it takes
photo.jpg photo.png                photo_jpg, photo_png
"""

from __future__ import annotations

import glob
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from vitruvian.cli.options import STDIO
from vitruvian.errors import InputError, VitruvianError
from vitruvian.images.decode import one_line
from vitruvian.pipelines.sources import IMAGE_SUFFIXES, VIDEO_SUFFIXES, open_source

Kind = Literal["picture", "video", "camera", "stdin"]
UNSAFE = re.compile(r'[\x00-\x1f<>:"/\\|?*]+')
CAMERA = re.compile(r"camera:(\d+)")
SEQUENCE = re.compile(r"%(0\d+)?d")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One picture, video or camera.

    Attributes:
        name: What messages call it, different for each item of a run.
        kind: What it is.
        source: What `open_source` takes.
        path: The file, where it is one.
        stem: Name of its results, without the task; may begin with folders.
        listed: Whether it was found in a folder rather than named.
        error: Why it cannot be looked at, where that is known already.
    """

    name: str
    kind: Kind
    source: Any = None
    path: Path | None = None
    stem: str = ""
    listed: bool = False
    error: VitruvianError | None = None


def find_items(sources: Sequence[str], *, recursive: bool = False) -> list[Item]:
    """List everything that the sources name, in their order, each once, with names for results that differ."""
    found: dict[str, Item] = {}
    for text in sources:
        try:
            for item in items_of(text, recursive=recursive):
                key = str(item.path.absolute()) if item.path is not None else item.name
                found.setdefault(key, item)
        except VitruvianError as error:
            found.setdefault(text, Item(name=one_line(text), kind="picture", error=error))
    good = iter(named([item for item in found.values() if item.error is None]))
    return [item if item.error is not None else next(good) for item in found.values()]


def items_of(text: str, *, recursive: bool) -> Iterator[Item]:
    """List what one source stands for; something that exists beats patterns."""
    if not text:
        raise InputError("source: expected a file or a folder, got nothing. Check the command.")
    if text == STDIO:
        yield Item(name="standard input", kind="stdin", stem="stdin")
    elif camera := CAMERA.fullmatch(text):
        yield Item(name=text, kind="camera", source=int(camera.group(1)), stem=f"camera{camera.group(1)}")
    elif text.lower().startswith(("http://", "https://")):
        yield Item(name=one_line(text), kind="picture", source=text, stem=stem_of_address(text))
    elif text[:5].lower() == "data:":
        yield Item(name="data", kind="picture", source=text, stem="data")
    elif os.path.isdir(Path(text).expanduser()):
        yield from files_in(Path(text).expanduser(), recursive=recursive)
    elif not os.path.exists(Path(text).expanduser()) and SEQUENCE.search(Path(text).name):
        for ticket in open_source(text).loaders():
            if ticket.path is not None:
                yield replace(file_item(ticket.path), source=ticket)
    elif not os.path.exists(Path(text).expanduser()) and glob.has_magic(text):
        yield from files_like(str(Path(text).expanduser()))
    else:
        yield file_item(Path(text).expanduser())


def file_item(path: Path, *, folder: Path | None = None) -> Item:
    """Make an item of a file; below `folder` its results keep the folders in between."""
    inner = Path() if folder is None else path.parent.relative_to(folder)
    kind: Kind = "video" if path.suffix.lower() in VIDEO_SUFFIXES else "picture"
    return Item(name=one_line(path), kind=kind, source=str(path), path=path, stem=(inner / safe(path.stem)).as_posix())


def files_in(folder: Path, *, recursive: bool) -> Iterator[Item]:
    """List the pictures and videos in a folder by name; hidden ones are left out."""
    try:
        entries = sorted(folder.rglob("*") if recursive else folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: expected a readable folder, got {one_line(error.strerror or error)}.") from error
    files = [file for file in entries if file.is_file() and not hidden(file.relative_to(folder))]
    chosen = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES]
    if not chosen:
        deeper = not recursive and any(entry.is_dir() for entry in entries)
        hint = "Add --recursive to look into its folders." if deeper else "Check the path."
        got = f"{len(files)} other files" if files else "no files"
        raise InputError(f"{folder}: expected pictures or videos in the folder, got {got}. {hint}")
    for file in chosen:
        yield replace(file_item(file, folder=folder), listed=True)


def hidden(path: Path) -> bool:
    """Whether a file or a folder above it starts with a dot."""
    return any(part.startswith(".") for part in path.parts)


def files_like(pattern: str) -> Iterator[Item]:
    """List the files that a glob means; where it names no ending, the pictures and videos among them."""
    found = [Path(name) for name in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(name)]
    if glob.has_magic(Path(pattern).suffix) or not Path(pattern).suffix:
        found = [path for path in found if path.suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES]
    if not found:
        raise InputError(f"{pattern}: expected files that match, got none. Check the pattern and the folder.")
    yield from (file_item(path) for path in found)


def stem_of_address(address: str) -> str:
    """Name the results of a web address by its last part."""
    parts = urlsplit(address)
    return safe(Path(parts.path).stem or parts.hostname or "picture")


def safe(name: str) -> str:
    """Return a name that every system takes as a file's."""
    return UNSAFE.sub("_", name).strip() or "picture"


# ------------------------------------------------------------------------------------------------ names


def named(items: list[Item]) -> list[Item]:
    """Give items whose results would share a name different ones."""
    items = distinguished(items, key=lambda item: (str(parent_of(item)), item.stem), change=with_ending)
    while clashing := clashes(item.stem for item in items):
        longer = [with_folder(item) if item.stem.casefold() in clashing else item for item in items]
        if longer == items:
            break
        items = longer
    return distinguished(items, key=lambda item: item.stem, change=with_number)


def distinguished(items: list[Item], *, key: Any, change: Any) -> list[Item]:
    """Change those items that share a key with others."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        groups[str(key(item)).casefold()].append(index)
    changed = list(items)
    for indices in groups.values():
        if len(indices) > 1:
            for place, index in enumerate(indices):
                changed[index] = change(items[index], place)
    return changed


def clashes(stems: Iterable[str]) -> set[str]:
    """Return the stems that come more than once; some systems do not tell capitals apart."""
    seen: set[str] = set()
    twice: set[str] = set()
    for stem in (stem.casefold() for stem in stems):
        (twice if stem in seen else seen).add(stem)
    return twice


def parent_of(item: Item) -> Path:
    """The folder of an item, or what stands for it in a web address."""
    if item.path is not None:
        return item.path.absolute().parent
    parts = urlsplit(item.source) if isinstance(item.source, str) else urlsplit(item.name)
    return Path(parts.hostname or "") / Path(parts.path.lstrip("/")).parent


def with_ending(item: Item, place: int) -> Item:
    """Tell photo.jpg from photo.png beside it."""
    ending = safe(item.path.suffix.lstrip(".")) if item.path is not None and item.path.suffix else ""
    return replace(item, stem=f"{item.stem}_{ending}") if ending else item


def with_folder(item: Item) -> Item:
    """Put one more of its folders in front of a stem."""
    parents = [safe(part) for part in parent_of(item).parts if part not in ("/", "\\")]
    inner = Path(item.stem).parts
    # Folders that the stem has already, from an earlier round or from --recursive, are not repeated.
    known = len(inner) - 1
    if known >= len(parents):
        return item
    return replace(item, stem=(Path(*parents[len(parents) - known - 1 :]) / inner[-1]).as_posix())


def with_number(item: Item, place: int) -> Item:
    """Count those that nothing else tells apart, such as two addresses with other queries."""
    return item if place == 0 else replace(item, stem=f"{item.stem}-{place + 1}")
