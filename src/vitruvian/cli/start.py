"""How a command begins and ends without delay: torch brings half a million objects, and none of them is garbage."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
from typing import NoReturn

from vitruvian.cli.report import INTERRUPTED

USUAL = gc.get_threshold()
RARELY = 20_000, *USUAL[1:]  # new objects before Python looks for garbage; to look after every few hundred takes long


def start() -> None:
    """Look for garbage rarely: nearly all that is made now stays."""
    gc.set_threshold(*RARELY)


def settle() -> None:
    """After `start`: look for garbage as usual again, but not in what is there by now. The command begins to work."""
    if gc.get_threshold() == RARELY:
        gc.freeze()
        gc.set_threshold(*USUAL)


def leave(code: int) -> NoReturn:
    """End the process as Python would, but leave its memory to the system: to take torch apart first takes long."""
    if code != INTERRUPTED:  # then threads may still be inside torch: there is no waiting for them
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            if stream is not None:
                stream.flush()
    os._exit(code)
