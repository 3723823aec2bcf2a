"""Run the CPU benchmarks one after the other, each in a process of its own: `make bench`.

    python benchmarks/run.py                   # all of the list below but the slow ones
    python benchmarks/run.py folder clip       # those alone

Prints what each script prints, its seconds, and at the end which failed; the exit code is 1 where any did. Scripts can
be run on their own too, with options that their --help shows; those of a GPU are gpu.py, ablation.py,
fp8.py and end_to_end.py.
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
    "mask_postprocess": (),
    "deformable": (),
    "mask_models": (),
    "mask_losses": (),
    "sam2": (),
    "cpu_forward": ("--layers", "6", "--no-int8"),  # all 24 layers and int8 take many minutes
    "folder": (),
}
SLOW: dict[str, tuple[str, ...]] = {"clip": ()}  # run when they are named


def summary(name: str) -> str:
    """The first line of a script's docstring."""
    text = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def listing() -> str:
    """All scripts, for --help."""
    lines = [f"  {name:20s} {summary(name)}" for name in SCRIPTS]
    lines += [f"  {name:20s} (slow: only when named) {summary(name)}" for name in SLOW]
    return "\n".join(["scripts:", *lines])


def main() -> int:
    """Run those named on the command line, or all that are not slow; the exit code tells whether any failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=listing(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to run, of the scripts below")
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
