"""Digests of what results depend on: options, weights, configuration, other files, and the version of the library."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from vitruvian.cli.task_command import TaskJob
from vitruvian.errors import VitruvianError
from vitruvian.hub import BUILTIN, WEIGHT_ENDINGS, HubOptions, is_local, local_path, pinned
from vitruvian.version import __version__

INDEPENDENT = ("batch_size", "points_per_batch")  # options that do not change results
HASHED_BYTES = 1 << 25  # larger files are known by their header, size and modification time
HEADER_BYTES = 1 << 20


def settings_digest(job: TaskJob) -> str:
    """Return a short text that differs where results would."""
    model, people = job.model, job.people
    facts = {
        "version": __version__,
        "command": job.own.task,
        "model": [model.model, model.dtype, checkpoint_digest(model.model or BUILTIN, model.revision)],
        "options": {name: value for name, value in job.call_options().items() if name not in INDEPENDENT},
        "own": job.own.__dict__,
        "people": None if people is None else people.__dict__,
        "detector": None if people is None or people.finder is None else checkpoint_digest(people.finder),
        "boxes": None if people is None or (boxes := people.boxes_file()) is None else file_digest(boxes),
        "files": [file_digest(Path(name).expanduser()) for name in job.own.side_files()],
        "video": [job.video.smooth, job.video.detect_every],
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def checkpoint_digest(name: str, revision: str | None = None) -> str | None:
    """Return a digest of a checkpoint's weights and configuration: the commit for one on the Hub.

    None where there is no such checkpoint; opening it says so.
    """
    try:
        if not is_local(name):
            return pinned(name, HubOptions(revision=revision)).revision
        path = local_path(name)
    except (VitruvianError, OSError):
        return None
    folder = path.parent if path.is_file() else path
    depths = ("*",) if path.is_file() else ("*", "*/*", "*/*/*")  # training runs have a folder for each task
    files = [file for depth in depths for file in folder.glob(depth) if file.name.endswith("config.json")]
    if path.is_file():
        files.append(path)
    else:
        files += [file for depth in depths for file in folder.glob(depth) if file.suffix in WEIGHT_ENDINGS]
    facts = [[file.relative_to(folder).as_posix(), file_digest(file)] for file in sorted(files)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def file_digest(path: Path) -> str | None:
    """Return a digest of a file's content, or of header, size and time of a large one; None where there is none."""
    try:
        stat = path.stat()
        with path.open("rb") as file:
            if stat.st_size <= HASHED_BYTES:
                return hashlib.file_digest(file, "sha256").hexdigest()
            header = hashlib.sha256(file.read(HEADER_BYTES)).hexdigest()
    except OSError:
        return None
    return f"{header}-{stat.st_size}-{stat.st_mtime_ns}"
