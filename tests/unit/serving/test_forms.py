"""Forms: their parts do not depend on how the body is cut into chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.helpers.server import form
from vitruvian.serving.errors import RequestError
from vitruvian.serving.forms import FormFile, read_form

PARTS = [
    ("task", None, b"pose"),
    ("a", "é 1.jpg", b"\r\n--x\r\n\x00" * 20),
    ("b", "", b""),
    ("name", None, "é".encode()),
]
BODY, HEADERS = form(*PARTS)


def parse(
    body: bytes, chunk: int = 1000, max_files: int = 2, content_type: str = HEADERS["Content-Type"], read: bool = True
) -> list[tuple[str, str | bytes]]:
    """Return the names and contents of the parts of a form that arrives in chunks."""

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), chunk):
            yield body[start : start + chunk]

    async def parts() -> list[tuple[str, str | bytes]]:
        found: list[tuple[str, str | bytes]] = []
        async for part in read_form(content_type, chunks(), max_files=max_files):
            if isinstance(part, FormFile):
                found.append((part.name, b"".join([data async for data in part.chunks]) if read else b""))
            else:
                found.append(tuple(part))
        return found

    return asyncio.run(parts())


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 1000])
def test_parts_in_chunks_of_any_size(chunk: int) -> None:
    assert parse(BODY, chunk) == [("task", "pose"), ("é 1.jpg", PARTS[1][2]), ("", b""), ("name", "é")]
    assert [name for name, _ in parse(BODY, chunk, read=False)] == ["task", "é 1.jpg", "", "name"]


@pytest.mark.parametrize(
    ("body", "content_type", "status", "expected"),
    [
        (BODY[:-20], HEADERS["Content-Type"], 400, "its last boundary"),
        (BODY[: len(BODY) // 2], HEADERS["Content-Type"], 400, "its last boundary"),
        (b"", HEADERS["Content-Type"], 400, "its last boundary"),
        (b"no form", HEADERS["Content-Type"], 400, "a form (multipart/form-data)"),
        (BODY, "multipart/form-data", 400, "a form (multipart/form-data)"),
        (BODY, "multipart/form-data; boundary=" + "x" * 5000, 400, "a form (multipart/form-data)"),
        (BODY.replace(b' name="b";', b""), HEADERS["Content-Type"], 400, "a form (multipart/form-data)"),
        (form(*PARTS, ("c", "c.jpg", b""))[0], HEADERS["Content-Type"], 413, "at most 2 files"),
        (form(*[("x", None, b"")] * 65)[0], HEADERS["Content-Type"], 413, "at most 64 fields"),
        (form(("x", None, bytes(2 << 20)))[0], HEADERS["Content-Type"], 413, "at most 1,048,576 bytes in a field"),
    ],
)
def test_wrong_forms(body: bytes, content_type: str, status: int, expected: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(body, 100_000, content_type=content_type)
    assert (caught.value.status, caught.value.subject, caught.value.expected) == (status, "form", expected)
