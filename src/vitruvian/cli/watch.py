"""`--watch`: which files that appear in folders are complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vitruvian.cli.named_sources import NamedSource

_POLL_SECONDS = 0.5  # time between two listings of the folders
_SETTLE_SECONDS = 1.0  # a file is complete if it has not changed for this time


def complete_sources(
    find_sources: Callable[[], list[NamedSource]], *, ignores: Callable[[NamedSource], bool]
) -> Iterator[list[NamedSource]]:
    """Yield the sources that are new or have changed, once they are complete. Does not end.

    Args:
        find_sources: Lists the sources that exist.
        ignores: Returns whether to leave a source out.
    """
    processed: dict[str, tuple[int, int]] = {}  # size and time of sources, by identity
    pending: dict[str, tuple[tuple[int, int], float]] = {}  # the same, and since when
    while True:
        now = time.monotonic()
        complete: list[NamedSource] = []
        for item in find_sources():
            key, version = item.identity, _file_version(item.path)
            if version is None or processed.get(key) == version or ignores(item):
                continue
            if key not in pending or pending[key][0] != version:
                pending[key] = version, now
            if now - pending[key][1] >= _SETTLE_SECONDS:
                complete.append(item)
                processed[key] = version
                del pending[key]
        if complete:
            yield complete
        time.sleep(_POLL_SECONDS)


def _file_version(path: Path | None) -> tuple[int, int] | None:
    """Return the size and the modification time of a file; None if it is missing or empty."""
    try:
        stat = None if path is None else path.stat()
    except OSError:
        return None
    return (stat.st_size, stat.st_mtime_ns) if stat is not None and stat.st_size else None
