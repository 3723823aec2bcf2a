"""The process of a job: a command that ends when its standard input does.

That is at cancellation, at shutdown, and when the server is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from vitruvian.filesystem.json_files import write_json

_NAMES = "names.json"  # in the folder of a job: what the client calls its files
_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 8192  # of its messages
_STOP_SECONDS = 15.0  # for a process to end


class JobProcess:
    """A command that runs in the folder of a job. `start` makes one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        self._process = process
        self._messages = asyncio.create_task(_tail(process.stderr))

    @classmethod
    async def start(cls, command: Sequence[str], folder: Path, names: Mapping[str, str]) -> JobProcess:
        """Start a command; `names` are the client's names of its input files."""
        await asyncio.to_thread(write_json, folder / _NAMES, names)
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=os.environ | {"VITRUVIAN_STOP_WITH_STDIN": "1", "VITRUVIAN_INPUT_NAMES": _NAMES},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the server
        )
        return cls(process)

    async def lines(self) -> AsyncIterator[bytes]:
        """Iterate over the lines of its standard output, of any length, until it is closed."""
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line
        if rest:
            yield rest

    async def wait(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the last messages."""
        return await self._process.wait(), await self._messages

    async def stop(self) -> None:
        """Interrupt the command and wait for its end; kill it if that takes too long."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


def failure_reason(code: int, messages: str) -> str:
    """Return why a command failed, from its exit code and its last messages."""
    lines = [line.removeprefix("Error: ") for line in messages.splitlines() if line.strip()]
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"job: its process was ended by {signal.Signals(-code).name}."
    return lines[-1] if lines else f"job: its process ended with the code {code}."


async def _tail(stream: asyncio.StreamReader) -> str:
    """Read a stream to its end, and return the end of it."""
    tail = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        tail = (tail + chunk)[-_TAIL_BYTES:]
    return tail.decode("utf-8", "replace")
