"""Run the CPU benchmarks one after another, each in a new process: `make bench`.

    python benchmarks/run.py                           # all of the list below, except slow ones
    python benchmarks/run.py image_folder long_video   # only these

Prints the output and the seconds of each script, and at the end which failed; the exit code is 1 if any did. Each
script has options of its own, see --help. GPU benchmarks are gpu.py, ablation.py, fp8.py, track.py, end_to_end.py
and, for the original SAM 2, track_original.py. builtin_accuracy.py scores the built-in model, matte_quality.py its
mattes, detector.py its person detector; ray_jobs.py measures jobs on a Ray cluster; busy_machine.py needs a quiet
machine. serve.py takes --device cuda too, and starts litserve_api.py. tables.py and plot.py write the tables and plots
of docs/speed.md.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# script -> its arguments here
SCRIPTS: dict[str, tuple[str, ...]] = {
    "sapiens2_processing": (),
    "load_memory": (),
    "jpeg_decoding": (),
    "mask_postprocess": (),
    "mask_losses": (),
    "sam2": (),
    "cpu_forward": ("--layers", "6", "--no-int8"),  # 24 layers and int8 take many minutes
    "image_folder": (),
}
SLOW: dict[str, tuple[str, ...]] = {"long_video": (), "serve": ("--seconds", "20")}  # run only if named


def summary(name: str) -> str:
    """Return the first line of a script's docstring."""
    text = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def listing() -> str:
    """Return the list of scripts for --help."""
    lines = [f"  {name:20s} {summary(name)}" for name in SCRIPTS]
    lines += [f"  {name:20s} (slow: only if named) {summary(name)}" for name in SLOW]
    return "\n".join(["scripts:", *lines])


def main() -> int:
    """Run the named scripts, or all that are not slow."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=listing(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts to run")
    names = parser.parse_args().names or list(SCRIPTS)
    known = SCRIPTS | SLOW
    for name in names:
        if name not in known:
            parser.error(f"{name}: expected one of {', '.join(known)}")
    failed = []
    for name in names:
        print(f"\n== {name}", *known[name], flush=True)
        start = time.perf_counter()
        if subprocess.run([sys.executable, str(HERE / f"{name}.py"), *known[name]], check=False).returncode:
            failed.append(name)
        print(f"({time.perf_counter() - start:.0f} s)", flush=True)
    if failed:
        print(f"\nFailed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
