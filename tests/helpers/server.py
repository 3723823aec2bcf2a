"""Servers for tests: in a process of its own, or in a thread, and a client that speaks plain HTTP."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import uvicorn
from PIL import Image

from tests.helpers.pipelines import sample_image
from vitruvian.serving.app import create_app
from vitruvian.serving.server import server_config
from vitruvian.serving.service import Service
from vitruvian.serving.settings import Settings

_START_SECONDS = 120


@dataclass
class Answer:
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]  # type: ignore[no-any-return]


@dataclass
class Client:
    """Sends requests to a server, each over a connection of its own. Thread-safe."""

    address: str
    headers: dict[str, str] = field(default_factory=dict)

    def connect(self, timeout: float = 60) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=timeout)

    def __call__(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        *,
        headers: dict[str, str] | None = None,
        **query: object,
    ) -> Answer:
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in query.items()}
        sent = self.headers | (headers or {})
        if isinstance(body, dict):
            body, sent = json.dumps(body).encode(), sent | {"Content-Type": "application/json"}
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, quote(path, safe="/%") + ("?" + urlencode(texts) if texts else ""), body, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def get(self, path: str, **options: Any) -> Answer:
        return self("GET", path, **options)

    def post(self, path: str, body: bytes | dict[str, Any] | None = None, **options: Any) -> Answer:
        return self("POST", path, body, **options)

    def delete(self, path: str) -> Answer:
        return self("DELETE", path)

    def wait_for_job(self, job_id: str, states: tuple[str, ...] = ("done", "failed", "cancelled")) -> dict[str, Any]:
        """Wait until a job is in one of these states."""
        return wait(lambda: job if (job := self.get(f"/v1/jobs/{job_id}").json)["state"] in states else None)

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        lines = self.get("/metrics").body.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}(\{{|\s)", line))


def wait(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """Wait until a condition is true, and return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)
    return value


def form(*parts: tuple[str, str | None, bytes]) -> tuple[bytes, dict[str, str]]:
    """Return the body and the header of a form: field name, file name or None, content."""
    boundary, body = "----8f6f2a", io.BytesIO()
    for name, file, content in parts:
        disposition = f'form-data; name="{name}"' + ("" if file is None else f'; filename="{file}"')
        body.write(f"--{boundary}\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + content + b"\r\n")
    body.write(f"--{boundary}--\r\n".encode())
    return body.getvalue(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def jpeg(seed: int = 0, size_hw: tuple[int, int] = (40, 56)) -> bytes:
    """Return an image file."""
    stream = io.BytesIO()
    Image.fromarray(sample_image(seed, size_hw)).save(stream, "JPEG", quality=92)
    return stream.getvalue()


def archive(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a ZIP archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as target:
        for name, content in files.items():
            target.writestr(name, content)
    return stream.getvalue()


def opened(body: bytes) -> np.ndarray:
    """Return the pixels of an image file."""
    with Image.open(io.BytesIO(body)) as image:
        image.load()
        return np.asarray(image)


class ServerProcess:
    """`vitruvian serve` in a process of its own, on a free port."""

    def __init__(self, *arguments: object, cwd: Path) -> None:
        command = [sys.executable, "-m", "vitruvian", "serve", "--port", "0", *(str(one) for one in arguments)]
        self.process = subprocess.Popen(
            command, cwd=cwd, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.messages: list[str] = []
        threading.Thread(target=lambda: self.messages.extend(self.process.stderr), daemon=True).start()  # type: ignore[arg-type]
        found = wait(lambda: self._address() or self.process.poll(), _START_SECONDS)
        assert isinstance(found, str), "".join(self.messages)
        self.client = Client(found)
        wait(lambda: self.client.get("/readyz").status == 200, _START_SECONDS)

    def _address(self) -> str | None:
        found = re.search(r"at (http://\S+);", "".join(self.messages))
        return None if found is None else found[1]

    def stop(self) -> int:
        """End the server as a service manager does, and return its exit code."""
        self.process.terminate()
        return self.process.wait(60)

    def kill(self) -> None:
        """End the server without warning."""
        self.process.kill()
        self.process.wait(60)


@contextlib.contextmanager
def local_server(settings: Settings) -> Iterator[tuple[Client, Service]]:
    """Run a server in a thread of this process."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(settings)
    server = uvicorn.Server(server_config(app, settings.limits))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
    try:
        wait(lambda: client.get("/readyz").status == 200)
        yield client, app.state.service
    finally:
        app.state.service.stopping.set()
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
