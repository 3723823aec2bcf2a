"""The socket that the server listens on, and connections that send no requests."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.helpers.server import Client, local_server, wait
from vitruvian.serving import server
from vitruvian.serving.connections import connection_class
from vitruvian.serving.server import _listen
from vitruvian.serving.settings import ServerLimits, Settings

HALF_A_HEADER = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


def test_connections_do_not_wait_for_acknowledgements() -> None:
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()[:2]):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.fixture(params=[HttpToolsProtocol, H11Protocol], autouse=True)
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both protocols of uvicorn, which chooses by what is installed."""
    monkeypatch.setattr(server, "connection_class", partial(connection_class, protocol=request.param))


@contextlib.contextmanager
def serve(data: Path, **limits: int) -> Iterator[Client]:
    with local_server(Settings(models={}, data=data, limits=ServerLimits(**limits))) as (client, _):
        yield client


def connect(client: Client, sent: bytes) -> socket.socket:
    address = urlsplit(client.address)
    connection = socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60)
    connection.sendall(sent)
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    """Wait until a connection is closed, and return what came before."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1000):
            received += part
    return received


@pytest.mark.parametrize("sent", [b"", HALF_A_HEADER, HALF_A_HEADER + b"\r\n"])
def test_a_connection_without_the_header_of_a_request_is_closed(sent: bytes, tmp_path: Path) -> None:
    with serve(tmp_path, header_seconds=1) as client, connect(client, sent) as connection:
        if sent.endswith(b"\r\n\r\n"):
            answer = b""
            while not answer.endswith(b"\r\n\r\nok\n"):  # the body may come after the header
                part = connection.recv(1000)
                assert part, answer
                answer += part
            assert b"200 OK" in answer
            connection.sendall(HALF_A_HEADER)  # of the next request
        assert read_to_end(connection) == b""
        assert client.get("/healthz").status == 200


def test_a_header_that_arrives_byte_by_byte_is_not_waited_for(tmp_path: Path) -> None:
    with serve(tmp_path, header_seconds=1) as client, connect(client, HALF_A_HEADER) as connection:
        connection.settimeout(0.1)

        def send_byte() -> bool:
            try:
                connection.sendall(b"x")
                return connection.recv(1000) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait(send_byte, seconds=60)


def test_a_large_header_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path) as client, connect(client, HALF_A_HEADER) as connection:
        with contextlib.suppress(OSError):
            for _ in range(200):
                connection.sendall(b"X: " + b"x" * 1000 + b"\r\n")
        assert b"200" not in read_to_end(connection)


def test_slow_requests_and_answers_are_no_slow_headers(tmp_path: Path) -> None:
    head = b"POST /v1/images HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n"
    with serve(tmp_path, header_seconds=1) as client, connect(client, head) as connection:
        for byte in b"image":
            time.sleep(0.4)
            connection.sendall(bytes([byte]))
        assert b"415" in connection.recv(1000)


def test_an_upload_that_is_refused_early_is_read_to_its_end(tmp_path: Path) -> None:
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    with serve(tmp_path, header_seconds=1) as client, connect(client, head) as connection:
        assert b"404" in connection.recv(1000)
        connection.sendall(bytes(1_000_000) + HALF_A_HEADER + b"\r\n")
        assert b"200 OK" in read_to_end(connection)


def test_silent_connections_shut_nobody_out(tmp_path: Path) -> None:
    with serve(tmp_path, connections=5) as client, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(client, HALF_A_HEADER)) for _ in range(40)]
        assert [client.get("/healthz").status for _ in range(20)] == [200] * 20
        assert all(read_to_end(connection) == b"" for connection in silent[:35])
