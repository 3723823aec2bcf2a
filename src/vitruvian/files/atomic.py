"""Files that appear whole or not at all: written under another name beside the target, then moved onto it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitruvian.errors import InputError


def place_for(path: str | Path) -> tuple[Path, Path]:
    """Return the target and a fresh temporary name beside it; the folder is made where it is missing.

    The temporary name starts with a dot and ends in ``.part``: patterns like ``*.png`` and watchers pass it over.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target}: expected the name of a file, got a folder. Add a file name to it.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target}: expected a folder to write in, got {error.strerror}. Choose another.") from error
    return target, target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path to write to, and move it onto `path` at the end; after an error nothing is left behind."""
    target, temporary = place_for(path)
    try:
        yield temporary
        os.replace(temporary, target)
    except PermissionError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{target}: expected a place to write, got {error.strerror}. Choose another.") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
