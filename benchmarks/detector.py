"""Precision and recall of the built-in person detector, and how often it sees people in images without any.

    python benchmarks/detector.py [--model builtin] [--photos ../shared/photos] [--without FOLDER]

Prints one table for each set of photographs and each threshold. A box is correct if its IoU with an annotated person is
at least 0.5; crowds are ignored. "Large" people cover more than 5 % of their image. The last table has the share of
images without people in which a person is detected: the photographs of `video/images`, those of `--without`, uniform
noise, smooth noise (random grids of 2² to 64² colors, enlarged) and flat colors.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from builtin import Photo, read_photos
from numpy.typing import NDArray
from PIL import Image

from vitruvian import load_image
from vitruvian.images.boxes import box_areas
from vitruvian.pipelines.people import PeopleDetector, open_detector
from vitruvian.training.evaluation import BoxAP

THRESHOLDS = (0.3, 0.4, 0.5, 0.6)
LARGE = 0.05  # of the image
COCO_PHOTOS = 60  # the first photographs of `read_photos`
NOISE = 12  # images of each kind
SIZE_HW = (480, 640)


def scores(detector: PeopleDetector, photos: list[Photo]) -> str:
    """Return the rows of the table of one set of photographs."""
    everyone = {low: BoxAP(thresholds=(0.5,), min_score=low) for low in THRESHOLDS}
    large = {low: BoxAP(thresholds=(0.5,), min_score=low) for low in THRESHOLDS}
    for photo in photos:
        found = detector.detect(photo.image)
        boxes = photo.boxes_xyxy
        small = box_areas(boxes) <= LARGE * photo.image.shape[0] * photo.image.shape[1]
        crowd = [person.crowd for person in photo.people]
        for low in THRESHOLDS:
            everyone[low].update(found.boxes_xyxy, found.scores, boxes, crowd=crowd)
            large[low].update(found.boxes_xyxy, found.scores, boxes, crowd=crowd, ignored=small)
    rows = []
    for low in THRESHOLDS:
        all_people, large_people = everyone[low].compute(), large[low].compute()
        numbers = (all_people.precision[0.5], all_people.recall[0.5], large_people.recall[0.5])
        rows.append(f"| {low} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |")
    return "\n".join(rows)


def images_without_people(folder: Path) -> Iterator[NDArray[np.uint8]]:
    """Read the images of a folder."""
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in (".jpg", ".png"):
            yield np.asarray(load_image(path))


def noise() -> Iterator[NDArray[np.uint8]]:
    """Make images of independent random pixels."""
    for seed in range(NOISE):
        yield np.random.default_rng(seed).integers(0, 256, (*SIZE_HW, 3), dtype=np.uint8)


def smooth_noise() -> Iterator[NDArray[np.uint8]]:
    """Make images of random colors on coarse grids, interpolated."""
    for seed in range(NOISE):
        side = 2 ** (1 + seed % 6)
        grid = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
        yield np.asarray(Image.fromarray(grid).resize(SIZE_HW[::-1], Image.Resampling.BICUBIC))


def flat_colors() -> Iterator[NDArray[np.uint8]]:
    """Make images of one color."""
    for color in np.random.default_rng(0).integers(0, 256, (NOISE, 3), dtype=np.uint8):
        yield np.broadcast_to(color, (*SIZE_HW, 3)).copy()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--photos", type=Path, default=Path("../shared/photos"))
    parser.add_argument("--without", type=Path, help="folder of further photographs without people")
    arguments = parser.parse_args()
    detector = open_detector(arguments.model, device="cpu", threshold=min(THRESHOLDS))

    photos = list(read_photos(arguments.photos))
    for name, some in (("coco", photos[:COCO_PHOTOS]), ("wholebody", photos[COCO_PHOTOS:])):
        print(f"\n{name}: {len(some)} photographs\n")
        print("| threshold | precision | recall of everyone | recall of large people |\n|---|---|---|---|")
        print(scores(detector, some), flush=True)

    kinds = {"photographs": images_without_people(arguments.photos / "video" / "images")}
    if arguments.without:
        kinds["further photographs"] = images_without_people(arguments.without)
    kinds |= {"noise": noise(), "smooth noise": smooth_noise(), "flat colors": flat_colors()}
    print("\nimages without people: in how many a person is detected\n")
    print(
        f"| images | number | {' | '.join(f'at {low}' for low in THRESHOLDS)} |\n|---|---|" + "---|" * len(THRESHOLDS)
    )
    for kind, images in kinds.items():
        best = [max(detector.detect(image).scores, default=0.0) for image in images]
        numbers = (sum(score >= low for score in best) for low in THRESHOLDS)
        print(f"| {kind} | {len(best)} | {' | '.join(map(str, numbers))} |", flush=True)


if __name__ == "__main__":
    main()
