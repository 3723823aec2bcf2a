"""API keys: random, stored as SHA-256, compared in constant time.

A line of the key file is ``NAME SHA256``. Keys have 256 random bits, so a fast hash is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitruvian.errors import InputError

_LINE = re.compile(r"([\w.@-]{1,64}) ([0-9a-f]{64})")
_NAME = re.compile(r"[\w.@-]{1,64}")


@dataclass(frozen=True)
class ApiKey:
    """The name of a key and its SHA-256."""

    name: str
    sha256: str


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Read a key file; empty lines and those that begin with # are skipped."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except PermissionError as error:
        raise _no_access(path, "read") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise InputError(f"{path}: expected a file of API keys, got {reason}. Create one with --add-key.") from error
    keys = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:  # not quoted in the message: it may be a key
            raise InputError(
                f"{path}: expected a name and a SHA-256 in line {number}, got another text. Add keys with --add-key."
            )
        keys.append(ApiKey(found[1], found[2]))
    if len({key.name for key in keys}) < len(keys):
        raise InputError(f"{path}: expected a different name for each key, got one twice. Remove a line.")
    if not keys:
        raise InputError(f"{path}: expected API keys, got none. Add one with --add-key.")
    return tuple(keys)


def add_key(path: Path, name: str) -> str:
    """Append a new key to a file, which only its owner can read, and return the key. It is stored nowhere."""
    if not _NAME.fullmatch(name):
        raise InputError(f"--add-key: expected a name of letters, digits, . _ @ and -, got {name!r}.")
    key = secrets.token_urlsafe(32)
    try:
        if path.exists() and path.stat().st_size and name in {key.name for key in read_keys(path)}:
            raise InputError(f"--add-key: {name} is in {path} already. Remove its line, or choose another name.")
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as file:
            file.write(f"{name} {_digest(key)}\n")
    except PermissionError as error:
        raise _no_access(path, "write") from error
    except OSError as error:
        raise InputError(f"{path}: expected a file to write, got {error.strerror}.") from error
    return key


def find_key(keys: Sequence[ApiKey], given: str) -> ApiKey | None:
    """Return the key that a client sent, if it is one of `keys`. The time does not depend on which it is."""
    digest, found = _digest(given), None
    for key in keys:
        if hmac.compare_digest(key.sha256, digest):
            found = key
    return found


def _no_access(path: Path, use: str) -> InputError:
    """Return the error about a file that this user may not use."""
    user = f"user {os.geteuid()}" if hasattr(os, "geteuid") else "this user"
    return InputError(
        subject=str(path),
        expected=f"a file of API keys that {user} can {use}",
        got="no permission",
        hint="Change its owner, or add keys as the user that runs the server.",
    )


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
