"""JSON and other text files: reading within `Limits.json_bytes` and `Limits.json_depth`, and writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitruvian.errors import CheckpointError, InputError, VitruvianError, escape_surrogates
from vitruvian.filesystem.atomic import write_text
from vitruvian.limits import get_limits, read_bounded

JsonObject = dict[str, Any]  # an object in a JSON file: a configuration, a table, fields of a constructor


def read_text(path: Path, *, error: type[VitruvianError] = InputError, encoding: str = "utf-8") -> str:
    """Return the text of a file; one that is too large is an `error`."""
    with path.open("rb") as file:
        return read_bounded(file, "json_bytes", subject=str(path), error=error).decode(encoding)


def read_json(path: Path, *, error: type[VitruvianError] = InputError, encoding: str = "utf-8") -> Any:
    """Return the value in a JSON file; a file that is not JSON, too large or too deep is an `error`."""
    try:
        value = json.loads(read_text(path, error=error, encoding=encoding))
    except RecursionError:
        value = None
        depth = float("inf")
    except VitruvianError:
        raise
    except ValueError as problem:
        raise error(f"{path}: expected JSON, but {problem}. Download or write the file again.") from problem
    else:
        depth = _depth(value)
    get_limits().check("json_depth", depth, subject=str(path), error=error)
    return value


def read_json_object(path: Path) -> JsonObject:
    """Return the object in a JSON file of a checkpoint; anything else is a `CheckpointError`."""
    value = read_json(path, error=CheckpointError)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}. Is this the right file?")
    return value


def write_json(path: str | Path, data: object) -> None:
    """Write JSON in UTF-8, on one line; NaN and infinity are an `InputError`."""
    write_text(path, json_text(data) + "\n")


def json_text(data: object) -> str:
    """Return JSON without spaces, or raise `InputError` for what it cannot hold.

    Bytes of file names that are not UTF-8 (lone surrogates) are escaped, so that the text can be encoded.
    """
    try:
        return escape_surrogates(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except (TypeError, ValueError) as error:
        raise InputError(f"data: expected lists, dicts, finite numbers and text, got {error}.") from error


def _depth(value: object) -> int:
    """Return the levels of nested lists and objects."""
    depth, level = 0, [value]
    while level := [part for part in level if isinstance(part, dict | list)]:
        depth += 1
        level = [child for part in level for child in (part.values() if isinstance(part, dict) else part)]
    return depth
