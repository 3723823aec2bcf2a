"""Draw docs/images/tasks.jpg: what the built-in model predicts for a photograph and a rendered person.

python tools/readme_images.py

examples/grace_hopper.jpg is a photograph of the US Navy, in the public domain; standing.jpg is rendered from CC0
assets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitruvian import pipeline
from vitruvian.draw import contact_sheet
from vitruvian.hub import BUILTIN_FOLDER

ROOT = Path(__file__).parents[1]
IMAGES = (ROOT / "examples" / "grace_hopper.jpg", BUILTIN_FOLDER / "standing.jpg")
# task -> title and options of `plot`
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "pose": ("pose", {}),
    "parts": ("body parts", {"legend": False}),
    "normals": ("normals", {}),
    "pointmap": ("pointmap (depth)", {}),
    "matte": ("matte", {}),
    "albedo": ("albedo", {}),
}
HEIGHT, MARGIN = 250, 8


def main() -> None:
    """Write the image."""
    rows = [[np.asarray(Image.open(path).convert("RGB"))] for path in IMAGES]
    for task, (_, options) in TASKS.items():
        pipe = pipeline(task, "builtin", device="cpu")
        for row, path in zip(rows, IMAGES, strict=True):
            row.append(np.asarray(pipe(path).plot(**options).convert("RGB")))
    titles = ["image", *(title for title, _ in TASKS.values())]
    sheet = contact_sheet(rows, titles=titles, row_titles=["photograph", "rendered"], height=HEIGHT)
    sheet = np.pad(sheet, ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)), constant_values=255)
    path = ROOT / "docs" / "images" / "tasks.jpg"
    Image.fromarray(sheet).save(path, quality=82)
    print(f"{path}: {sheet.shape[1]}×{sheet.shape[0]}")


if __name__ == "__main__":
    main()
