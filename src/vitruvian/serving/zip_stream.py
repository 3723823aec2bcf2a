"""A ZIP archive that is sent while it is made."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def zip_chunks(files: Mapping[str, Path]) -> Iterator[bytes]:
    """Yield a ZIP archive of files, uncompressed, while it is made."""
    buffer = _Buffer()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, path in files.items():
            with path.open("rb") as source, archive.open(name, "w", force_zip64=True) as target:
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)
                    yield buffer.take()
    yield buffer.take()


class _Buffer(io.RawIOBase):
    """A stream for writing, whose content is taken away."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        part = bytes(memoryview(data))  # type: ignore[arg-type]
        self._parts.append(part)
        return len(part)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)
