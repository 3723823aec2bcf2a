"""Run the code of docs/cookbook.md and write the images that the page shows.

    python tools/cookbook_images.py

The page names the output file of each image: `<!-- image FILE -->` in the line above it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cookbook.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"<!-- image (\S+) -->\n!\[.*\]\((\S+)\)")
SIDE = 360  # pixels
PAPER = (236, 239, 241)  # behind transparent images


def main() -> None:
    """Run all blocks in a temporary folder, in order, then convert the images."""
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples", Path(folder, "examples"))
        os.chdir(folder)
        names: dict[str, Any] = {}
        for language, code in BLOCK.findall(page):
            if language == "python":
                exec(compile(code, PAGE.name, "exec"), names)
            else:
                for line in code.splitlines():
                    subprocess.run([sys.executable, "-m", *shlex.split(line, comments=True), "--quiet"], check=True)
        for source, target in IMAGE.findall(page):
            write_small(Path(source), PAGE.parent / target)
        os.chdir(ROOT)


def write_small(source: Path, target: Path) -> None:
    """Write a small JPEG of an image; transparent parts get a plain color."""
    with Image.open(source) as opened:
        image = opened.convert("RGBA")
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    paper = Image.new("RGBA", image.size, PAPER)
    paper.alpha_composite(image)
    paper.convert("RGB").save(target, quality=82, optimize=True)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
