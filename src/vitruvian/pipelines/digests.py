"""Digests of files and checkpoints: whether what results depend on has changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from vitruvian.errors import VitruvianError
from vitruvian.hub import BUILTIN, WEIGHT_ENDINGS, HubOptions, is_local, local_path, pin_revision
from vitruvian.version import __version__

_HASHED_BYTES = 1 << 25  # of larger files the header, size and modification time are hashed
_HEADER_BYTES = 1 << 20


def settings_digest(
    task: str,
    model: str | None,
    *,
    revision: str | None,
    detector: str | None,
    options: Mapping[str, object],
    details: object = None,
) -> str:
    """Return a digest of everything that results depend on.

    Args:
        task: Name of the task.
        model: Checkpoint of the task; None for the built-in one.
        revision: Its revision on the Hub.
        detector: Checkpoint of the people detector, if there is one.
        options: Options that results depend on; files that they name are part of the digest.
        details: What else results depend on, as JSON values.
    """
    words = [word for value in options.values() for word in (value if isinstance(value, list) else [value])]
    paths = [os.path.expanduser(word) for word in words if isinstance(word, str)]
    everything = {
        "version": __version__,
        "task": task,
        "model": _checkpoint_digest(model or BUILTIN, revision),
        "detector": None if detector is None else _checkpoint_digest(detector),
        "options": options,
        "files": {path: file_digest(Path(path)) for path in paths if os.path.isfile(path)},
        "details": details,
    }
    text = json.dumps(everything, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _checkpoint_digest(name: str, revision: str | None = None) -> str | None:
    """Return a digest of a checkpoint's weights and configuration: the commit for one on the Hub.

    None where there is no such checkpoint; opening it says so.
    """
    try:
        if not is_local(name):
            return pin_revision(name, HubOptions(revision=revision)).revision
        path = local_path(name)
    except (VitruvianError, OSError):
        return None
    folder = path.parent if path.is_file() else path
    depths = ("*",) if path.is_file() else ("*", "*/*", "*/*/*")  # training runs have a folder for each task
    files = [file for depth in depths for file in folder.glob(depth) if file.name.endswith("config.json")]
    if path.is_file():
        files.append(path)
    else:
        extensions = (*WEIGHT_ENDINGS, ".onnx", ".data", ".xml")  # of checkpoints and of exported models
        files += [file for depth in depths for file in folder.glob(depth) if file.suffix in extensions]
    details = [[file.relative_to(folder).as_posix(), file_digest(file)] for file in sorted(files)]
    return hashlib.sha256(json.dumps(details).encode()).hexdigest()


def file_digest(path: Path) -> str | None:
    """Return a digest of a file's content, or of header, size and time of a large one; None where there is none."""
    try:
        stat = path.stat()
        with path.open("rb") as file:
            if stat.st_size <= _HASHED_BYTES:
                return hashlib.file_digest(file, "sha256").hexdigest()
            header = hashlib.sha256(file.read(_HEADER_BYTES)).hexdigest()
    except OSError:
        return None
    return f"{header}-{stat.st_size}-{stat.st_mtime_ns}"
