"""`Limits`: the largest inputs that are accepted. One set for the process, from the environment, options or code.

    VITRUVIAN_MAX_IMAGE_PIXELS=400e6 vitruvian pose scans/
    vitruvian pose scans/ --limit image_pixels=400e6
    vitruvian.set_limits(image_pixels=400_000_000)

Every limit is checked before the memory is allocated or the work begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

from vitruvian.errors import ImageError, InputError, VitruvianError, check_names

_MIB = 2**20
_CHUNK_BYTES = _MIB  # bytes that `read_bounded` reads at a time
_PREFIX = "VITRUVIAN_MAX_"
_UNITS = {"json_depth": "levels of nesting", "config_size": ""}  # units in messages, if the name does not end in one


def check_positive_integers(limits: object) -> None:
    """Raise an error if a field of a dataclass of limits is not a positive integer."""
    for name, value in vars(limits).items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(subject=f"limit {name}", expected="a positive integer", got=repr(value))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The largest inputs that are accepted.

    Args:
        image_pixels: Pixels of an image; less in formats whose decoders need more memory. See
            `vitruvian.images.decode.check_pixel_count`.
        frame_pixels: Pixels of a video frame.
        decoded_bytes: Bytes of decoded images that are in flight in a pipeline. A larger image is processed alone.
        file_bytes: Bytes of an image from standard input, a pipe, a file object or a ``data:`` URL.
        download_bytes: Bytes of the download of an image.
        download_seconds: Seconds that the download of an image may take as a whole.
        people: People that are processed in an image.
        tiles: Tiles of an image.
        json_bytes: Bytes of a JSON, CSV or TOML file.
        json_depth: Nesting of a JSON file.
        config_layers: Layers, stages and blocks in a model configuration or a checkpoint.
        config_labels: Classes in a model configuration.
        config_queries: Queries in a model configuration.
        config_size: Any other integer in a model configuration: channels, heads, image sides.
    """

    image_pixels: int = 178_956_970
    frame_pixels: int = 2**26
    decoded_bytes: int = 1536 * _MIB
    file_bytes: int = 512 * _MIB
    download_bytes: int = 512 * _MIB
    download_seconds: int = 300
    people: int = 1000
    tiles: int = 10_000
    json_bytes: int = 256 * _MIB
    json_depth: int = 64
    config_layers: int = 1000
    config_labels: int = 100_000
    config_queries: int = 10_000
    config_size: int = 65_536

    def __post_init__(self) -> None:
        check_positive_integers(self)

    def check(self, name: str, value: float, *, subject: str, error: type[VitruvianError] = InputError) -> None:
        """Raise `error` if `value` is above the limit `name`."""
        limit: int = getattr(self, name)
        if value > limit:
            problem = error(
                subject=subject,
                expected=f"at most {limit:,} {_UNITS.get(name, name.rpartition('_')[2])}".rstrip(),
                got=f"{value:,}",
                hint=f"If you trust it, raise the limit {name}: {limit_hint(name)}.",
            )
            problem.limit = name
            raise problem


def limit_hint(name: str) -> str:
    """Return how to raise a limit, for messages."""
    return f"--limit {name}=…, {_PREFIX}{name.upper()}=… or vitruvian.set_limits({name}=…)"


def get_limits() -> Limits:
    """Return the limits of this process."""
    return _current


def set_limits(**changes: int) -> Limits:
    """Change limits for the whole process, all threads included, and return the new ones."""
    global _current
    _check_names(changes, "limits")
    _current = dataclasses.replace(_current, **changes)
    return _current


@contextlib.contextmanager
def use_limits(**changes: int) -> Iterator[Limits]:
    """Change limits for the whole process within a ``with`` block."""
    global _current
    before = _current
    try:
        yield set_limits(**changes)
    finally:
        _current = before


def read_bounded(
    stream: IO[bytes],
    limit: str,
    *,
    subject: str,
    error: type[VitruvianError] = ImageError,
    limits: Limits | None = None,
) -> bytes:
    """Read `stream` to its end; more bytes than the limit of this name allows, in `limits` or now, are an `error`."""
    read = getattr(stream, "read1", stream.read)  # returns what there is, where `read` waits for the whole chunk
    parts: list[bytes] = []
    total = 0
    while part := read(_CHUNK_BYTES):
        total += len(part)
        (limits or _current).check(limit, total, subject=subject, error=error)
        parts.append(part)
    return b"".join(parts)


def parse_limits(texts: Mapping[str, str], *, subject: str = "limits") -> dict[str, int]:
    """Return limits by name from texts such as ``{"image_pixels": "4e8"}``."""
    _check_names(texts, subject)
    return parse_numbers(texts, subject=subject)


def parse_numbers(texts: Mapping[str, str], *, subject: str) -> dict[str, int]:
    """Return positive integers by name from texts such as ``"64"`` and ``"4e8"``."""
    parsed = {}
    for name, text in texts.items():
        try:
            value = float(text)
            parsed[name] = int(value)
        except (ValueError, OverflowError):
            value = 0.0
        if not value >= 1 or value != int(value):
            raise InputError(subject=f"{subject} {name}", expected="a positive integer", got=repr(text[:40]))
    return parsed


def _check_names(names: Mapping[str, object], subject: str) -> None:
    known = {field.name for field in dataclasses.fields(Limits)}
    check_names(subject, names, known, expected="the name of a limit")


def limits_from_environment(cls: type[Any]) -> dict[str, int]:
    """Return the limits of a dataclass that environment variables set, such as VITRUVIAN_MAX_IMAGE_PIXELS."""
    variables = {field.name: f"{_PREFIX}{field.name.upper()}" for field in dataclasses.fields(cls)}
    texts = {name: os.environ[variable] for name, variable in variables.items() if os.environ.get(variable)}
    return parse_numbers(texts, subject=f"{_PREFIX}…")


_current = Limits(**limits_from_environment(Limits))
