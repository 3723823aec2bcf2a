"""`/v1/jobs`: videos and many images; progress, results, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, Field

from vitruvian.errors import InputError
from vitruvian.serving.errors import RequestError, not_found
from vitruvian.serving.forms import MULTIPART
from vitruvian.serving.job_table import FINAL, Job
from vitruvian.serving.media_types import FILE_TYPES
from vitruvian.serving.request_bodies import file_name, media_type
from vitruvian.serving.routes.shared import BINARY, ERRORS, NO_CONTENT, Id, file_route, job_options, query_parameter
from vitruvian.serving.service import Service
from vitruvian.serving.task_requests import JOB_REQUESTS
from vitruvian.serving.upload_folder import receive_files
from vitruvian.serving.zip_stream import zip_chunks
from vitruvian.tasks import find_task

_EVENT_SECONDS = 0.2  # between looks at a job
_HEARTBEAT_SECONDS = 15.0


class JobFile(BaseModel):
    """A result of a job."""

    name: str
    bytes: int
    media_type: str
    href: str


class JobSummary(BaseModel):
    """A job, as lists show it."""

    id: str
    task: str
    state: str = Field(description="queued, running, done, failed or cancelled.")
    progress: float = Field(description="Share that is done, 0 to 1.")
    done: int = Field(description="Files that are done.")
    failed: int = Field(description="Files that failed.")
    total: int = Field(description="Files that were uploaded.")
    frame: int | None = Field(description="Frames that are done of the current video.")
    frames: int | None = Field(description="Frames of the current video.")
    sources: list[str]
    failures: list[str] = Field(description="Messages about files that failed, or about the job.")
    bytes: int
    created: float = Field(description="Seconds since 1970.")
    started: float | None
    finished: float | None
    file_count: int = Field(description="Number of results; in lists and events 0 until the job has ended.")


class JobInfo(JobSummary):
    """A job with its results."""

    files: list[JobFile] = Field(description="Results; in events only of jobs that have ended.")


class JobList(BaseModel):
    """The jobs of an API key."""

    jobs: list[JobSummary]


def add_jobs(app: FastAPI, service: Service) -> None:
    """Add the routes of jobs."""
    jobs = service.jobs

    async def info(job: Job, *, running_files: bool = False) -> JobInfo:
        return await asyncio.to_thread(job_info, service, job, running_files=running_files)  # it walks through folders

    @app.post(
        "/v1/jobs",
        status_code=201,
        summary="Process a video, images, or a ZIP archive of them.",
        responses=ERRORS,
        openapi_extra=_job_request(service),
    )
    async def create(request: Request) -> JobInfo:
        if media_type(request) != MULTIPART:
            job_task(service, request.query_params.get("task"))  # before the upload
        async with jobs.new_folder() as folder:
            fields = await receive_files(request, folder)
            task = job_task(service, fields.pop("task", None))
            options = JOB_REQUESTS[task].read(fields)
            options.check(service.settings.limits.prompts)
            return await info(jobs.create(folder, task, request.state.owner, options.arguments()))

    @app.get("/v1/jobs", summary="All jobs, the newest first.", responses=ERRORS)
    async def list_jobs(request: Request) -> JobList:
        owned = jobs.of_owner(request.state.owner)
        return JobList(jobs=await asyncio.to_thread(lambda: [_job_summary(service, job) for job in owned]))

    @app.get("/v1/jobs/{job_id}", summary="State, progress and results of a job.", responses=ERRORS)
    async def show(request: Request, job_id: Id) -> JobInfo:
        return await info(jobs.get(job_id, request.state.owner), running_files=True)

    @app.get(
        "/v1/jobs/{job_id}/events",
        summary="Progress as server-sent events, each with a job, until it ends.",
        **_stream("text/event-stream"),
    )
    async def events(request: Request, job_id: Id) -> StreamingResponse:
        jobs.get(job_id, request.state.owner)
        return StreamingResponse(
            _job_events(service, job_id, request.state.owner),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    @app.get("/v1/jobs/{job_id}/files/{name:path}", summary="A result of a job.", **file_route("*/*"))
    async def job_file(request: Request, job_id: Id, name: str) -> FileResponse:
        files = await asyncio.to_thread(jobs.files, jobs.get(job_id, request.state.owner))
        path = files.get(name)  # never a path of the client's
        if path is None:
            raise not_found("file", repr(name[:80]), "The job lists its files.")
        return FileResponse(path, media_type=_file_type(name), filename=file_name(name))

    @app.get(
        "/v1/jobs/{job_id}/archive",
        summary="All results of a job as a ZIP archive.",
        **_stream("application/zip"),
    )
    async def archive(request: Request, job_id: Id) -> StreamingResponse:
        job = jobs.get(job_id, request.state.owner)
        headers = {"Content-Disposition": f'attachment; filename="{job.task}_{job.id[:8]}.zip"'}
        files = await asyncio.to_thread(jobs.files, job)
        return StreamingResponse(zip_chunks(files), media_type="application/zip", headers=headers)

    @app.post("/v1/jobs/{job_id}/cancel", summary="Stop a job; its results so far stay.", responses=ERRORS)
    async def cancel(request: Request, job_id: Id) -> JobInfo:
        return await info(await jobs.cancel(jobs.get(job_id, request.state.owner)))

    @app.delete("/v1/jobs/{job_id}", status_code=204, summary="Stop and remove a job.", responses=NO_CONTENT)
    async def delete(request: Request, job_id: Id) -> Response:
        await jobs.delete(jobs.get(job_id, request.state.owner))
        return Response(status_code=204)


def _stream(media_type: str) -> dict[str, Any]:
    """Return the arguments of a route that streams its answer."""
    return {"responses": {200: {"content": {media_type: {}}}, **ERRORS}, "response_class": StreamingResponse}


def _job_request(service: Service) -> dict[str, Any]:
    names = job_tasks(service)
    tasks = {"type": "string", "enum": names}
    files = {"type": "array", "items": BINARY}
    options = {"description": "Options of the task.", "anyOf": [job_options(task) for task in names]}
    form = {
        "type": "object",
        "properties": {"task": tasks, "files": files, "options": options},
        "description": "Options may also be fields of their own.",
    }
    encoding = {"options": {"contentType": "application/json"}}
    return {
        "parameters": [
            query_parameter("task", tasks, "The task."),
            query_parameter("name", {"type": "string"}, "Name of the file: clip.mp4."),
            {
                "name": "options",
                "in": "query",
                "description": "Options of the task as JSON; each may also be a parameter of its own.",
                "content": {"application/json": {"schema": options}},
            },
        ],
        "requestBody": {
            "required": True,
            "content": {
                "video/*": {"schema": BINARY},
                "image/*": {"schema": BINARY},
                "application/zip": {"schema": BINARY},
                MULTIPART: {"schema": form, "encoding": encoding},
            },
        },
    }  # fmt: skip


def job_tasks(service: Service) -> list[str]:
    """Return the tasks of which there may be jobs."""
    return [task for task in service.settings.models if task in JOB_REQUESTS]


def job_task(service: Service, name: object) -> str:
    """Return the task of a job."""
    known = job_tasks(service)
    try:
        task = find_task(str(name)).name if name else ""
    except InputError:
        task = ""
    if task in known:
        return task
    hint = f"Start the server with: vitruvian serve --model {task}=CHECKPOINT" if task else "Add ?task=…"
    raise RequestError(
        404 if task else 422, subject="task", expected=f"one of {', '.join(known)}", got=repr(name), hint=hint
    )


async def _job_events(service: Service, job_id: str, owner: str | None) -> AsyncIterator[str]:
    """Yield an event for each change of a job."""
    last, silent = "", 0.0
    while not service.stopping.is_set():
        try:
            job = service.jobs.get(job_id, owner)
        except RequestError:
            yield "event: deleted\ndata: {}\n\n"
            return
        text = json.dumps((await asyncio.to_thread(job_info, service, job)).model_dump())
        if text != last:
            last, silent = text, 0.0
            yield f"event: job\ndata: {text}\n\n"
        if job.state in FINAL:
            return
        silent += _EVENT_SECONDS
        if silent > _HEARTBEAT_SECONDS:
            silent = 0.0
            yield ": waiting\n\n"
        await asyncio.sleep(_EVENT_SECONDS)


def job_info(service: Service, job: Job, *, running_files: bool = False) -> JobInfo:
    """Return what clients see of a job; `running_files` lists its results before it has ended."""
    files = []
    for name, path in service.jobs.files(job).items() if running_files or job.state in FINAL else ():
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            href = f"/v1/jobs/{job.id}/files/{quote(name)}"
            files.append(JobFile(name=name, bytes=size, media_type=_file_type(name), href=href))
    return JobInfo(**_summary_fields(job), file_count=len(files), files=files)


def _job_summary(service: Service, job: Job) -> JobSummary:
    """Return what lists show of a job."""
    return JobSummary(**_summary_fields(job), file_count=service.jobs.file_count(job) if job.state in FINAL else 0)


def _summary_fields(job: Job) -> dict[str, Any]:
    derived = {"progress": round(job.progress, 4), "total": len(job.sources), "sources": list(job.sources.values())}
    return vars(job) | derived


def _file_type(name: str) -> str:
    endings = [ending for ending in FILE_TYPES if name.lower().endswith(ending)]
    return FILE_TYPES[max(endings, key=len)] if endings else "application/octet-stream"
