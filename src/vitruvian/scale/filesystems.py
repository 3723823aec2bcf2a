"""File systems of sources and results: local paths, and URIs that pyarrow or fsspec open, such as ``s3://``."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from vitruvian.errors import InputError, import_extra, one_line

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_ARROW_SCHEMES = frozenset({"s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss", "file"})


def import_pyarrow() -> Any:
    """Import pyarrow, or raise `MissingExtraError`."""
    return import_extra("pyarrow", "scale", "jobs on a cluster")


def is_remote(path: str) -> bool:
    """Return whether a path has a scheme, such as ``s3://``, other than ``file://``."""
    match = _SCHEME.match(path)
    return match is not None and match[1].lower() != "file"


def open_filesystem(path: str) -> tuple[FileSystem, str]:
    """Return the file system of a path or URI, and the path on it. Local paths become absolute.

    Raises:
        InputError: The URI is not valid, or no file system for it is installed.
    """
    import_pyarrow()
    from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

    match = _SCHEME.match(path)
    if match is None:
        return LocalFileSystem(), os.path.abspath(os.path.expanduser(path))
    try:
        if match[1].lower() in _ARROW_SCHEMES:
            filesystem, inner = FileSystem.from_uri(path)
            return filesystem, inner
        from fsspec.core import url_to_fs

        fsspec_system, inner = url_to_fs(path)
        return PyFileSystem(FSSpecHandler(fsspec_system)), inner
    except (ImportError, ValueError, OSError) as error:
        raise InputError(f"{path}: expected an address that pyarrow or fsspec can open, got {error}.") from error


def open_input(path: str) -> NativeFile:
    """Open a file for reading, also one whose name is no UTF-8.

    Raises:
        InputError: There is no such file, or it cannot be read.
    """
    filesystem, inner = open_filesystem(path)
    local = filesystem.type_name == "local"
    try:
        return filesystem.open_input_file(os.fsencode(inner) if local else inner)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected a readable file, got {one_line(error)}. Check the path.") from error


def join_path(folder: str, name: str) -> str:
    """Return the path of a name in a folder; both use forward slashes on every file system."""
    return f"{folder.rstrip('/')}/{name}"
