"""The socket that the server listens on."""

from __future__ import annotations

import socket

from vitruvian.serving.server import _listen


def test_connections_do_not_wait_for_acknowledgements() -> None:
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()[:2]):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
