"""Forms (multipart/form-data), parsed while they arrive: nothing of a file is kept here, in memory or on the disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from vitruvian.errors import one_line
from vitruvian.serving.errors import RequestError, too_large

MULTIPART = "multipart/form-data"
_MAX_FIELDS = 64
MAX_FIELD_BYTES = 1 << 20


class FormField(NamedTuple):
    """A field."""

    name: str
    value: str


@dataclass(frozen=True)
class FormFile:
    """A file. Its chunks are read before the next part of the form."""

    name: str
    media_type: str
    chunks: AsyncIterator[bytes]


async def read_form(
    content_type: str, body: AsyncIterator[bytes], *, max_files: int
) -> AsyncIterator[FormField | FormFile]:
    """Yield the parts of a form in their order.

    Raises:
        RequestError: The form is malformed or ends before its last boundary (400), or has too many parts (413).
    """
    parser = _FormParser(content_type, max_files)

    async def read_events() -> AsyncIterator[_Event]:
        async for data in body:
            for event in parser.parse(data):
                yield event
        parser.check_end()

    events = read_events()
    async for event in events:
        if isinstance(event, FormField):
            yield event
        elif isinstance(event, _FileStart):
            chunks = _until_end(events)
            yield FormFile(event.name, event.media_type, chunks)
            async for _ in chunks:  # what the caller has not read
                pass


class _FileStart(NamedTuple):
    name: str
    media_type: str


_Event = FormField | _FileStart | bytes | None  # a field; the start, the content, and the end of a file


async def _until_end(events: AsyncIterator[_Event]) -> AsyncIterator[bytes]:
    """Yield the content of a file."""
    async for event in events:
        if event is None:
            return
        assert isinstance(event, bytes)
        yield event


class _FormParser:
    """Turns bytes into events."""

    def __init__(self, content_type: str, max_files: int) -> None:
        self._max_files, self._files, self._fields = max_files, 0, 0
        self._events: list[_Event] = []
        self._header_name, self._header_value = b"", b""
        self._headers: dict[bytes, bytes] = {}
        self._field_name: str | None = None  # None in a file
        self._value = bytearray()
        self._ended = False
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise _malformed("one without a boundary")
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._headers.clear,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise _malformed(one_line(error).rstrip(".")) from None

    def parse(self, data: bytes) -> list[_Event]:
        """Return what a chunk of the body contains."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(one_line(error).rstrip(".")) from None
        events, self._events = self._events, []
        return events

    def check_end(self) -> None:
        """Raise an error if the last boundary is missing."""
        if not self._ended:
            raise RequestError(400, subject="form", expected="its last boundary", got="the end of the upload")

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        if b"name" not in options:
            raise _malformed("a part without a name")
        self._field_name = None
        if b"filename" in options:
            self._files += 1
            if self._files > self._max_files:
                raise too_large("form", self._max_files, "files")
            media_type = _text(self._headers.get(b"content-type", b"")).partition(";")[0].strip().lower()
            self._events.append(_FileStart(_text(options[b"filename"]), media_type))
            return
        self._fields += 1
        if self._fields > _MAX_FIELDS:
            raise too_large("form", _MAX_FIELDS, "fields")
        self._field_name = _text(options[b"name"])

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field_name is None:
            self._events.append(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            raise too_large("form", MAX_FIELD_BYTES, "bytes in a field")

    def _on_part_end(self) -> None:
        if self._field_name is None:
            self._events.append(None)
        else:
            self._events.append(FormField(self._field_name, _text(bytes(self._value))))
            self._value.clear()

    def _on_end(self) -> None:
        self._ended = True


def _malformed(got: str) -> RequestError:
    return RequestError(400, subject="form", expected=f"a form ({MULTIPART})", got=got)


def _text(data: bytes) -> str:
    """Decode a name or a value."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")
