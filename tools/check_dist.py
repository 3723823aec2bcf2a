"""Install the wheel and the source distribution in a bare environment, and run the demo with each: `make dist`.

python tools/check_dist.py dist
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path


def main() -> None:
    """Check all distributions in a folder."""
    folder = Path(sys.argv[1]).resolve()
    constraints = Path(__file__).parents[1] / "constraints.txt"
    found = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    if len(found) != 2:
        sys.exit(f"{folder}: expected a wheel and a source distribution, got {[path.name for path in found]}.")
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        venv.create(home / "venv", with_pip=True)
        program = home / "venv" / ("Scripts" if os.name == "nt" else "bin")
        # The working tree must not be imported by chance.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for number, path in enumerate(found):
            install = [program / "python", "-m", "pip", "install", "--quiet", "--constraint", constraints, path]
            again = ["--force-reinstall", "--no-deps"] if number else []  # the dependencies are there
            subprocess.run([*install, *again], check=True, cwd=home, env=env)
            out = home / f"demo{number}"
            subprocess.run([program / "vitruvian", "demo", "--out", out, "--quiet"], check=True, cwd=home, env=env)
            size = (out / "sheet.png").stat().st_size
            print(f"{path.name}: installed, demo wrote sheet.png ({size:,} bytes) and {len(list(out.iterdir()))} files")


if __name__ == "__main__":
    main()
