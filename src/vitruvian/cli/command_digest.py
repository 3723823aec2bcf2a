"""The digest of what the results of a command depend on."""

from __future__ import annotations

import dataclasses

from vitruvian.cli.option_groups import BatchGroup, ClusterGroup, CocoGroup, MessageGroup, OutputGroup, SourceGroup
from vitruvian.cli.task_command import TaskCommand
from vitruvian.pipelines.digests import file_digest, settings_digest

# Options that results do not depend on, or that have an argument of `settings_digest`.
_INDEPENDENT = {
    *("revision", "device", "workers", "points_per_batch", "preview", "frames"),
    *("then", "keep_state", "refine"),
} | {
    field.name
    for group in (SourceGroup, OutputGroup, CocoGroup, BatchGroup, ClusterGroup, MessageGroup)
    for field in dataclasses.fields(group)
}


def command_digest(command: TaskCommand) -> str:
    """Return a digest of everything that the results depend on."""
    options = {k: v for k, v in (vars(command) | command.call_options()).items() if k not in _INDEPENDENT}
    return settings_digest(
        command.name,
        command.model,
        revision=command.revision,
        detector=command.detector_name(),
        options=options,
        details=[file_digest(path) for path in command.input_files()],
    )
