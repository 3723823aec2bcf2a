"""Run the CPU benchmarks one after the other, each in a process of its own: `make bench`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = ("sapiens2_processing", "load_memory", "mask_postprocess", "deformable", "mask_models", "mask_losses", "sam2")


def main() -> int:
    """Run those named on the command line, or all; the exit code tells whether any failed."""
    failed = []
    for name in sys.argv[1:] or SCRIPTS:
        print(f"\n== {name}", flush=True)
        start = time.perf_counter()
        if subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=False).returncode:
            failed.append(name)
        print(f"({time.perf_counter() - start:.0f} s)", flush=True)
    if failed:
        print(f"\nFailed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
