"""The digest of what the results of a command depend on."""

from __future__ import annotations

import dataclasses

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
from vitruvian.hub import BUILTIN
from vitruvian.pipelines.digests import file_digest, settings_digest

# Options that do not change results, or of which a digest is taken
_INDEPENDENT = {
    *("revision", "device", "workers", "points_per_batch", "preview", "frames"),
    *("then", "keep_state", "refine"),
} | {
    field.name
    for group in (SourceGroup, OutputGroup, CocoGroup, BatchGroup, ClusterGroup, MessageGroup)
    for field in dataclasses.fields(group)
}


def command_digest(command: TaskCommand) -> str:
    """Return a digest of everything that affects the results."""
    options = {k: v for k, v in (vars(command) | command.call_options()).items() if k not in _INDEPENDENT}
    detects = (isinstance(command, PeopleGroup) and not command.boxes) or getattr(command, "everyone", False)
    return settings_digest(
        command.name,
        command.model,
        revision=command.revision,
        detector=getattr(command, "detect", None) or BUILTIN if detects else None,
        options=options,
        details=[file_digest(path) for path in command.mask_files()] if isinstance(command, TrackCommand) else [],
    )
