"""Connections of clients, which are closed if the header of a request does not arrive in time.

A connection waits for a header from its start, and after each answer. If there are too many connections, the one whose
time is up first is closed for a new one, so that clients that open connections and send nothing shut nobody out.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from vitruvian.serving.settings import ServerLimits

MAX_HEADER_BYTES = 1 << 16
_order = itertools.count()


def connection_class(limits: ServerLimits, protocol: type[asyncio.Protocol] = AutoHTTPProtocol) -> type[Any]:
    """Return a protocol of uvicorn with limits for headers, for `uvicorn.Config(http=…)`."""
    return type("Connection", (_LimitedConnection, protocol), {"limits": limits})


class _LimitedConnection(asyncio.Protocol):
    """What is added to a protocol of uvicorn. Of that it uses methods, and these attributes."""

    limits: ClassVar[ServerLimits]
    connections: set[Any]  # all of the server
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any  # the last request whose header is complete

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._header_bytes = 0  # since it waits
        self._deadline: asyncio.TimerHandle | None = None  # while it waits for a header
        self._waits_since = 0  # among all that wait; times of the loop may be equal

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for a header; close another connection if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            waiting = [connection for connection in self.connections if connection._deadline is not None]
            min(waiting, key=lambda connection: connection._waits_since, default=self)._close()
        self._start_or_stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; a header that is too large ends the connection."""
        if self._deadline is not None and not self._has_more_body():
            self._header_bytes += len(data)
        super().data_received(data)
        self._start_or_stop_waiting()
        if self._deadline is not None and self._header_bytes > MAX_HEADER_BYTES:
            self._close()

    def on_response_complete(self) -> None:
        """Wait for the header of the next request."""
        super().on_response_complete()  # type: ignore[misc]  # of uvicorn
        self._start_or_stop_waiting()

    def _has_more_body(self) -> bool:
        """Return whether the last request was answered before all of it had arrived: the rest is read, and dropped."""
        return self.cycle is not None and self.cycle.more_body

    def _start_or_stop_waiting(self) -> None:
        """Start or stop to wait for a header."""
        answered = self.cycle is None or self.cycle.response_complete
        if not answered or self.transport.is_closing():
            self._stop_waiting()
        elif self._deadline is None:
            self._header_bytes = 0
            seconds = self.limits.upload_seconds if self._has_more_body() else self.limits.header_seconds
            self._deadline, self._waits_since = self.loop.call_later(seconds, self._close), next(_order)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self._stop_waiting()
        self.transport.close()  # after what is left to send
