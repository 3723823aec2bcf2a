"""Draw docs/images/tasks.jpg and an image for each task page, from predictions of the built-in model.

    python tools/readme_images.py

tasks.jpg has a photograph and a rendered person; the images of pages have one of them beside its result.

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
from vitruvian.images.types import RgbImage

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
PAGE_HEIGHT = 320  # of the images of task pages


def main() -> None:
    """Write the images."""
    rows = [[np.asarray(Image.open(path).convert("RGB"))] for path in IMAGES]
    for task, (title, options) in TASKS.items():
        pipe = pipeline(task, "builtin", device="cpu")
        results = [pipe(path) for path in IMAGES]
        for row, result in zip(rows, results, strict=True):
            row.append(np.asarray(result.plot(**options).convert("RGB")))
        index = int(task == "pose")  # the rendered person has a whole body
        shown = {"image": rows[index][0]} | views(task, title, results[index])
        write(f"{task}.jpg", contact_sheet([[*shown.values()]], titles=[*shown], row_titles=[""], height=PAGE_HEIGHT))
    titles = ["image", *(title for title, _ in TASKS.values())]
    write("tasks.jpg", contact_sheet(rows, titles=titles, row_titles=["photograph", "rendered"], height=HEIGHT))


def views(task: str, title: str, result: Any) -> dict[str, RgbImage]:
    """Return what the page of a task shows, by title."""
    plots: dict[str, Any] = {title: result.plot()}
    if task == "pose":
        plots = {"308 keypoints": result.plot(), "COCO-17": result.to_layout("coco17").plot()}
    elif task == "matte":
        plots["over white"] = Image.fromarray(result.over("white"))
    return {name: np.asarray(plot.convert("RGB")) for name, plot in plots.items()}


def write(name: str, sheet: RgbImage) -> None:
    """Write a sheet with a margin into docs/images."""
    sheet = np.pad(sheet, ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)), constant_values=255)
    path = ROOT / "docs" / "images" / name
    Image.fromarray(sheet).save(path, quality=82)
    print(f"{path.name}: {sheet.shape[1]}×{sheet.shape[0]}")


if __name__ == "__main__":
    main()
