"""Jobs of the command line that are killed at random times, then run to their end: nothing is lost or wrong.

    python -m tests.fuzz.kill_loop --kills 500

This process imports everything once, and forks a child for each job; every tenth round starts the real command instead.
A round disturbs a job a few times (SIGKILL, SIGINT or SIGTERM at a random time, sometimes two jobs at once, sometimes
with another option), runs it to its end, and compares every file with those of an undisturbed run, byte for byte. A job
that is not killed ends with 0, or with 1 and a message that names what failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.debug_log import last_exception

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
MAX_KILLS = 4  # in one round
MAX_SECONDS = 60.0  # of a job that is not disturbed
_ROUNDS_PER_COMMAND = 10  # one round in so many starts the real command
_IMAGES, _FRAMES = 5, 14  # one frame a second: two segments
_TRACKED = "mp4,json,png,crops,vis.json"
JOURNAL = ".vitruvian.jsonl"


class Jobs:
    """Commands on tiny models: their inputs, how they are started, and what they must produce.

    Attributes:
        commands: Each with an option for another result.
        expected: The files of an undisturbed run, of each command.
        seconds: How long the last run of each command took.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._child(_make_inputs, root)  # in a child: this process runs no torch operation, whose threads forks lose
        track = ["track", "-m", "track", "clip.mp4", "--save", _TRACKED, "--keep-state", "--points"]
        normals = ["normals", "-m", "normals", "--detect", "whole"]
        self.commands = {
            "images": ([*normals, "images", "--save", "png,npz,plot"], ["--convention", "opencv"]),
            "video": ([*normals, "clip.mp4", "--save", "mp4,json,npz"], ["--convention", "opencv"]),
            "track": ([*track, "1@0:22,12"], ["--points", "2@0:60,40"]),
        }
        self.expected: dict[str, dict[str, bytes]] = {}
        self.seconds = dict.fromkeys(self.commands, 0.0)
        for name in self.commands:
            code, log = self.finish(name, f"expected-{name}")
            assert code == 0, log
            self.expected[name] = contents(root / f"expected-{name}")
            for module in (root / "modules").read_text().split():
                with contextlib.suppress(Exception):  # those that are made at run time
                    importlib.import_module(module)  # once, rather than in every child

    def start(self, name: str, out: str, *, real: bool = False, other: bool = False) -> int:
        """Start a job in a child, and return its process id.

        Args:
            name: The command.
            out: Its output folder.
            real: Whether the child runs `python -m vitruvian`.
            other: Whether it has the option for another result.
        """
        words, option = self.commands[name]
        words = [*words, *(option if other else []), "-o", out, "--debug"]
        return self._fork(_execute_command if real else _run_command, words, self.root)

    def finish(self, name: str, out: str, *, real: bool = False) -> tuple[int, str]:
        """Run a job to its end; return its exit code and what it printed."""
        start = time.monotonic()
        code = _exit_code(self.start(name, out, real=real), MAX_SECONDS)
        if not real:
            self.seconds[name] = time.monotonic() - start
        return code, (self.root / "log").read_text(errors="replace")

    def _child(self, function: object, *arguments: object) -> None:
        assert _exit_code(self._fork(function, *arguments), MAX_SECONDS) == 0

    @staticmethod
    def _fork(function: object, *arguments: object) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 70
        try:
            code = function(*arguments)  # type: ignore[operator]
        except KeyboardInterrupt:  # before the command has begun
            code = 130
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code or 0)


def _make_inputs(root: Path) -> int:
    import numpy as np
    from PIL import Image

    from tests.helpers.pipelines import parts_of, sample_image
    from tests.unit.files.clips import make_clip

    for task in ("normals", "track"):
        for one in parts_of(task):
            one.save_pretrained(root / task)
    (root / "images").mkdir()
    for number in range(_IMAGES):
        Image.fromarray(sample_image(number, (120, 160))).save(root / "images" / f"{number:03d}.png")
    scene = sample_image(4, (96, 128))
    make_clip(root / "clip.mp4", [np.roll(scene, number, 1) for number in range(_FRAMES)], rate=1)
    return 0


def _run_command(words: Sequence[str], root: Path) -> int:
    """Run a command in a child, as `vitruvian` would, with its output in a file."""
    import torch

    from vitruvian.cli import run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    _print_to_log(root)
    torch.set_num_threads(1)
    before = set(sys.modules)
    code = run(words)
    sys.stdout.flush()
    sys.stderr.flush()
    (root / "modules").write_text(" ".join(sorted(sys.modules.keys() - before)))
    return code


def _execute_command(words: Sequence[str], root: Path) -> int:
    """Become `python -m vitruvian`, with its output in a file."""
    _print_to_log(root)
    os.execv(sys.executable, [sys.executable, "-m", "vitruvian", *words])


def _print_to_log(root: Path) -> None:
    log = os.open(root / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(root)


def _exit_code(pid: int, seconds: float) -> int:
    """Wait for a child; kill it when it takes too long, which gives -9."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder but the journal."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != JOURNAL]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def disturb(jobs: Jobs, name: str, out: str, rng: random.Random, counts: Counter[str], *, real: bool) -> None:
    """Start one or two jobs at once and kill one at a random time."""
    started = time.monotonic()
    other = rng.randrange(4) == 0
    children = [jobs.start(name, out, real=real, other=other) for _ in range(rng.choice((1, 1, 2)))]
    number = rng.choice(SIGNALS)
    journal = jobs.root / out / JOURNAL
    if real:  # imports take most of its time: they are over when it writes its journal
        size = _size(journal)
        while _size(journal) == size and _is_running(children[0]) and time.monotonic() - started < MAX_SECONDS:
            time.sleep(0.005)
    time.sleep(rng.uniform(0, jobs.seconds[name]))
    with contextlib.suppress(ProcessLookupError):
        os.kill(children[0], number)
    codes = [_exit_code(child, MAX_SECONDS) for child in children]
    killed = codes[0] in (-number, 130)
    counts["kills"] += killed
    counts[signal.Signals(number).name] += killed
    counts["of the real command"] += killed and real
    counts["with another option"] += killed and other
    counts["of two at once"] += killed and len(children) == 2
    counts["ended before the signal"] += not killed
    log = (jobs.root / "log").read_text(errors="replace")
    wrong = any(code not in (0, 1, 130, -number) for code in codes) or _is_raw(log)
    if wrong or time.monotonic() - started > MAX_SECONDS:
        raise AssertionError(f"exit codes {codes} after {signal.Signals(number).name}: {log}")


def _is_raw(log: str) -> bool:
    """Return whether a log ends with the traceback of an exception that is not ours."""
    return not (last_exception(log) or "vitruvian.").startswith(("vitruvian.", "KeyboardInterrupt"))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_running(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def run_round(jobs: Jobs, rng: random.Random, counts: Counter[str]) -> str | None:
    """Disturb a job a few times and run it to its end; return what is wrong with its files, or None."""
    name, out = rng.choice(list(jobs.commands)), "out"
    real = counts["rounds"] % _ROUNDS_PER_COMMAND == 1
    shutil.rmtree(jobs.root / out, ignore_errors=True)
    for _ in range(rng.randrange(1, MAX_KILLS + 1)):
        disturb(jobs, name, out, rng, counts, real=real)
    code, log = jobs.finish(name, out, real=real)
    counts["rounds"] += 1
    if code:
        return f"{name}: exit code {code}: {log}"
    wrong = difference(jobs.expected[name], contents(jobs.root / out))
    return wrong and f"{name}: {wrong}"


def difference(expected: dict[str, bytes], got: dict[str, bytes]) -> str | None:
    """Say how files differ from the expected ones, or return None."""
    wrong = {
        "missing": expected.keys() - got.keys(),
        "left over": got.keys() - expected.keys(),
        "different": {name for name in expected.keys() & got.keys() if expected[name] != got[name]},
    }
    return "; ".join(f"{kind}: {', '.join(sorted(names))}" for kind, names in wrong.items() if names) or None


def run_full_disk(jobs: Jobs, counts: Counter[str]) -> str | None:
    """Run a job on a disk that is too small, then with enough space; return what is wrong, or None.

    Raises:
        PermissionError: This process may not mount a file system.
    """
    disk = jobs.root / "disk"
    disk.mkdir(exist_ok=True)
    # full before the model is opened, and after some results
    for name, size in (("images", 64 << 10), ("images", 256 << 10), ("video", 256 << 10)):
        assert sum(map(len, jobs.expected[name].values())) > size
        _mount(disk, size)
        try:
            code, log = jobs.finish(name, "disk/out")
            if code == 0 or "No space left on device" not in log or _is_raw(log):
                return f"{name} on {size:,} bytes: exit code {code}: {log}"
            _mount(disk, 64 << 20, again=True)
            code, log = jobs.finish(name, "disk/out")
            wrong = f"exit code {code}: {log}" if code else difference(jobs.expected[name], contents(disk / "out"))
            if wrong:
                return f"{name} after a disk of {size:,} bytes: {wrong}"
            counts["full disks"] += 1
        finally:
            subprocess.run(["umount", str(disk)], check=True, capture_output=True)
    return None


def _mount(disk: Path, size: int, *, again: bool = False) -> None:
    options = f"remount,size={size}" if again else f"size={size}"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=False, capture_output=True)
    if done.returncode:
        raise PermissionError(done.stderr.decode().strip())


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in counts.items())


def main() -> int:
    """Run the loop and print its figures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the files of a round that went wrong")
    arguments = parser.parse_args()
    import tests.helpers.pipelines  # noqa: F401 - imports torch and vitruvian, for all children
    import vitruvian.cli.commands.image_tasks  # noqa: F401

    rng, counts = random.Random(arguments.seed), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        jobs = Jobs(Path(folder))
        wrong = None
        while counts["kills"] < arguments.kills and wrong is None:
            wrong = run_round(jobs, rng, counts)
            if counts["rounds"] % 20 == 0:
                print(_text(counts), flush=True)
        if wrong is None:
            try:
                wrong = run_full_disk(jobs, counts)
            except PermissionError as error:
                print(f"full disk skipped: {error}")
        if wrong is not None and arguments.keep is not None:
            shutil.copytree(folder, arguments.keep / f"kills-{arguments.seed}", dirs_exist_ok=True)
    print(_text(counts))
    print(f"wrong or lost results: {wrong or 0}")
    return int(wrong is not None)


if __name__ == "__main__":
    sys.exit(main())
