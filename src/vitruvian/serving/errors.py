"""Errors of requests: status, headers and a JSON body.

    {"error": {"message", "subject", "expected", "got", "hint"}}

`message` is the whole text; the others are its parts, null where the error has no such part.
"""

from __future__ import annotations

import errno
import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse

from vitruvian.errors import (
    CheckpointError,
    ConfigError,
    ImageError,
    InputError,
    MissingExtraError,
    PrivateAddressError,
    VitruvianError,
)

CLIENT_CLOSED_REQUEST = 499  # nginx's; for the log and the metrics, no client reads it
_OPTION_NAMES = {"K": "intrinsics"}  # arguments of pipelines under other names than the options of requests
_SEND_LESS = "Send less, or ask for a higher limit."
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_FILE = re.compile(r"(\S.{0,400}?): ")


class ErrorParts(BaseModel):
    """An error: the whole message, and its parts."""

    message: str
    subject: str | None = None
    expected: str | None = None
    got: str | None = None
    hint: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer that is not 2xx."""

    error: ErrorParts


class RequestError(VitruvianError):
    """An error with a status of its own.

    Args:
        status: The HTTP status.
        fields: Subject, expected, got and hint, see `VitruvianError`.
        headers: Further headers of the answer.
    """

    def __init__(self, status: int, *, headers: dict[str, str] | None = None, **fields: Any) -> None:
        super().__init__(**fields)
        self.status, self.headers = status, headers or {}


def not_found(subject: str, got: str, hint: str) -> RequestError:
    """Return an error 404."""
    return RequestError(404, subject=subject, expected="one that exists", got=got, hint=hint)


def too_many(subject: str, limit: int, what: str, *, retry_seconds: int) -> RequestError:
    """Return an error 429 for a limit that is reached for now."""
    return RequestError(
        429,
        headers={"Retry-After": str(retry_seconds)},
        subject=subject,
        expected=f"at most {limit:,} {what}",
        got="more",
        hint=f"Try again in {retry_seconds} seconds.",
    )


def too_large(subject: str, limit: int, what: str, got: str = "more") -> RequestError:
    """Return an error 413 for an upload beyond a limit."""
    return RequestError(
        413,
        subject=subject,
        expected=f"at most {limit:,} {what}",
        got=got,
        hint=_SEND_LESS,
    )


def wrong_value(error: Mapping[str, Any]) -> RequestError:
    """Return the error about a value that Pydantic refuses: 404 for a part of the path, 422 for an option."""
    place, *parts = error["loc"] or ("options",)
    in_path = place == "path"
    if place in ("path", "query"):
        place, *parts = parts
    subject = str(place) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return RequestError(
        404 if in_path else 422, subject=subject, expected=_expectation(error), got=repr(error["input"])[:80]
    )


def _expectation(error: Mapping[str, Any]) -> str:
    """Return what was expected."""
    kind, limits = error["type"], error.get("ctx", {})
    if kind in ("too_short", "too_long"):
        most, count = ("least", limits["min_length"]) if kind == "too_short" else ("most", limits["max_length"])
        return f"at {most} {count} item{'' if count == 1 else 's'}"
    if kind == "int_parsing_size":
        return "a smaller integer"
    text = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ").partition(", unable to")[0]
    return str(text[:1].lower() + text[1:])


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error means that there is no space on the disk."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in _DISK_FULL


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error."""
    if is_disk_full(error):
        return 507
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, VitruvianError) and error.limit is not None:
        return 413
    if isinstance(error, MissingExtraError):
        return 501
    if isinstance(error, PrivateAddressError):
        return 403
    if isinstance(error, InputError):
        return 503 if error.subject == "memory" else 415 if isinstance(error, ImageError) else 422
    return 503 if isinstance(error, CheckpointError | ConfigError) else 500


def _error_parts(error: BaseException) -> ErrorParts:
    """Return the parts of an error for the client. Unexpected errors are only logged."""
    if is_disk_full(error):
        error = VitruvianError(
            subject="disk",
            expected="space for files",
            got="none left",
            hint="Try again later, or delete finished jobs.",
        )
    if not isinstance(error, VitruvianError):
        advice = "It is a bug of the server: its log has the details."
        return ErrorParts(message=f"server: unexpected error. {advice}", subject="server", hint=advice)
    if error.limit is not None:  # which the client cannot raise
        error = VitruvianError(subject=error.subject, expected=error.expected, got=error.got, hint=_SEND_LESS)
    subject = error.subject
    if subject is not None:
        subject = " and ".join(_OPTION_NAMES.get(name, name) for name in subject.split(" and "))
    message = error.detail if subject is None else error.about(subject)
    if subject is None and (found := _FILE.match(error.detail)):  # the name of a file may be in the text
        subject = found[1]
    return ErrorParts(message=message, subject=subject, expected=error.expected, got=error.got, hint=error.hint)


def error_response(error: BaseException) -> JSONResponse:
    """Return the answer for an error."""
    headers = error.headers if isinstance(error, RequestError) else {}
    return JSONResponse(ErrorBody(error=_error_parts(error)).model_dump(), status_of(error), headers)
