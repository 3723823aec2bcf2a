"""Mattes and outlines of photographs, with and without refinement, against COCO's masks of people.

    python benchmarks/matte_quality.py [--model builtin] [--photos ../shared/photos] [--sheet sheet.jpg]

People are cropped by their annotated boxes, so that the numbers do not depend on a detector. Photographs count whose
largest person's box covers at least a tenth of the image. The rows of the table are averages over these photographs,
and the last column is the mean difference with its standard error:

boundary F   harmonic mean of precision and recall of outline pixels, at a distance of at most two pixels
alpha error  mean |alpha − mask| inside of the boxes
color       mean |color − image| of 255, on the mask of a person eroded by eight pixels, where alpha is above one half

`--sheet` writes some of the cut-outs on green, unrefined and refined side by side.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from builtin import Photo, read_photos
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional as F

from vitruvian import pipeline
from vitruvian.draw import contact_sheet

Mask = NDArray[np.bool_]
MIN_SHARE = 0.1
TOLERANCE = 2  # pixels
INNER = 8  # pixels that the mask is eroded by
GREEN = (0, 190, 0)


def dilate(mask: Mask, radius: int) -> Mask:
    """Dilate a mask [H, W] by a square."""
    grown = F.max_pool2d(torch.from_numpy(mask)[None].float(), 2 * radius + 1, stride=1, padding=radius)
    return grown[0].numpy() > 0


def outline(mask: Mask) -> Mask:
    """Return the pixels of a mask [H, W] next to others."""
    return mask & dilate(~mask, 1)


def boundary_f(found: Mask, wanted: Mask) -> float:
    """Return the F-score of the outline of a mask [H, W]."""
    edge, truth = outline(found), outline(wanted)
    hits = [(one & dilate(other, TOLERANCE)).sum() / max(1, one.sum()) for one, other in ((edge, truth), (truth, edge))]
    return float(2 * hits[0] * hits[1] / max(1e-9, hits[0] + hits[1]))


def score(photo: Photo, matte: Any, parts: Any, seconds: float) -> dict[str, float]:
    """Return the numbers of one photograph."""
    wanted = np.any([person.mask for person in photo.people], axis=0)
    inside = np.zeros(wanted.shape, bool)
    for person in photo.people:
        left, top, width, height = (round(value) for value in person.box_xywh)
        inside[top : top + height, left : left + width] = True
    inner = ~dilate(~wanted, INNER) & (matte.alpha > 0.5)
    change = np.abs(matte.rgba()[..., :3].astype(np.float32) - photo.image)
    return {
        "boundary F, matte": boundary_f((matte.alpha > 0.5) & inside, wanted),
        "boundary F, parts": boundary_f((parts.labels > 0) & inside, wanted),
        "alpha error": float(np.abs(matte.alpha - wanted)[inside].mean()),
        "color": float(change[inner].mean()),
        "seconds": seconds,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--photos", type=Path, default=Path("../shared/photos"))
    parser.add_argument("--sheet", type=Path)
    options = parser.parse_args()
    find_matte, find_parts = pipeline("matte", options.model), pipeline("parts", options.model)
    scores: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    rows = []
    for photo in read_photos(options.photos):
        boxes = [person.box_xywh for person in photo.people]
        largest = max((width * height for _, _, width, height in boxes), default=0.0)
        if any(person.crowd for person in photo.people) or largest < MIN_SHARE * photo.image[..., 0].size:
            continue
        drawn = [photo.image]
        for refine, found in scores.items():
            choice: dict[str, Any] = {"boxes": boxes, "box_format": "xywh", "refine": refine}
            start = time.perf_counter()
            matte = find_matte(photo.image, **choice)
            seconds = time.perf_counter() - start
            found.append(score(photo, matte, find_parts(photo.image, **choice), seconds))
            drawn.append(matte.over(GREEN))
        rows.append(drawn)
    print(f"{len(rows)} photographs, {options.model}")
    print("| | bilinear | refined | difference |\n|---|---|---|---|")
    for name in scores[True][0]:
        plain, refined = (np.array([one[name] for one in found]) for found in scores.values())
        change = refined - plain
        error = change.std(ddof=1) / len(change) ** 0.5
        print(f"| {name} | {plain.mean():.3f} | {refined.mean():.3f} | {change.mean():+.4f} ± {error:.4f} |")
    if options.sheet is not None:
        titles = ["photograph", "bilinear", "refined"]
        numbers = [str(number) for number in range(1, 1 + len(rows[:8]))]
        sheet = contact_sheet(rows[:8], titles=titles, row_titles=numbers, height=480)
        Image.fromarray(sheet).save(options.sheet)


if __name__ == "__main__":
    main()
