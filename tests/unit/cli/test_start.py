"""How commands begin and end: garbage looked for rarely, then as usual; nothing lost by leaving at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAVING = """
import atexit, threading, time
from concurrent.futures import ThreadPoolExecutor
from vitruvian.cli.start import leave

atexit.register(lambda: print("handler"))
pool = ThreadPoolExecutor(1)  # its thread waits for work: whoever only joins it waits for ever
pool.submit(print, "pool", flush=True).result()
threading.Thread(target=lambda: (time.sleep(0.2), print("thread", flush=True))).start()
print("unflushed", end=" ")
leave(CODE)
"""


def test_garbage_is_looked_for_rarely_at_the_start_only() -> None:
    code = """
import gc
from vitruvian.cli.start import RARELY, USUAL, settle, start
settle()
assert gc.get_threshold() == USUAL and gc.get_freeze_count() == 0
start()
assert gc.get_threshold() == RARELY != USUAL
settle()
assert gc.get_threshold() == USUAL and gc.get_freeze_count() > 0
kept = gc.get_freeze_count()
settle()
assert gc.get_freeze_count() == kept
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", [0, 1])
def test_leaving_waits_and_loses_nothing(code: int) -> None:
    text = LEAVING.replace("CODE", str(code))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stdout.split() == ["pool", "unflushed", "thread", "handler"]


def test_interrupted_leaves_at_once() -> None:
    text = LEAVING.replace("CODE", "130").replace("0.2", "60")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout.split()) == (130, ["pool", "unflushed"]), done.stderr


def test_one_command_reads_itself_alone() -> None:
    code = """
import sys
from vitruvian.cli import run
assert run(["pose", "--help"]) == 0
names = ("pose", "parts", "train", "doctor", "models")
print("modules:", [name for name in names if f"vitruvian.cli.{name}" in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "modules: ['pose']", done.stderr
