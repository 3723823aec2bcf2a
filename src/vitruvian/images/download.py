"""Fetch the bytes behind an http(s) address, with limits on waiting and on size."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from typing import IO

from vitruvian.errors import ImageError, InputError
from vitruvian.images.decode import one_line

MAX_BYTES = 512 * 1024**2
_CHUNK_BYTES = 1024**2


def download(url: str, *, timeout: float | None, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the body at `url`. `timeout` is the longest silence in seconds; None waits for ever."""
    if timeout is not None and not timeout > 0:
        raise InputError(f"timeout: expected a positive number of seconds or None, got {timeout}. Try 30.")
    subject = one_line(url)
    # Addresses copied from a browser may hold spaces and letters that HTTP does not carry.
    quoted = urllib.parse.quote(url.strip(), safe="%/:=&?~#+!$,;'@()*[]")
    try:
        request = urllib.request.Request(quoted, headers={"User-Agent": "Mozilla/5.0 (compatible; vitruvian)"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            length = response.headers.get("Content-Length", "")
            announced = int(length) if length.isdecimal() else 0
            if announced > max_bytes:
                raise _too_large(subject, max_bytes)
            body = read_bounded(response, subject=subject, max_bytes=max_bytes)
            if len(body) < announced:  # a closed connection ends the body without an error
                raise _unreachable(subject, f"only {len(body):,} of {announced:,} bytes")
            return body
    except ImageError:
        raise
    except urllib.error.HTTPError as error:
        raise ImageError(
            f"{subject}: expected an image, got HTTP status {error.code} {one_line(error.reason)}. "
            "Check the address, and that it needs no login."
        ) from error
    except (http.client.HTTPException, ValueError, OSError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        silent = isinstance(cause, TimeoutError)
        raise _unreachable(subject, f"no answer (timeout {timeout} s)" if silent else cause) from error


def read_bounded(stream: IO[bytes], *, subject: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Read `stream` to its end, and refuse more than `max_bytes`."""
    parts: list[bytes] = []
    total = 0
    while part := stream.read(_CHUNK_BYTES):
        total += len(part)
        if total > max_bytes:
            raise _too_large(subject, max_bytes)
        parts.append(part)
    return b"".join(parts)


def _too_large(subject: str, max_bytes: int) -> ImageError:
    return ImageError(
        f"{subject}: expected at most {max_bytes // 1024**2} MiB, got more. Save the picture to disk and pass its path."
    )


def _unreachable(subject: str, reason: object) -> ImageError:
    return ImageError(
        f"{subject}: expected an image, got {one_line(reason)}. Check the address and the network connection."
    )
