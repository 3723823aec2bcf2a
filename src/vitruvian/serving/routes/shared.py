"""What routes have in common: stored images and videos, descriptions for /openapi.json, and answers with files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Path, Request, Response
from pydantic import BaseModel, Field

from vitruvian.serving.errors import ErrorBody, RequestError
from vitruvian.serving.lru_store import ItemT, LruStore
from vitruvian.serving.media_types import MEDIA_TYPES, formats_of
from vitruvian.serving.schemas import result_schemas
from vitruvian.serving.task_requests import IMAGE_REQUESTS, JOB_REQUESTS
from vitruvian.tasks import file_extension

_ID = r"^[A-Za-z0-9_-]{22}$"
Id = Annotated[str, Path(pattern=_ID)]
_SUFFIX = "-Options"  # answers may have classes of the same name, in another form
_REFERENCE = "#/components/schemas/{model}" + _SUFFIX
BINARY = {"type": "string", "format": "binary"}
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
NO_CONTENT: dict[int | str, dict[str, Any]] = {204: {"description": "Done."}, **ERRORS}


def file_route(media_type: str) -> dict[str, Any]:
    """Return the keywords of a route that answers with a file."""
    content = {media_type: {"schema": BINARY}}
    return {"responses": {200: {"content": content}, **ERRORS}, "response_class": Response}


class StoredInfo(BaseModel):
    """A stored image or video."""

    id: str
    name: str
    size_hw: list[int] = Field(description="Height and width of the upright image or frame.")
    bytes: int
    expires_in: int = Field(description="Seconds without use after which it is removed.")


def stored_fields(item: ItemT, store: LruStore[ItemT]) -> dict[str, Any]:
    """Return the fields of `StoredInfo` for an item."""
    return {
        "id": item.id,
        "name": item.name,
        "size_hw": list(item.size_hw),
        "bytes": item.nbytes,
        "expires_in": store.seconds,
    }


def add_stored(
    app: FastAPI,
    store: LruStore[ItemT],
    receive: Callable[[Request], Awaitable[ItemT]],
    describe: Callable[[ItemT], StoredInfo],
    schema: type[StoredInfo],
    *,
    summary: str,
) -> None:
    """Add the routes that store an item, show it and remove it; `receive` reads it from a request."""
    kind = store.kind
    path = f"/v1/{kind}s"
    form = {"schema": {"type": "object", "properties": {kind: BINARY}}}
    content = {f"{kind}/*": {"schema": BINARY}, "multipart/form-data": form}

    @app.post(
        path,
        status_code=201,
        summary=summary,
        responses=ERRORS,
        response_model=schema,
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )
    async def store_item(request: Request) -> StoredInfo:
        return describe(await receive(request))

    item_path, id_name = f"{path}/{{{kind}_id}}", f"{kind}_id"

    @app.get(item_path, summary=f"A stored {kind}.", responses=ERRORS, response_model=schema)
    async def show_item(request: Request, item_id: str = Path(alias=id_name, pattern=_ID)) -> StoredInfo:
        return describe(store.get(item_id, request.state.owner))

    @app.delete(item_path, status_code=204, summary=f"Remove a stored {kind}.", responses=NO_CONTENT)
    async def remove_item(request: Request, item_id: str = Path(alias=id_name, pattern=_ID)) -> Response:
        store.remove(item_id, request.state.owner)
        return Response(status_code=204)


def require_image(body: bytes) -> None:
    """Raise an error 422 for an empty body."""
    if not body:
        raise RequestError(
            422, subject="image", expected="an image file", got="none",
            hint="Send it as the body, or as the file of a form (multipart/form-data).",
        )  # fmt: skip


def file_response(body: bytes, file_format: str, name: str, task: str) -> Response:
    """Return a result file, with the name that the command line would give it."""
    stem = name.rpartition(".")[0] or name
    end = f"_{task}{file_extension(file_format)}"
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in stem)
    disposition = f'inline; filename="{safe}{end}"'
    if safe != stem:
        disposition += f"; filename*=utf-8''{quote(stem + end, errors='replace')}"
    headers = {"Content-Disposition": disposition, "Vary": "Accept"}
    return Response(body, media_type=MEDIA_TYPES[file_format], headers=headers)


def task_answer(task: str) -> dict[str, Any]:
    """Return the OpenAPI description of an answer."""
    others = dict.fromkeys(MEDIA_TYPES[file_format] for file_format in formats_of(task) if file_format != "json")
    content = {"application/json": {"schema": result_schemas()[task]}}
    return {"description": "The result.", "content": content | {media: {"schema": BINARY} for media in others}}


def query_parameter(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    """Return the OpenAPI description of a parameter in the query."""
    return {"name": name, "in": "query", "schema": schema, "description": description}


def job_options(task: str) -> dict[str, Any]:
    """Return the OpenAPI description of the options of a job; `add_schemas` adds what it refers to."""
    return {"$ref": _REFERENCE.format(model=JOB_REQUESTS[task].__name__)}


def add_schemas(description: dict[str, Any], tasks: Iterable[str]) -> None:
    """Add the options of jobs to the OpenAPI description of the server."""
    schemas = description["components"]["schemas"]
    for task in tasks:
        schema = JOB_REQUESTS[task].model_json_schema(ref_template=_REFERENCE)
        parts = schema.pop("$defs", {})
        for name, part in {JOB_REQUESTS[task].__name__: schema, **parts}.items():
            schemas[f"{name}{_SUFFIX}"] = part


def task_request(task: str, *, stored: bool = False, urls: bool = False) -> dict[str, Any]:
    """Return the OpenAPI description of a request; `stored` if the image is there, `urls` if it may be an address."""
    schema = IMAGE_REQUESTS[task].model_json_schema()
    fields = schema.get("properties", {})
    formats = {"type": "string", "enum": list(formats_of(task))}
    parameters = [query_parameter(name, field, field.get("description", "")) for name, field in fields.items()]
    parameters.append(query_parameter("as", formats, "Kind of the answer, instead of the header Accept."))
    if stored:
        return {"parameters": parameters, "requestBody": {"content": {"application/json": {"schema": schema}}}}
    parameters.append(query_parameter("name", {"type": "string"}, "Name of the image."))
    form = {"type": "object", "properties": {"image": BINARY, **fields}}
    content = {"image/*": {"schema": BINARY}, "multipart/form-data": {"schema": form}}
    if urls:
        url = {"type": "string", "description": "Address of an image, in place of one."}
        parameters.append(query_parameter("url", url, url["description"]))
        content["application/json"] = {"schema": {**schema, "properties": {"url": url, **fields}}}
    return {"parameters": parameters, "requestBody": {"required": not urls, "content": content}}
