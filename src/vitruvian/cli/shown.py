"""Numbers as people say them, and JSON as machines read it."""

from __future__ import annotations

import json
import sys
from typing import Any


def shown_bytes(size: float) -> str:
    """Return a number of bytes as people say it."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def shown_millions(millions: float) -> str:
    """Return a number of parameters as people say it."""
    return f"{millions / 1000:.2f} B" if millions >= 1000 else f"{millions:g} M"


def print_json(values: Any) -> None:
    """Print JSON on standard output."""
    sys.stdout.write(json.dumps(values, ensure_ascii=False, indent=2, default=str) + "\n")


def shown_seconds(seconds: float) -> str:
    """Return a length of time as people say it."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
