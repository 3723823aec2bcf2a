"""`/v1/images`: stored images, and tasks on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field

from vitruvian.serving.content import choose_kind
from vitruvian.serving.images import StoredImage
from vitruvian.serving.options import IMAGE_OPTIONS, TaskOptions
from vitruvian.serving.routes.shared import (
    ERRORS,
    NO_CONTENT,
    Id,
    file_request,
    file_response,
    require_image,
    task_answer,
    task_request,
)
from vitruvian.serving.service import Service
from vitruvian.serving.uploads import read_options
from vitruvian.tasks import TASKS


class ImageInfo(BaseModel):
    """A stored image."""

    id: str
    name: str
    size_hw: list[int] = Field(description="Height and width of the upright image.")
    embedded: bool = Field(description="Whether prompts are answered from its embedding.")
    bytes: int
    expires_in: int = Field(description="Seconds without use after which it is removed.")


def add_images(app: FastAPI, service: Service) -> None:
    """Add the routes of stored images."""

    @app.post(
        "/v1/images",
        status_code=201,
        summary="Store an image; with a SAM 2 model, with its embedding.",
        responses=ERRORS,
        openapi_extra=file_request("image"),
    )
    async def store(request: Request) -> ImageInfo:
        if "segment" in service.queues:
            service.queues["segment"].check_space()
        async with service.uploads.read(request) as upload:
            TaskOptions.read(upload.fields)  # none are known
            require_image(upload.body)
            image = await service.store(request, upload.body, upload.name, request.state.owner)
        return _image_info(service, image)

    @app.get("/v1/images/{image_id}", summary="A stored image.", responses=ERRORS)
    async def image_info(request: Request, image_id: Id) -> ImageInfo:
        return _image_info(service, service.images.get(image_id, request.state.owner))

    @app.delete("/v1/images/{image_id}", status_code=204, summary="Remove a stored image.", responses=NO_CONTENT)
    async def remove_image(request: Request, image_id: Id) -> Response:
        service.images.remove(image_id, request.state.owner)
        return Response(status_code=204)

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
        kind = choose_kind(task, accept=request.headers.get("accept"), asked=fields.pop("as", None))
        options = IMAGE_OPTIONS[task].read(fields)
        if task == "segment" and image.embedding is not None:
            body = await service.segment(request, image, options, kind)
        else:
            body = await service.answer(request, task, image.body, image.name, options, kind)
        return file_response(body, kind, image.name, task)

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
