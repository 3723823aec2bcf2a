"""`POST /v1/{task}`: an image, and its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response

from vitruvian.serving.media_types import choose_format
from vitruvian.serving.routes.shared import ERRORS, file_response, require_image, task_answer, task_request
from vitruvian.serving.service import Service
from vitruvian.serving.task_requests import IMAGE_REQUESTS
from vitruvian.tasks import TASKS


def add_tasks(app: FastAPI, service: Service) -> None:
    """Add a route for each task."""
    for task in service.queues:
        app.post(
            f"/v1/{task}",
            summary=TASKS[task].summary,
            operation_id=task,
            responses={200: task_answer(task), **ERRORS},
            response_class=Response,
            openapi_extra=task_request(task, urls=service.settings.allow_urls),
        )(_task_handler(service, task))

    @app.post("/v1/{task}", include_in_schema=False)
    async def other_task(request: Request, task: str) -> Response:
        """Answer for aliases of tasks, and say how to serve tasks without a model."""
        return await _task_handler(service, service.served_task(task))(request)


def _task_handler(service: Service, task: str) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        service.queues[task].check_space()  # before the upload
        async with service.uploads.read(request) as upload:
            file_format = choose_format(task, accept=request.headers.get("accept"), asked=upload.fields.pop("as", None))
            options = IMAGE_REQUESTS[task].read(upload.fields)
            require_image(upload.body)
            body = await service.answer(request, task, upload.body, upload.name, options, file_format)
        return file_response(body, file_format, upload.name, task)

    return handle
