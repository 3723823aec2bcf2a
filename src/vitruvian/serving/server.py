"""Runs the application with uvicorn, until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from vitruvian.errors import InputError
from vitruvian.serving.app import create_app
from vitruvian.serving.connections import MAX_HEADER_BYTES, connection_class
from vitruvian.serving.settings import ServerLimits, Settings

_DRAIN_SECONDS = 30  # for open requests at the end


def run_server(settings: Settings, *, on_start: Callable[[str], object]) -> None:
    """Serve until a signal ends it; requests that were accepted are answered first.

    Args:
        settings: What the server is started with.
        on_start: Called with the address when it listens; models may still be loading.

    Raises:
        VitruvianError: A model cannot be opened, or the address is in use.
    """
    failures: list[Exception] = []

    def fail(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    with _listen(settings.host, settings.port) as listener:
        app = create_app(settings, on_failure=fail)
        server = _Server(server_config(app, settings.limits), on_exit=app.state.service.stopping.set)
        host, port = listener.getsockname()[:2]
        on_start(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        server.run(sockets=[listener])
    if failures:
        raise failures[0]


def server_config(app: FastAPI, limits: ServerLimits) -> uvicorn.Config:
    """Return the configuration of uvicorn."""
    return uvicorn.Config(
        app,
        http=connection_class(limits),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        proxy_headers=False,  # nothing depends on the address of a client
        lifespan="on",
    )


class _Server(uvicorn.Server):
    """Tells the application about a signal before it waits for open requests, some of which would never end."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End after open requests; a second Ctrl-C ends immediately. The signal is not raised again afterwards."""
        self._on_exit()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InputError(f"--port: expected an address to listen on, got {host}:{port} ({error.strerror}).") from error
    # Connections inherit it. asyncio sets it only for sockets with an explicit protocol; without it the body of an
    # answer, which is sent after its head, waits up to 40 ms for the client's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
