"""Read JSON and other text files within `Limits.json_bytes` and `Limits.json_depth`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitruvian.errors import CheckpointError, InputError, VitruvianError
from vitruvian.limits import get_limits


def read_text(path: Path, *, error: type[VitruvianError] = InputError, encoding: str = "utf-8") -> str:
    """Return the text of a file; one that is too large is an `error`."""
    limits = get_limits()
    with path.open("rb") as file:
        content = file.read(limits.json_bytes + 1)
    limits.check("json_bytes", len(content), subject=str(path), error=error)
    return content.decode(encoding)


def read_json(path: Path, *, error: type[VitruvianError] = InputError, encoding: str = "utf-8") -> Any:
    """Return the value in a JSON file; what is no JSON, too large or too deep is an `error`."""
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


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a checkpoint; anything else is a `CheckpointError`."""
    value = read_json(path, error=CheckpointError)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}. Is this the right file?")
    return value


def _depth(value: object) -> int:
    """Return the levels of nested lists and objects."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [child for one in level for child in (one.values() if isinstance(one, dict) else one)]
    return depth
