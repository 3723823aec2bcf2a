"""What routes have in common: types of parameters, descriptions for /openapi.json, and answers with files."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Response

from vitruvian.serving.content import MEDIA_TYPES, kinds_of
from vitruvian.serving.errors import ErrorBody, RequestError
from vitruvian.serving.options import IMAGE_OPTIONS
from vitruvian.serving.schemas import result_schemas
from vitruvian.tasks import file_extension

Id = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{22}$")]
BINARY = {"type": "string", "format": "binary"}
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
NO_CONTENT: dict[int | str, dict[str, Any]] = {204: {"description": "Done."}, **ERRORS}


def require_image(body: bytes) -> None:
    """Raise an error 422 for an empty body."""
    if not body:
        raise RequestError(
            422, subject="image", expected="an image file", got="none",
            hint="Send it as the body, or as the file of a form (multipart/form-data).",
        )  # fmt: skip


def file_response(body: bytes, kind: str, name: str, task: str) -> Response:
    """Return a result file, with the name that the command line would give it."""
    stem = name.rpartition(".")[0] or name
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in stem)
    headers = {"Content-Disposition": f'inline; filename="{safe}_{task}{file_extension(kind)}"', "Vary": "Accept"}
    return Response(body, media_type=MEDIA_TYPES[kind], headers=headers)


def file_request(kind: str) -> dict[str, Any]:
    """Return the OpenAPI description of a request with a file: an "image" or a "video", as the body or in a form."""
    form = {"schema": {"type": "object", "properties": {kind: BINARY}}}
    content = {f"{kind}/*": {"schema": BINARY}, "multipart/form-data": form}
    return {"requestBody": {"required": True, "content": content}}


def task_answer(task: str) -> dict[str, Any]:
    """Return the OpenAPI description of an answer."""
    others = dict.fromkeys(MEDIA_TYPES[kind] for kind in kinds_of(task) if kind != "json")
    content = {"application/json": {"schema": result_schemas()[task]}}
    return {"description": "The result.", "content": content | {media: {"schema": BINARY} for media in others}}


def task_request(task: str, *, stored: bool = False) -> dict[str, Any]:
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
    form = {"type": "object", "properties": {"image": BINARY, **schema.get("properties", {})}}
    content = {"image/*": {"schema": BINARY}, "multipart/form-data": {"schema": form}}
    return {"parameters": parameters, "requestBody": {"required": True, "content": content}}
