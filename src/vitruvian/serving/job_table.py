"""`Job` and `JobTable`: the table of jobs, in SQLite. `jobs.py` decides when a job runs and when it is deleted."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitruvian.errors import InputError, one_line

JobState = Literal["queued", "running", "done", "failed", "cancelled"]
FINAL = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        id: Its id.
        owner: Name of the API key that it was created with.
        task: The task.
        arguments: Options of the command.
        sources: Names of the files on the disk, and what the client calls them.
        state: Its state.
        created: Time of its creation, in seconds since 1970; `started` and `finished` likewise.
        done: Files that are done, and `failed` those that failed.
        frame: Frames that are done of the current video, and `frames` of all of them.
        failures: Messages of files that failed, or of the job.
        bytes: Size of its folder.
    """

    id: str
    owner: str | None
    task: str
    arguments: tuple[str, ...]
    sources: Mapping[str, str]
    state: JobState = "queued"
    created: float = 0.0
    started: float | None = None
    finished: float | None = None
    done: int = 0
    failed: int = 0
    frame: int | None = None
    frames: int | None = None
    failures: tuple[str, ...] = ()
    bytes: int = 0

    @property
    def progress(self) -> float:
        """Share that is done, from 0 to 1."""
        if self.state == "done":
            return 1.0
        current = (self.frame or 0) / self.frames if self.frames else 0.0
        return min(1.0, (self.done + self.failed + current) / max(1, len(self.sources)))


class JobTable:
    """The table of jobs. All changes are on the disk when a method returns. Thread-safe."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=1.0)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("BEGIN EXCLUSIVE")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, state TEXT NOT NULL, job TEXT NOT NULL)"
            )
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise InputError(
                f"{path}: expected a database of jobs that no other server uses, got {one_line(error)}. "
                "Choose another --data."
            ) from error

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def put(self, job: Job) -> None:
        """Add or replace a job."""
        values = json.dumps(dataclasses.asdict(job))
        self._db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", (job.id, job.state, values))

    def remove(self, job_id: str) -> None:
        """Remove a job."""
        self._db.execute("DELETE FROM jobs WHERE id = ?", (job_id,))

    def all(self) -> list[Job]:
        """Return all jobs, the oldest first."""
        jobs = []
        for (text,) in self._db.execute("SELECT job FROM jobs"):
            values = json.loads(text)
            jobs.append(Job(**values | {name: tuple(values[name]) for name in ("arguments", "failures")}))
        return sorted(jobs, key=lambda job: job.created)
