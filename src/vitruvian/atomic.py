"""Atomic file writes: to a temporary file beside the target, which replaces the target when it is complete."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitruvian.errors import InputError


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and move it to `path` at the end; after an error nothing is left behind."""
    target, temporary = temporary_path(path)
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # by the umask; safetensors writes private files
        yield temporary
        temporary.chmod(mode)
        os.replace(temporary, target)
    except PermissionError as error:
        raise InputError(f"{target}: expected a writable path, got {error.strerror}. Choose another.") from error
    finally:
        temporary.unlink(missing_ok=True)


def temporary_path(path: str | Path) -> tuple[Path, Path]:
    """Return the target and a new temporary name beside it; creates the folder where it is missing.

    The temporary name starts with a dot and ends in ``.part``, so that patterns like ``*.png`` do not match it.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target}: expected the name of a file, got a folder. Add a file name to it.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target}: expected a folder to write in, got {error.strerror}. Choose another.") from error
    return target, target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
