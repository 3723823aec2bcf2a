"""What every request passes: limits, host and origin, API key, security headers, metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitruvian.serving.auth import find_key
from vitruvian.serving.errors import RequestError, error_response, too_many
from vitruvian.serving.metrics import Metrics
from vitruvian.serving.settings import Settings, is_loopback

_log = logging.getLogger("vitruvian.serving")
# Scripts and styles only from the server itself, none inline; pages of other sites cannot embed it.
_POLICY = {
    "default-src": "'self'",
    "img-src": "'self' blob: data:",
    "media-src": "'self' blob:",
    "connect-src": "'self' blob:",
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), geolocation=(), microphone=()",
}
_PROTECTED = ("/v1/", "/metrics", "/openapi.json")
_UNLIMITED = ("/healthz", "/readyz", "/metrics")  # answered by a busy server too, so that it is not taken for dead
_READS = ("GET", "HEAD", "OPTIONS")


class AccessMiddleware:
    """Checks requests before the application sees them, and counts them."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, answered = time.monotonic(), 500, asyncio.Event()
        without_body = scope["method"] == "HEAD"

        async def wait_for_answer() -> Message:  # a stream ends where its client has gone
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered.set()
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith(_PROTECTED):
                    headers.setdefault("Cache-Control", "no-store")
            elif without_body:
                message = {**message, "body": b""}
            await send(message)

        if without_body:  # answered as GET is
            scope, receive = {**scope, "method": "GET"}, wait_for_answer
        self._active += 1
        try:
            self._check(scope)
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            if answered.is_set():
                raise
            if not isinstance(error, RequestError):
                _log.error("%s %s", scope["method"], scope["path"], exc_info=error)
            await error_response(error)(scope, receive, send_with_headers)
        finally:
            self._active -= 1
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.request_seconds.labels(route).observe(time.monotonic() - started)

    def _check(self, scope: Scope) -> None:
        """Raise a `RequestError` unless a request is allowed; set its owner."""
        settings, headers = self._settings, Headers(scope=scope)
        if self._active > settings.limits.requests and scope["path"] not in _UNLIMITED:
            raise too_many("requests", settings.limits.requests, "at the same time", retry_seconds=1)
        host = headers.get("host", "")
        if not settings.keys and not is_loopback(_split_url(f"//{host}").hostname or ""):
            # A page of another site whose name resolves to this machine must not reach a server without keys.
            raise RequestError(
                421, subject="Host", expected="localhost or 127.0.0.1", got=repr(host[:80]),
                hint="To serve other names, start with --api-key-file.",
            )  # fmt: skip
        origin = headers.get("origin")
        foreign = origin is not None and origin not in settings.cors_origins and _split_url(origin).netloc != host
        if foreign and scope["method"] not in _READS:
            raise RequestError(
                403, subject="Origin", expected="a page of this server", got=repr(str(origin)[:80]),
                hint="Allow it with --cors-origin.",
            )  # fmt: skip
        owner = None
        if settings.keys and scope["path"].startswith(_PROTECTED) and scope["method"] != "OPTIONS":
            scheme, _, bearer = headers.get("authorization", "").partition(" ")
            given = headers.get("x-api-key", bearer.strip() if scheme.lower() == "bearer" else "")
            key = find_key(settings.keys, given)
            if key is None:
                raise RequestError(
                    401, headers={"WWW-Authenticate": "Bearer"}, subject="API key", expected="a valid one",
                    got="none or another", hint="Send it as Authorization: Bearer KEY, or as X-API-Key: KEY.",
                )  # fmt: skip
            owner = key.name
        scope.setdefault("state", {})["owner"] = owner


def _split_url(url: str) -> SplitResult:
    """Return the parts of a URL, none of a text that is not one."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")
