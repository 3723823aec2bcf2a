"""Time a command on a quiet machine, and beside one and two busy processes.

    python benchmarks/busy_machine.py                      # vitruvian demo
    python benchmarks/busy_machine.py --repeat 5 -- pose examples/astronaut.jpg
    python benchmarks/busy_machine.py --busy 0 --spin 1000 10000 300000

Run it on a quiet machine. Each command runs with the OpenMP settings that it chooses itself, and with libgomp's default
spinning (GOMP_SPINCOUNT=300000); both alternate. Prints medians, and the ratio to the quiet time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBGOMP_SPIN = 300_000  # the default of libgomp
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with this process


def seconds(arguments: list[str], setting: dict[str, str]) -> float:
    """Return the wall time of a command in a new process and an empty folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    environment |= {"PYTHONPATH": str(ROOT / "src"), **setting}
    folder = tempfile.mkdtemp()
    try:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "vitruvian", *arguments, "--out", folder],
            cwd=ROOT,
            env=environment,
            check=True,
            capture_output=True,
        )
        return time.perf_counter() - start
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Print a table: a row for each number of busy processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="numbers of busy processes")
    parser.add_argument(
        "--spin", type=int, nargs="+", default=[LIBGOMP_SPIN], help="GOMP_SPINCOUNT to compare with ours"
    )
    parser.add_argument("arguments", nargs="*", default=["demo"], help="the command, after --")
    options = parser.parse_args()
    settings: dict[str, dict[str, str]] = {"ours": {}}
    settings |= {f"GOMP_SPINCOUNT={spin}": {"GOMP_SPINCOUNT": str(spin)} for spin in options.spin}
    print(f"vitruvian {' '.join(options.arguments)}, {os.cpu_count()} cores, median of {options.repeat}, seconds")
    print("| busy processes | " + " | ".join(f"{name} | ratio" for name in settings) + " |")
    print("|---|" + "---|---|" * len(settings))
    quiet: dict[str, float] = {}
    for count in options.busy:
        busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
        try:
            times: dict[str, list[float]] = {name: [] for name in settings}
            for _ in range(options.repeat):
                for name, setting in settings.items():
                    times[name].append(seconds(options.arguments, setting))
        finally:
            for process in busy:
                process.kill()
        cells = []
        for name, values in times.items():
            median = statistics.median(values)
            cells.append(f"{median:.2f} | {median / quiet.setdefault(name, median):.1f} ×")
        print(f"| {count} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
