"""Health, metrics, and what is served."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field

from vitruvian.human import LAYOUTS, PART_COLORS, PART_NAMES
from vitruvian.serving.errors import RequestError
from vitruvian.serving.media_types import MEDIA_TYPES, formats_of
from vitruvian.serving.metrics import CONTENT_TYPE
from vitruvian.serving.routes.shared import ERRORS
from vitruvian.serving.service import Service
from vitruvian.serving.settings import Settings
from vitruvian.serving.task_requests import IMAGE_REQUESTS, JOB_REQUESTS
from vitruvian.tasks import TASKS
from vitruvian.version import __version__


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
    arguments: dict[str, str] = Field(description="The pipeline's argument for each option that is one, in Python.")


class ModelList(BaseModel):
    """What is served."""

    version: str
    models: list[ModelInfo]
    detector: str | None = Field(description="What detects people, unless the model does.")
    urls: bool = Field(description="Whether `url` is allowed.")
    limits: dict[str, int]


def add_status(app: FastAPI, service: Service) -> None:
    """Add the routes about the server itself."""

    @app.get("/healthz", summary="Whether the server runs.", response_class=PlainTextResponse)
    async def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    @app.get("/readyz", summary="Whether all models are loaded.", responses=ERRORS, response_class=PlainTextResponse)
    async def readyz() -> PlainTextResponse:
        waiting = [task for task, queue in service.queues.items() if queue.state != "ready"]
        if waiting:
            raise RequestError(
                503, headers={"Retry-After": "2"}, subject="models", expected="loaded models",
                got=f"{', '.join(waiting)} still loading",
            )  # fmt: skip
        return PlainTextResponse("ready\n")

    @app.get("/metrics", summary="Metrics for Prometheus.", responses=ERRORS, response_class=PlainTextResponse)
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
    formats = [] if queue is None else formats_of(task)
    return ModelInfo(
        task=task,
        summary=row.summary,
        model=_shown_name(service.settings, task),
        state="ready" if queue is None else queue.state,
        device=None if pipe is None else str(pipe.device),
        dtype=None if pipe is None else str(pipe.model.dtype).removeprefix("torch."),
        images=queue is not None,
        jobs=task in JOB_REQUESTS,
        kinds=list(formats),
        media_types={file_format: MEDIA_TYPES[file_format] for file_format in formats},
        options=IMAGE_REQUESTS[task].model_json_schema() if task in IMAGE_REQUESTS else {},
        job_options=JOB_REQUESTS[task].model_json_schema(),
        arguments=(IMAGE_REQUESTS.get(task) or JOB_REQUESTS[task]).call_names(),
    )


def _shown_name(settings: Settings, task: str) -> str:
    """Return the name of a checkpoint; with API keys, whose clients are elsewhere, without folders of this machine."""
    name = settings.models[task]
    return name.rstrip("/").rpartition("/")[2] if settings.keys and name.startswith(("/", ".", "~")) else name
