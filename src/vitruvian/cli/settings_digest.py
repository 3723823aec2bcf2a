"""Digests of what results depend on: options, weights, configuration, other files, and the version of the library."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

from vitruvian.cli.options import BatchGroup, CocoGroup, MessageGroup, OutputGroup, PeopleGroup, SourceGroup
from vitruvian.cli.task_command import TaskCommand
from vitruvian.errors import VitruvianError
from vitruvian.hub import BUILTIN, WEIGHT_ENDINGS, HubOptions, is_local, local_path, pin_revision
from vitruvian.version import __version__

# Options that do not change results, or of which a digest is taken
_INDEPENDENT = {
    *("revision", "device", "workers", "points_per_batch", "sound", "preview", "frames"),
    *("then", "keep_state", "refine"),
} | {
    field.name
    for group in (SourceGroup, OutputGroup, CocoGroup, BatchGroup, MessageGroup)
    for field in dataclasses.fields(group)
}
_HASHED_BYTES = 1 << 25  # larger files are known by their header, size and modification time
_HEADER_BYTES = 1 << 20


def settings_digest(command: TaskCommand) -> str:
    """Return a short text that differs where results would."""
    options = {k: v for k, v in (vars(command) | command.call_options()).items() if k not in _INDEPENDENT}
    words = [word for value in options.values() for word in (value if isinstance(value, list) else [value])]
    paths = [os.path.expanduser(word) for word in words if isinstance(word, str)]
    detector = command.detect or BUILTIN if isinstance(command, PeopleGroup) and not command.boxes else None
    facts = {
        "version": __version__,
        "command": command.name,
        "options": options,
        "model": _checkpoint_digest(command.model or BUILTIN, command.revision),
        "detector": None if detector is None else _checkpoint_digest(detector),
        "files": {path: _file_digest(Path(path)) for path in paths if os.path.isfile(path)},
        "inputs": [_file_digest(path) for path in command.input_files()],
    }
    text = json.dumps(facts, sort_keys=True, default=str)
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
        endings = (*WEIGHT_ENDINGS, ".onnx", ".data", ".xml")  # of checkpoints and of exported models
        files += [file for depth in depths for file in folder.glob(depth) if file.suffix in endings]
    facts = [[file.relative_to(folder).as_posix(), _file_digest(file)] for file in sorted(files)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _file_digest(path: Path) -> str | None:
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
