"""Jobs: videos and many images, in processes of their own, which survive the end of the server.

    upload ─▶ DATA/jobs/ID/input/0001.mp4 ─▶ a row in DATA/jobs.sqlite ─▶ `vitruvian TASK input/… --out out` ─▶ results

A job is a run of the command line in its folder. The journal of that command tells which results are done, so a job
that the end of the server interrupted goes on where it stopped. The process ends when its standard input does: at
cancellation, at shutdown, and when the server is killed. The database is locked: a folder belongs to one server.

Files have numbers for names on the disk; what clients call them is in the database. A folder without a row is what a
killed server left of an upload, and is removed at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import logging
import os
import re
import secrets
import shutil
import signal
import sqlite3
import sys
import time
import zipfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from vitruvian.errors import InputError, one_line
from vitruvian.files.video import VideoReader
from vitruvian.images.decode import is_image
from vitruvian.pipelines.sources import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from vitruvian.serving.errors import RequestError, not_found, too_large, too_many
from vitruvian.serving.options import JOB_OPTIONS, PeopleRequest
from vitruvian.serving.settings import ServerLimits, Settings
from vitruvian.serving.uploads import file_name

JobState = Literal["queued", "running", "done", "failed", "cancelled"]
FINAL = ("done", "failed", "cancelled")
_log = logging.getLogger("vitruvian.serving")
_CHUNK = 1 << 20
_FREE_BYTES = 256 * 2**20  # of the disk that uploads leave
_MAX_FAILURES = 20  # messages that are stored
_MAX_LINE = 1 << 20  # bytes of a line of the command
_SWEEP_SECONDS = 60.0
_SIZE_SECONDS = 2.0  # between measurements of the folder of a job
_STOP_SECONDS = 15.0  # for a process to end
_ZIP = b"PK\x03\x04"
_TYPES = {
    "image/jpeg": ".jpg", "image/png": ".png", "image/webp": ".webp", "image/tiff": ".tif", "image/gif": ".gif",
    "image/bmp": ".bmp", "image/avif": ".avif", "image/heic": ".heic", "image/heif": ".heif",
    "video/mp4": ".mp4", "video/quicktime": ".mov", "video/webm": ".webm", "video/x-matroska": ".mkv",
    "video/x-msvideo": ".avi", "video/mpeg": ".mpg",
    "application/zip": ".zip", "application/x-zip-compressed": ".zip",
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        id: Its id.
        owner: Name of the API key that it was created with.
        task: The task.
        arguments: Options of the command.
        sources: Names of the files on the disk, and what the client calls them.
        state: What has become of it.
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


class JobStore:
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


@dataclass
class Intake:
    """The files of a job while they are uploaded, in a folder without a row in the database yet.

    Attributes:
        id: The id of the job.
        folder: Its folder.
        sources: The files so far.
    """

    id: str
    folder: Path
    limits: ServerLimits
    sources: dict[str, str] = field(default_factory=dict)
    size: int = 0

    @contextlib.contextmanager
    def open_file(self) -> Iterator[IO[bytes]]:
        """Open a temporary file for one upload."""
        self.folder.joinpath("input").mkdir(parents=True, exist_ok=True)
        with self.folder.joinpath("upload").open("wb") as file:
            yield file

    def add_upload(self, name: str, media_type: str) -> None:
        """Add the file that was uploaded: an image, a video, or the files of a ZIP archive."""
        path = self.folder / "upload"
        with path.open("rb") as file:
            head = file.read(64)
        suffix = PurePosixPath(name).suffix.lower()
        if head.startswith(_ZIP) and suffix not in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
            self._unpack(path)
            path.unlink()
            return
        if suffix not in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
            suffix = _TYPES.get(media_type, ".jpg" if is_image(head) else "")
        if suffix not in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
            raise RequestError(
                415, subject=name, expected="an image, a video or a ZIP archive of them", got="another file",
                hint="Name it with its ending: ?name=clip.mp4",
            )  # fmt: skip
        self._add(path, name, suffix)

    def _add(self, path: Path, name: str, suffix: str) -> None:
        if len(self.sources) >= self.limits.job_files:
            raise too_large("job", self.limits.job_files, "files")
        self.size += path.stat().st_size
        if self.size > self.limits.job_upload_bytes:
            raise too_large("job", self.limits.job_upload_bytes, "bytes")
        stored = f"{len(self.sources) + 1:04d}{suffix}"
        target = self.folder / "input" / stored
        path.rename(target)
        self.sources[stored] = name
        if suffix in VIDEO_SUFFIXES:
            self._check_video(target, name)

    def _check_video(self, path: Path, name: str) -> None:
        """Raise an error for a file that is no video, or one with too many frames."""
        try:
            too_long = VideoReader(path).has_more_frames_than(self.limits.frames)
        except InputError as error:
            detail = str(error).replace(str(path), name)
            raise RequestError(415, message=detail.removeprefix(f"{name}: "), subject=name) from None
        if too_long:
            raise too_large(name, self.limits.frames, "frames")

    def _unpack(self, path: Path) -> None:
        """Add the images and videos of an archive; other files and hidden ones are skipped."""
        try:
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    name = PurePosixPath(entry.filename.replace("\\", "/"))
                    suffix = name.suffix.lower()
                    hidden = name.name.startswith(".") or "__MACOSX" in name.parts
                    if entry.is_dir() or hidden or suffix not in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
                        continue
                    part = self.folder / "entry"
                    with archive.open(entry) as source, part.open("wb") as target:
                        self._copy(source, target)
                    self._add(part, file_name(name.name), suffix)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, OSError) as error:
            if isinstance(error, InputError):
                raise
            raise RequestError(415, subject="archive", expected="a ZIP archive", got=one_line(error)) from None
        if not self.sources:
            raise RequestError(415, subject="archive", expected="images or videos in it", got="none")

    def _copy(self, source: IO[bytes], target: IO[bytes]) -> None:
        """Copy a file of an archive; what it declares as its size is not trusted."""
        left = self.limits.job_upload_bytes - self.size
        while chunk := source.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise too_large("archive", self.limits.job_upload_bytes, "bytes, unpacked")
            target.write(chunk)


class Jobs:
    """The jobs of a server: their rows, folders and processes. Used by the event loop's thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._limits = settings, settings.limits
        self._folder = settings.data / "jobs"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._store = JobStore(settings.data / "jobs.sqlite")
        self._jobs = {job.id: job for job in self._store.all()}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._wakeup = asyncio.Event()
        self._stopping = False
        for entry in self._folder.iterdir():  # uploads that a killed server left
            if entry.name not in self._jobs:
                shutil.rmtree(entry, ignore_errors=True)
        for job in list(self._jobs.values()):
            if job.state == "running":
                self._put(dataclasses.replace(job, state="queued", frame=None, frames=None))

    # ------------------------------------------------------------------------------------------- questions

    def get(self, job_id: str, owner: str | None) -> Job:
        """Return a job of this owner."""
        job = self._jobs.get(job_id)
        if job is None or job.owner != owner:
            raise not_found("job", repr(job_id[:40]), "GET /v1/jobs lists them.")
        return job

    def of_owner(self, owner: str | None) -> list[Job]:
        """Return the jobs of this owner, the newest first."""
        return [job for job in reversed(self._jobs.values()) if job.owner == owner]

    def count(self, state: str) -> int:
        """Return the number of jobs in a state."""
        return sum(job.state == state for job in self._jobs.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all jobs."""
        return sum(job.bytes for job in self._jobs.values())

    def files(self, job: Job) -> dict[str, Path]:
        """Return the results of a job by their names for clients."""
        root = self._folder / job.id / "out"
        found = {}
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and not name.endswith(".parts"))
            for name in sorted(names):
                if not name.startswith("."):
                    path = Path(folder) / name
                    found[_client_path(path.relative_to(root).as_posix(), job.sources)] = path
        return found

    # ------------------------------------------------------------------------------------------- changes

    @contextlib.asynccontextmanager
    async def intake(self) -> AsyncIterator[Intake]:
        """Yield the folder of a new job to upload to; without `create` it is removed at the end."""
        limits = self._limits
        if self.count("queued") >= limits.queued_jobs:
            raise too_many("jobs", limits.queued_jobs, "jobs that wait", retry_seconds=30)
        if len(self._jobs) >= limits.jobs:
            raise RequestError(
                507, subject="jobs", expected=f"at most {limits.jobs:,}", got="more", hint="Delete finished ones."
            )
        free = shutil.disk_usage(self._folder).free
        if self.nbytes >= limits.disk_bytes or free < _FREE_BYTES:
            raise RequestError(
                507, subject="disk", expected=f"at most {limits.disk_bytes:,} bytes of jobs, and space on the disk",
                got="none left", hint="Delete finished jobs.",
            )  # fmt: skip
        job_id = secrets.token_urlsafe(16)
        folder = self._folder / job_id
        try:
            yield Intake(job_id, folder, limits)
        finally:
            if job_id not in self._jobs:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def create(self, intake: Intake, task: str, owner: str | None, arguments: Sequence[str]) -> Job:
        """Add a job for uploaded files. It is on the disk afterwards."""
        if not intake.sources:
            raise RequestError(
                422, subject="files", expected="an image, a video or a ZIP archive", got="none",
                hint="Send it as the body, or as files of a form.",
            )  # fmt: skip
        job = Job(
            id=intake.id,
            owner=owner,
            task=task,
            arguments=tuple(arguments),
            sources=intake.sources,
            created=time.time(),
            bytes=intake.size,
        )
        self._put(job)
        self._wakeup.set()
        return job

    async def cancel(self, job: Job) -> Job:
        """Stop a job; what is done stays."""
        if job.state in FINAL:
            raise RequestError(409, subject="job", expected="one that waits or runs", got=f"one that is {job.state}")
        self._put(dataclasses.replace(job, state="cancelled", finished=time.time(), frame=None, frames=None))
        await self._end_process(job.id)
        return self._jobs[job.id]

    async def delete(self, job: Job) -> None:
        """Stop a job, and remove it and its files."""
        self._jobs.pop(job.id, None)
        self._store.remove(job.id)
        await self._end_process(job.id)
        await asyncio.to_thread(shutil.rmtree, self._folder / job.id, ignore_errors=True)

    def _put(self, job: Job) -> None:
        self._jobs[job.id] = job
        self._store.put(job)

    # ------------------------------------------------------------------------------------------- processes

    def start(self) -> None:
        """Run jobs that wait."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._settings.job_workers)]
        self._tasks.append(asyncio.create_task(self._sweep()))

    async def stop(self) -> None:
        """Interrupt running jobs, which go on at the next start."""
        self._stopping = True
        self._wakeup.set()
        await asyncio.gather(*(self._end_process(job_id) for job_id in list(self._processes)))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._store.close()

    async def _work(self) -> None:
        """Run one job after another."""
        while not self._stopping:
            job = next((job for job in self._jobs.values() if job.state == "queued"), None)
            if job is None:
                self._wakeup.clear()
                await self._wakeup.wait()
                continue
            try:
                await self._run(job)
            except Exception as error:  # noqa: BLE001 - logged; the next job goes on
                _log.exception("job %s", job.id)
                if job.id in self._jobs:
                    self._finish(self._jobs[job.id], "failed", (one_line(error),))

    async def _run(self, job: Job) -> None:
        """Run the command of a job to its end."""
        folder = self._folder / job.id
        self._put(
            dataclasses.replace(job, state="running", started=job.started or time.time(), done=0, failed=0, failures=())
        )
        process = await asyncio.create_subprocess_exec(
            *self._command(job),
            cwd=folder,
            env=os.environ | {"VITRUVIAN_STOP_WITH_STDIN": "1"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the server
            limit=_MAX_LINE,
        )
        self._processes[job.id] = process
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.create_task(_tail(process.stderr))
        watch = asyncio.create_task(self._watch_size(job.id))
        try:
            if job.id not in self._jobs or self._jobs[job.id].state != "running":  # cancelled meanwhile
                await self._end_process(job.id)
            async for line in process.stdout:
                self._follow(job.id, line)
            code = await process.wait()
            text = await errors
        finally:
            watch.cancel()
            self._processes.pop(job.id, None)
        current = self._jobs.get(job.id)
        if current is None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        elif current.state == "running":
            if self._stopping:
                self._put(dataclasses.replace(current, state="queued", frame=None, frames=None))
                return
            size = await asyncio.to_thread(_folder_bytes, folder)
            current = dataclasses.replace(current, bytes=size)
            if code in (0, 1) and current.done:
                self._finish(current, "done", current.failures)
            else:
                self._finish(current, "failed", current.failures or (_reason(code, text),))

    def _finish(self, job: Job, state: JobState, failures: tuple[str, ...]) -> None:
        failures = tuple(_client_text(text, job.sources) for text in failures)
        self._put(
            dataclasses.replace(job, state=state, finished=time.time(), failures=failures, frame=None, frames=None)
        )

    def _command(self, job: Job) -> list[str]:
        """Return the command of a job, which runs in its folder."""
        settings = self._settings
        command = [sys.executable, "-P", "-m", "vitruvian", job.task, *(f"input/{name}" for name in job.sources)]
        command += ["--out=out", "--json", "--progress", "--quiet", f"--model={settings.models[job.task]}"]
        options = {"device": settings.device, "dtype": settings.dtype}
        command += [f"--{name}={value}" for name, value in options.items() if value is not None]
        command += [f"--limit={name}={value}" for name, value in settings.image_limits.items()]
        detects = issubclass(JOB_OPTIONS[job.task], PeopleRequest) or "--everyone" in job.arguments
        if settings.detector is not None and detects:
            command.append(f"--detect={settings.detector}")
        return [*command, *job.arguments]

    def _follow(self, job_id: str, line: bytes) -> None:
        """Take the progress from a line of the command. It is in memory only: the journal has what is done."""
        job = self._jobs.get(job_id)
        try:
            values = json.loads(line)
        except ValueError:
            return
        if job is None or not isinstance(values, dict):
            return
        if (progress := values.get("progress")) is not None:
            if progress["source"] != "images":
                job = dataclasses.replace(job, frame=progress["done"], frames=progress["total"])
        elif values.get("status") in ("done", "skipped"):
            job = dataclasses.replace(job, done=job.done + 1, frame=None, frames=None)
        elif values.get("status") == "failed":
            text = _client_text(str(values.get("error", "")), job.sources)
            failures = (*job.failures, text)[:_MAX_FAILURES]
            job = dataclasses.replace(job, failed=job.failed + 1, failures=failures, frame=None, frames=None)
        self._jobs[job_id] = job

    async def _watch_size(self, job_id: str) -> None:
        """End a job whose folder becomes too large."""
        while True:
            await asyncio.sleep(_SIZE_SECONDS)
            size = await asyncio.to_thread(_folder_bytes, self._folder / job_id)
            job = self._jobs.get(job_id)
            if job is None or job.state != "running":
                return
            self._jobs[job_id] = job = dataclasses.replace(job, bytes=size)
            free = shutil.disk_usage(self._folder).free
            if size > self._limits.job_bytes or self.nbytes > self._limits.disk_bytes or free < _FREE_BYTES // 2:
                text = f"job: expected at most {self._limits.job_bytes:,} bytes with results, got more."
                self._finish(job, "failed", (text,))
                await self._end_process(job_id)
                return

    async def _end_process(self, job_id: str) -> None:
        """Interrupt the process of a job, and wait for its end."""
        process = self._processes.get(job_id)
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _sweep(self) -> None:
        """Remove jobs that finished long ago."""
        while True:
            oldest = time.time() - self._limits.job_seconds
            for job in list(self._jobs.values()):
                if job.state in FINAL and (job.finished or job.created) < oldest:
                    await self.delete(job)
            await asyncio.sleep(_SWEEP_SECONDS)


def zip_chunks(files: Mapping[str, Path]) -> Iterator[bytes]:
    """Yield a ZIP archive of files, uncompressed, while it is made."""
    buffer = _Buffer()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, path in files.items():
            with path.open("rb") as source, archive.open(name, "w", force_zip64=True) as target:
                while chunk := source.read(_CHUNK):
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


async def _tail(stream: asyncio.StreamReader) -> str:
    """Read a stream to its end, and return the end of it."""
    tail = b""
    while chunk := await stream.read(_CHUNK):
        tail = (tail + chunk)[-8192:]
    return tail.decode("utf-8", "replace")


def _reason(code: int, text: str) -> str:
    """Return why a command failed, from its exit code and its messages."""
    lines = [line.removeprefix("Error: ") for line in text.splitlines() if line.strip()]
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"job: its process was ended by {signal.Signals(-code).name}."
    return lines[-1] if lines else f"job: its process ended with the code {code}."


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(path, name)).st_size
    return total


def _client_path(path: str, sources: Mapping[str, str]) -> str:
    """Return the path of a result with the names that the client knows: 0001_pose.json -> beach_pose.json."""
    stems = {Path(stored).stem: Path(_safe(name)).stem for stored, name in sources.items()}
    counts: dict[str, int] = {}
    for stored in stems:  # names that repeat keep their number
        counts[stems[stored]] = counts.get(stems[stored], 0) + 1

    def rename(part: str) -> str:
        found = re.match(r"\d{4,}", part)
        if found is None or found[0] not in stems:
            return part
        stem = stems[found[0]]
        return f"{stem if counts[stem] == 1 else f'{stem}_{found[0]}'}{part[found.end() :]}"

    return "/".join(rename(part) for part in path.split("/"))


def _client_text(text: str, sources: Mapping[str, str]) -> str:
    """Return a message with the names that the client knows."""
    return re.sub(r"input/(\d{4,}\.\w+)", lambda found: sources.get(found[1], found[1]), text)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.@ -]", "_", name).strip(". ") or "file"
