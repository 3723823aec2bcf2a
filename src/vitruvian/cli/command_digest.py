"""Digests of what results depend on: options, weights, configuration, other files, and the version of the library."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

from vitruvian.cli.commands.track import TrackCommand
from vitruvian.cli.options import (
    BatchGroup,
    ClusterGroup,
    CocoGroup,
    MessageGroup,
    OutputGroup,
    PeopleGroup,
    SourceGroup,
)
from vitruvian.cli.task_command import TaskCommand
from vitruvian.files.digests import checkpoint_digest, file_digest
from vitruvian.hub import BUILTIN
from vitruvian.version import __version__

# Options that do not change results, or of which a digest is taken
_INDEPENDENT = {
    *("revision", "device", "workers", "points_per_batch", "sound", "preview", "frames"),
    *("then", "keep_state", "refine"),
} | {
    field.name
    for group in (SourceGroup, OutputGroup, CocoGroup, BatchGroup, ClusterGroup, MessageGroup)
    for field in dataclasses.fields(group)
}


def command_digest(command: TaskCommand) -> str:
    """Return a digest of everything that affects the results."""
    options = {k: v for k, v in (vars(command) | command.call_options()).items() if k not in _INDEPENDENT}
    words = [word for value in options.values() for word in (value if isinstance(value, list) else [value])]
    paths = [os.path.expanduser(word) for word in words if isinstance(word, str)]
    detects = (isinstance(command, PeopleGroup) and not command.boxes) or getattr(command, "everyone", False)
    detector = getattr(command, "detect", None) or BUILTIN if detects else None
    contents = {
        "version": __version__,
        "command": command.name,
        "options": options,
        "model": checkpoint_digest(command.model or BUILTIN, command.revision),
        "detector": None if detector is None else checkpoint_digest(detector),
        "files": {path: file_digest(Path(path)) for path in paths if os.path.isfile(path)},
        "inputs": [file_digest(path) for path in command.mask_files()] if isinstance(command, TrackCommand) else [],
    }
    text = json.dumps(contents, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
