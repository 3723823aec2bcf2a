"""The application of the server. `routes` has its paths; docs/serving.md lists them, /openapi.json has the details."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from vitruvian.errors import VitruvianError
from vitruvian.serving.errors import CLIENT_CLOSED_REQUEST, RequestError, error_response, status_of, wrong_value
from vitruvian.serving.middleware import AccessMiddleware
from vitruvian.serving.page import add_page
from vitruvian.serving.routes.images import add_images
from vitruvian.serving.routes.jobs import add_jobs, job_tasks
from vitruvian.serving.routes.shared import add_schemas
from vitruvian.serving.routes.status import add_status
from vitruvian.serving.routes.tasks import add_tasks
from vitruvian.serving.routes.videos import add_videos
from vitruvian.serving.service import Service
from vitruvian.serving.settings import Settings
from vitruvian.version import __version__

_log = logging.getLogger("vitruvian.serving")


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
        redirect_slashes=False,
    )
    app.state.service = service
    add_page(app)
    add_status(app, service)
    add_images(app, service)
    add_videos(app, service)
    add_jobs(app, service)
    add_tasks(app, service)
    for kind in (VitruvianError, HTTPException, RequestValidationError, ClientDisconnect):
        app.add_exception_handler(kind, _on_error)
    app.openapi = partial(_describe, app.openapi, service)  # type: ignore[method-assign]
    app.add_middleware(AccessMiddleware, settings=settings, metrics=service.metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "x-api-key", "content-type", "accept"],
            expose_headers=["content-disposition", "retry-after"],
        )
    return app


def _describe(openapi: Callable[[], dict[str, Any]], service: Service) -> dict[str, Any]:
    """Return the description of the server with the options of jobs, and the two ways to send an API key."""
    schema = openapi()
    add_schemas(schema, job_tasks(service))
    if not service.settings.keys:
        return schema
    bearer = {"type": "http", "scheme": "bearer"}
    header = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    schema["components"]["securitySchemes"] = {"bearer": bearer, "header": header}
    schema["security"] = [{"bearer": []}, {"header": []}]
    return schema


async def _on_error(request: Request, error: Exception) -> Response:
    """Answer with an error. `AccessMiddleware` does so for unexpected ones."""
    if isinstance(error, RequestValidationError):
        error = wrong_value(error.errors()[0])
    elif isinstance(error, HTTPException):
        text = {404: "a path of this server", 405: "another method"}.get(error.status_code, "another request")
        got = f"{request.method} {request.url.path[:80]}"
        parts = {"subject": "request", "expected": text, "got": got, "hint": "See /openapi.json."}
        headers = {"Allow": _allowed(request)} if error.status_code == 405 else {}
        if headers and request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
        error = RequestError(error.status_code, headers=headers, **parts)
    elif isinstance(error, ClientDisconnect):
        error = RequestError(CLIENT_CLOSED_REQUEST, subject="client", expected="the whole request", got="a part of it")
    elif status_of(error) == 500:
        _log.error("%s %s", request.method, request.url.path, exc_info=error)
    return error_response(error)


def _allowed(request: Request) -> str:
    """Return the methods of a path: those of all its routes."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
    methods = {method for route in routes for method in getattr(route, "methods", None) or ()}
    return ", ".join(sorted(methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())))
