"""`/v1/images`: stored images, and tasks on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from pydantic import Field

from vitruvian.serving.media_types import choose_format
from vitruvian.serving.request_bodies import read_options
from vitruvian.serving.routes.shared import (
    ERRORS,
    Id,
    StoredInfo,
    add_stored,
    file_response,
    require_image,
    stored_fields,
    task_answer,
    task_request,
)
from vitruvian.serving.service import Service
from vitruvian.serving.stored_images import StoredImage
from vitruvian.serving.task_requests import IMAGE_REQUESTS, TaskRequest
from vitruvian.tasks import TASKS


class ImageInfo(StoredInfo):
    """A stored image."""

    embedded: bool = Field(description="Whether its embedding is computed; the first prompt waits for it.")


def add_images(app: FastAPI, service: Service) -> None:
    """Add the routes of stored images."""

    async def receive(request: Request) -> StoredImage:
        async with service.uploads.read(request) as upload:
            TaskRequest.read(upload.fields)  # none are known
            require_image(upload.body)
            return await service.store(request, upload.body, upload.name, request.state.owner)

    def describe(image: StoredImage) -> ImageInfo:
        return ImageInfo(**stored_fields(image, service.images), embedded=image.embedding is not None)

    summary = "Store an image; with a SAM 2 model, its embedding follows in the background."
    add_stored(app, service.images, receive, describe, ImageInfo, summary=summary)

    for task in service.queues:
        app.post(
            f"/v1/images/{{image_id}}/{task}",
            summary=f"Of a stored image: {TASKS[task].summary}",
            operation_id=f"stored_{task}",
            responses={200: task_answer(task), **ERRORS},
            response_class=Response,
            openapi_extra=task_request(task, stored=True),
        )(_stored_handler(service, task))

    @app.post("/v1/images/{image_id}/{task}", include_in_schema=False)
    async def other_task(request: Request, image_id: Id, task: str) -> Response:
        return await _stored_handler(service, service.served_task(task))(request, image_id)


def _stored_handler(service: Service, task: str) -> Callable[[Request, str], Awaitable[Response]]:
    async def handle(request: Request, image_id: Id) -> Response:
        image = service.images.get(image_id, request.state.owner)
        fields = await read_options(request)
        file_format = choose_format(task, accept=request.headers.get("accept"), asked=fields.pop("as", None))
        options = IMAGE_REQUESTS[task].read(fields)
        if task == "segment":
            body = await service.segment(request, image, options, file_format)
        else:
            body = await service.answer(request, task, image.body, image.name, options, file_format, stored=image)
        return file_response(body, file_format, image.name, task)

    return handle
