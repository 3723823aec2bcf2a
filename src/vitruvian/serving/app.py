"""The routes of the server; `docs/serving.md` has a table of them, and /openapi.json the details."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Path, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from vitruvian.errors import InputError, VitruvianError
from vitruvian.human import LAYOUTS, PART_COLORS, PART_NAMES
from vitruvian.serving.content import FILE_TYPES, MEDIA_TYPES, choose_kind, kinds_of
from vitruvian.serving.errors import ErrorBody, RequestError, error_response, not_found, status_of
from vitruvian.serving.images import StoredImage
from vitruvian.serving.jobs import FINAL, Intake, Job, zip_chunks
from vitruvian.serving.metrics import CONTENT_TYPE
from vitruvian.serving.middleware import Gate
from vitruvian.serving.options import IMAGE_OPTIONS, JOB_OPTIONS, TaskOptions
from vitruvian.serving.schemas import result_schemas
from vitruvian.serving.service import Service
from vitruvian.serving.settings import Settings
from vitruvian.serving.uploads import LimitedRequest, file_name, read_json_object
from vitruvian.tasks import TASKS, find_task
from vitruvian.version import __version__

_log = logging.getLogger("vitruvian.serving")
_EVENT_SECONDS = 0.2  # between looks at a job
_HEARTBEAT_SECONDS = 15.0
_CHUNK = 1 << 20
_BINARY = {"type": "string", "format": "binary"}
_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
_NO_CONTENT: dict[int | str, dict[str, Any]] = {204: {"description": "Done."}, **_ERRORS}
Id = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{22}$")]


class ModelInfo(BaseModel):
    """A task that is served."""

    task: str
    summary: str
    model: str = Field(description="Checkpoint.")
    state: str = Field(description="loading, ready, failed or closed; jobs-only tasks are ready.")
    device: str | None
    dtype: str | None
    images: bool = Field(description="Whether POST /v1/{task} takes images.")
    jobs: bool = Field(description="Whether POST /v1/jobs takes videos and archives.")
    kinds: list[str] = Field(description="What `as` takes, the default first.")
    media_types: dict[str, str] = Field(description="Media type of each kind, for Accept.")
    options: dict[str, Any] = Field(description="JSON schema of the options for images.")
    job_options: dict[str, Any] = Field(description="JSON schema of the options for jobs.")


class ModelList(BaseModel):
    """What is served."""

    version: str
    models: list[ModelInfo]
    detector: str | None = Field(description="What detects people, unless the model does.")
    urls: bool = Field(description="Whether `url` is allowed.")
    limits: dict[str, int]


class ImageInfo(BaseModel):
    """A stored image."""

    id: str
    name: str
    size_hw: list[int] = Field(description="Height and width of the upright image.")
    embedded: bool = Field(description="Whether prompts are answered from its embedding.")
    bytes: int
    expires_in: int = Field(description="Seconds without use after which it is removed.")


class JobFile(BaseModel):
    """A result of a job."""

    name: str
    bytes: int
    media_type: str
    href: str


class JobInfo(BaseModel):
    """A job."""

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
    files: list[JobFile] = Field(description="Results; in lists and events only of jobs that have ended.")


class JobList(BaseModel):
    """The jobs of an API key."""

    jobs: list[JobInfo]


def create_app(settings: Settings, *, on_failure: Callable[[Exception], object] | None = None) -> FastAPI:
    """Return the application of a server.

    Args:
        settings: What it is started with.
        on_failure: Called with the error if a model cannot be opened, in another thread. By default it is logged.
    """
    service = Service(settings, on_failure or partial(_log.error, "a model cannot be opened: %s"))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="vitruvian",
        version=__version__,
        description="Computer vision of people and of everything around them. See docs/serving.md.",
        lifespan=lifespan,
        docs_url=None,  # it loads scripts from other sites
        redoc_url=None,
    )
    app.state.service = service
    _add_status(app, service)
    _add_images(app, service)
    _add_jobs(app, service)
    _add_tasks(app, service)
    for kind in (VitruvianError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _on_error)
    app.add_middleware(Gate, settings=settings, metrics=service.metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "x-api-key", "content-type", "accept"],
        )
    return app


async def _on_error(request: Request, error: Exception) -> Response:
    """Answer with an error; those that are not ours are logged."""
    if isinstance(error, HTTPException):
        text = {404: "a path of this server", 405: "another method"}.get(error.status_code, "another request")
        got = f"{request.method} {request.url.path[:80]}"
        parts = {"subject": "request", "expected": text, "got": got, "hint": "See /openapi.json."}
        error = RequestError(error.status_code, headers=dict(error.headers or {}), **parts)
    elif isinstance(error, ClientDisconnect):
        error = RequestError(499, subject="client", expected="the whole request", got="a part of it")
    elif status_of(error) == 500:
        _log.error("%s %s", request.method, request.url.path, exc_info=error)
    return error_response(error)


# ------------------------------------------------------------------------------------------------ status


def _add_status(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", summary="Whether the server runs.")
    async def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    @app.get("/readyz", summary="Whether all models are loaded.", responses=_ERRORS)
    async def readyz() -> PlainTextResponse:
        waiting = [task for task, queue in service.queues.items() if queue.state != "ready"]
        if waiting:
            raise RequestError(
                503, headers={"Retry-After": "2"}, subject="models", expected="all of them loaded",
                got=f"{', '.join(waiting)} not loaded yet",
            )  # fmt: skip
        return PlainTextResponse("ready\n")

    @app.get("/metrics", summary="Metrics for Prometheus.")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/v1/models", summary="Tasks, their models, kinds of answers and options.")
    async def models() -> ModelList:
        settings = service.settings
        return ModelList(
            version=__version__,
            models=[_model_info(service, task) for task in settings.models],
            detector=settings.detector,
            urls=settings.allow_urls,
            limits=vars(settings.limits),
        )

    @app.get("/v1/layouts", summary="Names and bones of keypoints, names and colors of parts.")
    async def layouts() -> JSONResponse:
        keypoints = {
            name: {"names": list(layout.names), "bones": [dataclasses.asdict(bone) for bone in layout.skeleton]}
            for name, layout in LAYOUTS.items()
        }
        parts = {"names": list(PART_NAMES), "colors": [list(color) for color in PART_COLORS]}
        return JSONResponse({"keypoints": keypoints, "parts": parts})


def _model_info(service: Service, task: str) -> ModelInfo:
    queue, row = service.queues.get(task), TASKS[task]
    pipe = queue.pipe if queue is not None and queue.state == "ready" else None
    kinds = [] if queue is None else kinds_of(task)
    return ModelInfo(
        task=task,
        summary=row.summary,
        model=_public_name(service.settings.models[task]),
        state="ready" if queue is None else queue.state,
        device=None if pipe is None else str(pipe.device),
        dtype=None if pipe is None else str(pipe.model.dtype).removeprefix("torch."),
        images=queue is not None,
        jobs=task in JOB_OPTIONS,
        kinds=list(kinds),
        media_types={kind: MEDIA_TYPES[kind] for kind in kinds},
        options=IMAGE_OPTIONS[task].model_json_schema() if task in IMAGE_OPTIONS else {},
        job_options=JOB_OPTIONS[task].model_json_schema(),
    )


def _public_name(checkpoint: str) -> str:
    """Return the name of a checkpoint without the folders of this machine."""
    return checkpoint.rstrip("/").rpartition("/")[2] if checkpoint.startswith(("/", ".", "~")) else checkpoint


# ------------------------------------------------------------------------------------------------ tasks


def _add_tasks(app: FastAPI, service: Service) -> None:
    for task in service.queues:
        app.post(
            f"/v1/{task}",
            summary=TASKS[task].summary,
            operation_id=task,
            responses={200: _task_answer(task), **_ERRORS},
            response_class=Response,
            openapi_extra=_task_request(task),
        )(_task_handler(service, task))

    @app.post("/v1/{task}", include_in_schema=False)
    async def other_task(request: Request, task: str) -> Response:
        """Answer for aliases of tasks, and say how to serve tasks without a model."""
        with contextlib.suppress(InputError):
            task = find_task(task).name
        service.queue(task)  # an error for tasks without a model
        return await _task_handler(service, task)(request)


def _task_handler(service: Service, task: str) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        service.queues[task].check_space()  # before the upload
        async with service.uploads.read(request) as upload:
            kind = choose_kind(task, accept=request.headers.get("accept"), asked=upload.fields.pop("as", None))
            options = IMAGE_OPTIONS[task].read(upload.fields)
            _require_image(upload.body)
            body = await service.answer(request, task, upload.body, upload.name, options, kind)
        return _file_response(body, kind, upload.name, task)

    return handle


def _require_image(body: bytes) -> None:
    if not body:
        raise RequestError(
            422, subject="image", expected="an image file", got="none",
            hint="Send it as the body, or as the file of a form (multipart/form-data).",
        )  # fmt: skip


def _file_response(body: bytes, kind: str, name: str, task: str) -> Response:
    stem = name.rpartition(".")[0] or name
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in stem)
    ending = "png" if kind == "plot" else kind
    headers = {"Content-Disposition": f'inline; filename="{safe}_{task}.{ending}"', "Vary": "Accept"}
    return Response(body, media_type=MEDIA_TYPES[kind], headers=headers)


def _task_answer(task: str) -> dict[str, Any]:
    """Return the OpenAPI description of an answer."""
    others = dict.fromkeys(MEDIA_TYPES[kind] for kind in kinds_of(task) if kind != "json")
    content = {"application/json": {"schema": result_schemas()[task]}}
    return {"description": "The result.", "content": content | {media: {"schema": _BINARY} for media in others}}


def _task_request(task: str, *, stored: bool = False) -> dict[str, Any]:
    """Return the OpenAPI description of a request."""
    schema = IMAGE_OPTIONS[task].model_json_schema()
    parameters = [
        {"name": name, "in": "query", "schema": one, "description": one.get("description", "")}
        for name, one in schema["properties"].items()
    ] if "properties" in schema else []  # fmt: skip
    parameters.append(
        {
            "name": "as",
            "in": "query",
            "schema": {"type": "string", "enum": list(kinds_of(task))},
            "description": "Kind of the answer, instead of the header Accept.",
        }
    )
    if stored:
        return {"parameters": parameters, "requestBody": {"content": {"application/json": {"schema": schema}}}}
    parameters.append(
        {"name": "url", "in": "query", "schema": {"type": "string"}, "description": "Address of an image."}
    )
    parameters.append(
        {"name": "name", "in": "query", "schema": {"type": "string"}, "description": "Name of the image."}
    )
    form = {"type": "object", "properties": {"image": _BINARY, **schema.get("properties", {})}}
    content = {"image/*": {"schema": _BINARY}, "multipart/form-data": {"schema": form}}
    return {"parameters": parameters, "requestBody": {"required": True, "content": content}}


# ------------------------------------------------------------------------------------------------ stored images


def _add_images(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/images",
        status_code=201,
        summary="Store an image; with a SAM 2 model, with its embedding.",
        responses=_ERRORS,
        openapi_extra={"requestBody": {"required": True, "content": {
            "image/*": {"schema": _BINARY},
            "multipart/form-data": {"schema": {"type": "object", "properties": {"image": _BINARY}}},
        }}},
    )  # fmt: skip
    async def store(request: Request) -> ImageInfo:
        if "segment" in service.queues:
            service.queues["segment"].check_space()
        async with service.uploads.read(request) as upload:
            if upload.fields:
                EmptyOptions.read(upload.fields)
            _require_image(upload.body)
            image = await service.store(request, upload.body, upload.name, request.state.owner)
        return _image_info(service, image)

    @app.get("/v1/images/{image_id}", summary="A stored image.", responses=_ERRORS)
    async def image_info(request: Request, image_id: Id) -> ImageInfo:
        return _image_info(service, service.images.get(image_id, request.state.owner))

    @app.delete("/v1/images/{image_id}", status_code=204, summary="Remove a stored image.", responses=_NO_CONTENT)
    async def remove_image(request: Request, image_id: Id) -> Response:
        service.images.remove(image_id, request.state.owner)
        return Response(status_code=204)

    for task in service.queues:
        app.post(
            f"/v1/images/{{image_id}}/{task}",
            summary=f"Of a stored image: {TASKS[task].summary}",
            operation_id=f"stored_{task}",
            responses={200: _task_answer(task), **_ERRORS},
            response_class=Response,
            openapi_extra=_task_request(task, stored=True),
        )(_stored_handler(service, task))

    @app.post("/v1/images/{image_id}/{task}", include_in_schema=False)
    async def other_task(request: Request, image_id: Id, task: str) -> Response:
        with contextlib.suppress(InputError):
            task = find_task(task).name
        service.queue(task)
        return await _stored_handler(service, task)(request, image_id)


class EmptyOptions(TaskOptions):
    """No options."""


def _stored_handler(service: Service, task: str) -> Callable[[Request, str], Awaitable[Response]]:
    async def handle(request: Request, image_id: Id) -> Response:
        image = service.images.get(image_id, request.state.owner)
        async with service.uploads.read(request) as upload:
            if upload.body:
                raise RequestError(422, subject="body", expected="options as JSON", got="a file")
            kind = choose_kind(task, accept=request.headers.get("accept"), asked=upload.fields.pop("as", None))
            options = IMAGE_OPTIONS[task].read(upload.fields)
        if task == "segment" and image.embedding is not None:
            body = await service.segment(request, image, options, kind)
        else:
            body = await service.answer(request, task, image.body, image.name, options, kind)
        return _file_response(body, kind, image.name, task)

    return handle


def _image_info(service: Service, image: StoredImage) -> ImageInfo:
    return ImageInfo(
        id=image.id,
        name=image.name,
        size_hw=list(image.size_hw),
        embedded=image.embedding is not None,
        bytes=image.nbytes,
        expires_in=service.settings.limits.image_seconds,
    )


# ------------------------------------------------------------------------------------------------ jobs


def _add_jobs(app: FastAPI, service: Service) -> None:
    jobs = service.jobs

    def info(job: Job) -> JobInfo:
        return _job_info(service, job)

    @app.post(
        "/v1/jobs",
        status_code=201,
        summary="Process a video, images, or a ZIP archive of them.",
        responses=_ERRORS,
        openapi_extra=_job_request(service),
    )
    async def create(request: Request) -> JobInfo:
        async with jobs.intake() as intake:
            fields = await _read_job(service, request, intake)
            task = _job_task(service, fields.pop("task", None))
            options = JOB_OPTIONS[task].read(fields)
            options.check_prompts(service.settings.limits.prompts)
            return info(jobs.create(intake, task, request.state.owner, options.arguments()))

    @app.get("/v1/jobs", summary="All jobs, the newest first.", responses=_ERRORS)
    async def list_jobs(request: Request) -> JobList:
        return JobList(jobs=[info(job) for job in jobs.of_owner(request.state.owner)])

    @app.get("/v1/jobs/{job_id}", summary="State, progress and results of a job.", responses=_ERRORS)
    async def job_info(request: Request, job_id: Id) -> JobInfo:
        return _job_info(service, jobs.get(job_id, request.state.owner), running_files=True)

    @app.get(
        "/v1/jobs/{job_id}/events",
        summary="Progress as server-sent events, each with a job, until it ends.",
        responses={200: {"content": {"text/event-stream": {}}}, **_ERRORS},
        response_class=StreamingResponse,
    )
    async def events(request: Request, job_id: Id) -> StreamingResponse:
        jobs.get(job_id, request.state.owner)
        return StreamingResponse(
            _job_events(service, job_id, request.state.owner),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    @app.get("/v1/jobs/{job_id}/files/{name:path}", summary="A result of a job.", responses=_ERRORS)
    async def job_file(request: Request, job_id: Id, name: str) -> FileResponse:
        path = jobs.files(jobs.get(job_id, request.state.owner)).get(name)  # never a path of the client's
        if path is None:
            raise not_found("file", repr(name[:80]), "The job lists its files.")
        return FileResponse(path, media_type=_file_type(name), filename=file_name(name))

    @app.get(
        "/v1/jobs/{job_id}/archive",
        summary="All results of a job as a ZIP archive.",
        responses={200: {"content": {"application/zip": {}}}, **_ERRORS},
        response_class=StreamingResponse,
    )
    async def archive(request: Request, job_id: Id) -> StreamingResponse:
        job = jobs.get(job_id, request.state.owner)
        headers = {"Content-Disposition": f'attachment; filename="{job.task}_{job.id[:8]}.zip"'}
        return StreamingResponse(zip_chunks(jobs.files(job)), media_type="application/zip", headers=headers)

    @app.post("/v1/jobs/{job_id}/cancel", summary="Stop a job; its results so far stay.", responses=_ERRORS)
    async def cancel(request: Request, job_id: Id) -> JobInfo:
        return info(await jobs.cancel(jobs.get(job_id, request.state.owner)))

    @app.delete("/v1/jobs/{job_id}", status_code=204, summary="Stop and remove a job.", responses=_NO_CONTENT)
    async def delete(request: Request, job_id: Id) -> Response:
        await jobs.delete(jobs.get(job_id, request.state.owner))
        return Response(status_code=204)


def _job_request(service: Service) -> dict[str, Any]:
    tasks = {"type": "string", "enum": list(service.settings.models)}
    files = {"type": "array", "items": _BINARY}
    form = {"type": "object", "properties": {"task": tasks, "files": files}}
    return {
        "parameters": [
            {"name": "task", "in": "query", "schema": tasks, "description": "The task; see job_options in /v1/models."},
            {"name": "name", "in": "query", "schema": {"type": "string"}, "description": "Name of the file: clip.mp4."},
        ],
        "requestBody": {
            "required": True,
            "content": {
                "video/*": {"schema": _BINARY},
                "image/*": {"schema": _BINARY},
                "application/zip": {"schema": _BINARY},
                "multipart/form-data": {"schema": form},
            },
        },
    }  # fmt: skip


def _job_task(service: Service, name: object) -> str:
    """Return the task of a job."""
    known = [task for task in service.settings.models if task in JOB_OPTIONS]
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


async def _read_job(service: Service, request: Request, intake: Intake) -> dict[str, Any]:
    """Write the files of a request into the folder of a job, and return the options."""
    limits = service.settings.limits
    fields: dict[str, Any] = dict(request.query_params)
    limited = LimitedRequest(request, limits.job_upload_bytes, limits.upload_seconds * 10)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        async with limited.form(max_files=limits.job_files) as form:
            for name, value in form.multi_items():
                if not isinstance(value, UploadFile):
                    fields[name] = value
                    continue
                with intake.open_file() as file:
                    while chunk := await value.read(_CHUNK):
                        file.write(chunk)
                await asyncio.to_thread(intake.add_upload, file_name(value.filename), value.content_type or "")
        if "options" in fields:
            fields |= read_json_object(str(fields.pop("options")).encode())
        return fields
    name = file_name(fields.pop("name", "file"))
    if "options" in fields:
        fields |= read_json_object(str(fields.pop("options")).encode())
    _job_task(service, fields.get("task"))  # before the upload
    size = 0
    with intake.open_file() as file:
        async for chunk in limited.chunks():
            size += len(chunk)
            file.write(chunk)
    if size:
        await asyncio.to_thread(intake.add_upload, name, media_type)
    return fields


async def _job_events(service: Service, job_id: str, owner: str | None) -> AsyncIterator[str]:
    """Yield an event for each change of a job."""
    last, silent = "", 0.0
    while not service.stopping.is_set():
        try:
            job = service.jobs.get(job_id, owner)
        except RequestError:
            yield "event: deleted\ndata: {}\n\n"
            return
        text = json.dumps(_job_info(service, job).model_dump())
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


def _job_info(service: Service, job: Job, *, running_files: bool = False) -> JobInfo:
    files = []
    for name, path in service.jobs.files(job).items() if running_files or job.state in FINAL else ():
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            href = f"/v1/jobs/{job.id}/files/{quote(name)}"
            files.append(JobFile(name=name, bytes=size, media_type=_file_type(name), href=href))
    return JobInfo(
        id=job.id,
        task=job.task,
        state=job.state,
        progress=round(job.progress, 4),
        done=job.done,
        failed=job.failed,
        total=len(job.sources),
        frame=job.frame,
        frames=job.frames,
        sources=list(job.sources.values()),
        failures=list(job.failures),
        bytes=job.bytes,
        created=job.created,
        started=job.started,
        finished=job.finished,
        files=files,
    )


def _file_type(name: str) -> str:
    endings = [ending for ending in FILE_TYPES if name.lower().endswith(ending)]
    return FILE_TYPES[max(endings, key=len)] if endings else "application/octet-stream"
