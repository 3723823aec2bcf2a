"""What a command printed with --debug."""

from __future__ import annotations

import re


def last_exception(log: str) -> str | None:
    """Return the full name of the exception in the last traceback of a log, if there is one."""
    raised = re.findall(r"^    .*\n([\w.]+)(?::|$)", log, re.MULTILINE)  # what follows the lines of code
    return raised[-1] if raised else None
