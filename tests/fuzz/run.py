"""`make fuzz`: every target with fresh seeds in workers that are watched, then the kill loop; prints a table.

    python -m tests.fuzz.run --minutes 30 --kills 500

Targets take turns, so that each has its share of the time also when the run is stopped early. A worker that hangs or
takes too much memory is killed, and another one goes on with the next seed. Inputs that fail are written to out/fuzz/,
with the traceback. The exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.targets import TARGETS

HANG_SECONDS = 10.0  # of CPU time for one input
_IDLE_SECONDS = 60.0  # without an outcome, on however busy a machine
MAX_BYTES = 2 << 30
OUT = Path("out/fuzz")
_POLL_SECONDS = 0.1
_START_SECONDS = 120.0  # of a worker, until its first input
_TURN_SECONDS = 120.0  # of a target at most, before the next one


@dataclass
class Tally:
    """Figures of one target."""

    kinds: Counter[str] = field(default_factory=Counter)
    peak_bytes: int = 0

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.kinds.total()

    @property
    def failures(self) -> int:
        """Number of raw exceptions, hangs, crashes and inputs that take too much memory."""
        return sum(self.kinds[kind] for kind in ("exception", "hang", "crash", "memory"))


class Worker:
    """A process that fuzzes one target; it prints a line of JSON for each input."""

    def __init__(self, target: str, seed: int) -> None:
        self.target, self.seed = target, seed
        self.folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{target}-"))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", target, str(self.folder), str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.outcomes: list[dict[str, str]] = []
        self.first: float | None = None
        self.last, self.last_cpu = time.monotonic() + _START_SECONDS, _START_SECONDS
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.outcomes.append(json.loads(line))
            self.first = time.monotonic() if self.first is None else self.first
            self.last, self.last_cpu = time.monotonic(), self.cpu_seconds()

    def seconds(self) -> float:
        """Return the time since the first input."""
        return 0.0 if self.first is None else time.monotonic() - self.first

    def hangs(self) -> bool:
        """Return whether the input that is being read takes too long."""
        return self.cpu_seconds() - self.last_cpu > HANG_SECONDS or time.monotonic() - self.last > _IDLE_SECONDS

    def cpu_seconds(self) -> float:
        """CPU time of the process."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError):
            return 0.0

    def resident_bytes(self) -> int:
        """Memory of the process."""
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096
        except (OSError, IndexError):
            return 0

    def end(self) -> None:
        """Kill the process and remove its folder."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        shutil.rmtree(self.folder, ignore_errors=True)


def fuzz_target(target: str, tally: Tally, seconds: float, seeds: random.Random) -> None:
    """Fuzz one target for some time; the start of workers does not count."""
    while seconds > 0:
        worker = Worker(target, seeds.randrange(2**32))
        ended = ""
        while not ended and worker.seconds() < seconds:
            time.sleep(_POLL_SECONDS)
            resident = worker.resident_bytes()
            tally.peak_bytes = max(tally.peak_bytes, resident)
            if resident > MAX_BYTES:
                ended = "memory"
            elif worker.process.poll() is not None:
                ended = "crash"
            elif worker.hangs():
                ended = "hang"
        if ended:
            code = worker.process.returncode
            inputs = len(worker.outcomes)
            _store(tally, worker, ended, f"{ended} of seed {worker.seed} after {inputs} inputs, exit code {code}")
        seconds -= worker.seconds() if worker.outcomes else seconds  # one that does not start is not started again
        worker.end()
        for outcome in worker.outcomes:
            tally.kinds[outcome["kind"]] += 1


def _store(tally: Tally, worker: Worker, kind: str, detail: str) -> None:
    """Count a failure, and copy the folder of the worker with the input that it reads."""
    tally.kinds[kind] += 1
    copy = OUT / f"{worker.target}-{worker.seed}-{len(worker.outcomes)}"
    shutil.copytree(worker.folder, copy, dirs_exist_ok=True)
    (copy / "failure.txt").write_text(detail, encoding="utf-8")


def print_table(tallies: dict[str, Tally]) -> None:
    """Print the figures of all targets."""
    columns = ("target", "inputs", "errors", "results", "exceptions", "hangs", "crashes", "over 2 GB", "peak MB")
    print(("{:<16}" + "{:>12}" * (len(columns) - 1)).format(*columns))
    for target, tally in tallies.items():
        kinds = [tally.kinds[kind] for kind in ("error", "result", "exception", "hang", "crash", "memory")]
        print(("{:<16}" + "{:>12,}" * 8).format(target, tally.inputs, *kinds, tally.peak_bytes >> 20))
    print(
        f"{sum(tally.inputs for tally in tallies.values()):,} inputs, "
        f"{sum(tally.failures for tally in tallies.values()):,} failures",
        flush=True,
    )


def main() -> int:
    """Run the fuzzer and the kill loop; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="for all targets together")
    parser.add_argument("--kills", type=int, default=500, help="of the kill loop")
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=f"some of {', '.join(TARGETS)}")
    arguments = parser.parse_args()
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    seeds = random.Random(seed)
    tallies = {target: Tally() for target in arguments.targets}
    share = arguments.minutes * 60 / len(tallies)
    turns = math.ceil(share / _TURN_SECONDS)
    for _ in range(turns):
        for target, tally in tallies.items():
            fuzz_target(target, tally, share / turns, seeds)
        print_table(tallies)
    failed = any(tally.failures for tally in tallies.values())
    if arguments.kills:
        words = ["--kills", str(arguments.kills), "--seed", str(seed), "--keep", str(OUT)]
        failed |= bool(subprocess.run([sys.executable, "-m", "tests.fuzz.kill_loop", *words], check=False).returncode)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
