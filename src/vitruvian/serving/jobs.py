"""Jobs: videos and many images, in processes of their own, which survive the end of the server.

    upload ─▶ DATA/jobs/ID/input/0001.mp4 ─▶ a row in DATA/jobs.sqlite ─▶ `vitruvian TASK input/… --out out` ─▶ results

A job is a run of the command line in its folder. The journal of that command tells which results are done, so a job
that the end of the server interrupted continues where it stopped. The database is locked: a folder belongs to one
server.

Files have numbers for names on the disk; what clients call them is in the database. A folder without a row is what a
killed server left of an upload, and is removed at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import re
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from vitruvian.errors import one_line
from vitruvian.serving.errors import RequestError, not_found, too_many
from vitruvian.serving.job_process import JobProcess, failure_reason
from vitruvian.serving.job_table import FINAL, Job, JobState, JobTable
from vitruvian.serving.settings import Settings
from vitruvian.serving.task_requests import JOB_REQUESTS, PeopleRequest
from vitruvian.serving.upload_folder import UploadFolder

_log = logging.getLogger("vitruvian.serving")
_FREE_BYTES = 256 * 2**20  # of the disk that uploads leave
_MAX_FAILURES = 20  # messages that are stored
_DELETE_SECONDS = 60.0
_SIZE_SECONDS = 2.0  # between measurements of the folder of a job


class Jobs:
    """The jobs of a server: their rows, folders and processes. Used by the event loop's thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._limits = settings, settings.limits
        self._folder = settings.data / "jobs"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._table = JobTable(settings.data / "jobs.sqlite")
        self._jobs = {job.id: job for job in self._table.all()}
        self._processes: dict[str, JobProcess] = {}
        self._file_counts: dict[str, int] = {}  # of jobs that have ended
        self._uploads: dict[str, int] = {}  # bytes of uploads that have not ended, by the id of the job or video
        self._tasks: list[asyncio.Task[None]] = []
        self._wakeup = asyncio.Event()
        self._stopping = False
        for entry in self._folder.iterdir():  # uploads that a killed server left
            if entry.name not in self._jobs:
                shutil.rmtree(entry, ignore_errors=True)
        for job in list(self._jobs.values()):
            if job.state == "running":
                self._put(dataclasses.replace(job, state="queued", frame=None, frames=None))

    # ------------------------------------------------------------------------------------------- reading

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
        """Bytes of all jobs, and of files that are uploaded now."""
        jobs = list(self._jobs.values())  # called in threads that unpack archives too
        return sum(job.bytes for job in jobs) + sum(list(self._uploads.values()))

    def files(self, job: Job) -> dict[str, Path]:
        """Return the results of a job by their names for clients."""
        root = self._folder / job.id / "out"
        found, stems = {}, _client_stems(job.sources)
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and not name.endswith(".parts"))
            for name in sorted(names):
                if not name.startswith("."):
                    path = Path(folder) / name
                    found[_client_path(path.relative_to(root).as_posix(), stems)] = path
        return found

    def file_count(self, job: Job) -> int:
        """Return the number of results of a job that has ended."""
        if job.id in self._file_counts:
            return self._file_counts[job.id]
        ended = job.id not in self._processes  # the process of a cancelled job may still write
        count = len(self.files(job))
        if ended and job.id in self._jobs:
            self._file_counts[job.id] = count
        return count

    # ------------------------------------------------------------------------------------------- changes

    @contextlib.asynccontextmanager
    async def new_folder(self) -> AsyncIterator[UploadFolder]:
        """Yield the folder of a new job to upload to; without `create` it is removed at the end."""
        limits = self._limits
        if self.count("queued") + len(self._uploads) >= limits.queued_jobs:
            raise too_many("jobs", limits.queued_jobs, "jobs that wait", retry_seconds=30)
        if len(self._jobs) + len(self._uploads) >= limits.jobs:
            raise RequestError(
                507, subject="jobs", expected=f"at most {limits.jobs:,}", got="more", hint="Delete finished ones."
            )
        job_id = secrets.token_urlsafe(16)
        async with self.upload(job_id, self._folder / job_id, is_stored=lambda: job_id in self._jobs) as upload:
            yield upload

    @contextlib.asynccontextmanager
    async def upload(
        self, upload_id: str, folder: Path, *, is_stored: Callable[[], bool]
    ) -> AsyncIterator[UploadFolder]:
        """Yield a folder to upload to, whose bytes count; unless it is stored in the end, it is removed.

        An upload for which there is no space on the disk ends with an error 507.
        """
        self._check_disk()
        self._uploads[upload_id] = 0

        def count(size: int) -> None:
            self._uploads[upload_id] += size
            self._check_disk()

        try:
            yield UploadFolder(upload_id, folder, self._limits, count)
        finally:
            try:
                if not is_stored():
                    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            finally:
                del self._uploads[upload_id]  # bytes count for as long as they are on the disk

    def _check_disk(self) -> None:
        """Raise an error 507 if there is no space for files."""
        limit = self._limits.disk_bytes
        if self.nbytes > limit or shutil.disk_usage(self._folder).free < _FREE_BYTES:
            raise RequestError(
                507, subject="disk", expected=f"at most {limit:,} bytes of jobs, and space on the disk",
                got="none left", hint="Delete finished jobs.",
            )  # fmt: skip

    def create(self, upload: UploadFolder, task: str, owner: str | None, arguments: Sequence[str]) -> Job:
        """Add a job for uploaded files. It is on the disk afterwards."""
        if not upload.sources:
            raise RequestError(
                422, subject="files", expected="an image, a video or a ZIP archive", got="none",
                hint="Send it as the body, or as files of a form.",
            )  # fmt: skip
        job = Job(
            id=upload.id,
            owner=owner,
            task=task,
            arguments=tuple(arguments),
            sources=upload.sources,
            created=time.time(),
            bytes=upload.size,
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
        return self._jobs.get(job.id, job)  # it may have been deleted meanwhile

    async def delete(self, job: Job) -> None:
        """Stop a job, and remove it and its files."""
        self._jobs.pop(job.id, None)
        self._file_counts.pop(job.id, None)
        self._table.remove(job.id)
        await self._end_process(job.id)
        await asyncio.to_thread(shutil.rmtree, self._folder / job.id, ignore_errors=True)

    def _put(self, job: Job) -> None:
        self._jobs[job.id] = job
        self._table.put(job)

    # ------------------------------------------------------------------------------------------- processes

    def start(self) -> None:
        """Run jobs that wait."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._settings.job_workers)]
        self._tasks.append(asyncio.create_task(self._delete_old_jobs()))

    async def stop(self) -> None:
        """Interrupt running jobs, which continue at the next start."""
        self._stopping = True
        self._wakeup.set()
        await asyncio.gather(*(self._end_process(job_id) for job_id in list(self._processes)))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._table.close()

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
            except Exception as error:  # noqa: BLE001 - logged; the next job continues
                _log.exception("job %s", job.id)
                if job.id in self._jobs:
                    self._finish(self._jobs[job.id], "failed", (one_line(error),))

    async def _run(self, job: Job) -> None:
        """Run the command of a job to its end."""
        folder = self._folder / job.id
        self._put(
            dataclasses.replace(job, state="running", started=job.started or time.time(), done=0, failed=0, failures=())
        )
        names = {f"input/{stored}": name for stored, name in job.sources.items()}
        process = self._processes[job.id] = await JobProcess.start(self._command(job), folder, names)
        watch = asyncio.create_task(self._watch_size(job.id))
        try:
            if job.id not in self._jobs or self._jobs[job.id].state != "running":  # cancelled meanwhile
                await process.stop()
            async for line in process.lines():
                self._read_progress(job.id, line)
            code, text = await process.wait()
        finally:
            watch.cancel()
            await process.stop()  # after an error; otherwise it has ended
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
                self._finish(current, "failed", current.failures or (failure_reason(code, text),))

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
        detects = issubclass(JOB_REQUESTS[job.task], PeopleRequest) or "--everyone" in job.arguments
        chosen = any(argument.startswith(("--boxes=", "--tile=", "--detect=")) for argument in job.arguments)
        if settings.detector is not None and detects and not chosen:
            command.append(f"--detect={settings.detector}")
        return [*command, *job.arguments]

    def _read_progress(self, job_id: str, line: bytes) -> None:
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
            text = self._space_error(size)
            if text is not None:
                self._finish(job, "failed", (text,))
                await self._end_process(job_id)
                return

    def _space_error(self, size: int) -> str | None:
        """Return why a job with so many bytes is ended; None while there is space."""
        free = shutil.disk_usage(self._folder).free
        if size > self._limits.job_bytes:
            return f"job: expected at most {self._limits.job_bytes:,} bytes with results, got {size:,}."
        if self.nbytes > self._limits.disk_bytes:
            limit = self._limits.disk_bytes
            return f"disk: expected at most {limit:,} bytes of jobs, got {self.nbytes:,}. Delete finished jobs."
        if free < _FREE_BYTES // 2:
            return f"disk: expected at least {_FREE_BYTES // 2:,} free bytes, got {free:,}. Delete finished jobs."
        return None

    async def _end_process(self, job_id: str) -> None:
        """Interrupt the process of a job, if it runs, and wait for its end."""
        if job_id in self._processes:
            await self._processes[job_id].stop()

    async def _delete_old_jobs(self) -> None:
        """Remove jobs that finished long ago."""
        while True:
            oldest = time.time() - self._limits.job_seconds
            for job in list(self._jobs.values()):
                if job.state in FINAL and (job.finished or job.created) < oldest:
                    await self.delete(job)
            await asyncio.sleep(_DELETE_SECONDS)


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(path, name)).st_size
    return total


def _client_stems(sources: Mapping[str, str]) -> dict[str, str]:
    """Return how the names of the results of each file begin: as its own name, which a number makes unique."""
    stems = {Path(stored).stem: Path(_safe(name)).stem for stored, name in sources.items()}
    numbered = {number: f"{stem}_{number}" for number, stem in stems.items()}
    counts = Counter(stems.values())
    mixed = {number: stem if counts[stem] == 1 else numbered[number] for number, stem in stems.items()}
    return mixed if len(set(mixed.values())) == len(mixed) else numbered  # a client's name may end with a number


def _client_path(path: str, stems: Mapping[str, str]) -> str:
    """Return the path of a result with the names that the client knows: 0001_pose.json -> beach_pose.json."""
    return "/".join(re.sub(r"^\d{4,}", lambda found: stems.get(found[0], found[0]), part) for part in path.split("/"))


def _client_text(text: str, sources: Mapping[str, str]) -> str:
    """Return a message with the names that the client knows."""
    text = re.sub(r"input/(\d{4,}\.\w+)", lambda found: sources.get(found[1], found[1]), text)
    for name in set(sources.values()):
        text = text.replace(f"{name}: {name}: ", f"{name}: ")
    return text


def _safe(name: str) -> str:
    return re.sub(r"[^\w.@ -]", "_", name).strip(". ") or "file"
