"""Batches of a dataset that `vitruvian synthesize` wrote (or any folder with the same layout, see `synthetic.dataset`).

    annotations.json ──▶ PeopleFolder[i] ──▶ crop ──▶ FolderBatches.batch(n) ──▶ TrainBatch

A batch depends on its number and the seed alone: each epoch has another order, each crop other random changes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import torch

from vitruvian.config import read_json
from vitruvian.errors import CheckpointError, InputError
from vitruvian.training.config import AugmentPart
from vitruvian.training.datasets.augmentation import (
    Annotations,
    colour_jitter,
    crop_image,
    image_crop,
    person_crop,
    random_crop,
)
from vitruvian.training.datasets.labels import LabeledImages, TrainBatch, make_batch
from vitruvian.training.synthetic.dataset import ANNOTATIONS_FILE, MAPS, read_maps
from vitruvian.training.synthetic.pack import KEYPOINTS
from vitruvian.training.synthetic.rng import derive_seed

_SMALLEST_SIDE = 8  # pixels: smaller people are not cropped
_MAPS_OF: Mapping[str, frozenset[str]] = {
    "pose": frozenset(),
    "people": frozenset(),
    "seg": frozenset({"parts"}),
    "normal": frozenset({"geometry"}),
    "pointmap": frozenset({"geometry"}),
    "albedo": frozenset({"albedo", "parts"}),
    "matting": frozenset({"matte"}),
}


class PeopleFolder:
    """The crops of a dataset: one for each person, or one for each image.

    Args:
        folder: The dataset.
        size_hw: Size of the crops.
        tasks: Tasks to train; maps that none of these needs are not read.
        view: "person" crops each person, "picture" takes whole images.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        size_hw: tuple[int, int],
        tasks: Sequence[str],
        view: Literal["person", "picture"] = "person",
    ) -> None:
        self.folder, self.size_hw, self.view = Path(folder).expanduser(), size_hw, view
        unknown = [task for task in tasks if task not in _MAPS_OF]
        if unknown:
            raise InputError(f"tasks: expected some of {', '.join(_MAPS_OF)}, got {', '.join(unknown)}.")
        self.maps = frozenset[str]().union(*(_MAPS_OF[task] for task in tasks))
        self.entries = _read_entries(self.folder, view)

    def __len__(self) -> int:
        """Return the number of crops."""
        return len(self.entries)

    def read(self, index: int, *, augment: AugmentPart | None = None, seed: int = 0) -> LabeledImages:
        """Read one crop (B = 1), with random changes where `augment` is not None."""
        known = self.entries[index]
        missing = sorted(self.maps - known.files.keys())
        if missing:
            raise CheckpointError(
                f"{self.folder}: {known.files['images']} has no {', '.join(missing)}. Write the dataset again."
            )
        maps = read_maps(self.folder, known.files, self.maps)
        by_person = self.view == "person"
        crop = person_crop(known.boxes_xywh[0], self.size_hw) if by_person else image_crop(known.size_hw, self.size_hw)
        if augment is None:
            return crop_image(maps, known, crop)
        generator = torch.Generator().manual_seed(seed)
        crop = random_crop(crop, augment, generator)
        return colour_jitter(crop_image(maps, known, crop), augment, generator)


class FolderBatches:
    """Endless batches of a dataset, prefetched by threads.

    Args:
        people: The dataset.
        tasks: Tasks to compute labels for.
        batch_size: Crops a batch.
        seed: Seed of order and augmentation.
        augment: Random changes; None for none.
        device: Device of the batches.
        workers: Prefetching threads; 0 reads in the caller's thread.
        stride: Distance between the batch numbers of this process: the number of processes.
        strides: Input pixels per output pixel of each task; see `vitruvian.training.models.head_strides`.
        heatmap_sigma: Sigma of keypoints in heatmap pixels.
    """

    def __init__(
        self,
        people: PeopleFolder,
        *,
        tasks: Sequence[str],
        batch_size: int,
        seed: int = 0,
        augment: AugmentPart | None = None,
        device: torch.device | str = "cpu",
        workers: int = 0,
        stride: int = 1,
        strides: Mapping[str, int] | None = None,
        heatmap_sigma: float | None = None,
    ) -> None:
        self.people, self.tasks, self.batch_size, self.seed = people, list(tasks), batch_size, seed
        self.augment, self.device, self.stride = augment, torch.device(device), stride
        self.strides, self.heatmap_sigma = strides, heatmap_sigma
        self.prefetch = workers + 1 if workers else 0
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="crops") if workers else None
        self.pending: dict[int, Future[LabeledImages]] = {}
        self.order = functools.lru_cache(maxsize=4)(self._order)

    def batch(self, step: int) -> TrainBatch:
        """Return the batch of a number, counted from 0 over all processes and accumulated steps."""
        images = self._read(step) if self.pool is None else self._prefetch(step, self.pool)
        return make_batch(images.to(self.device), self.tasks, strides=self.strides, heatmap_sigma=self.heatmap_sigma)

    def _read(self, step: int) -> LabeledImages:
        """Read the crops of a batch, on the CPU."""
        crops = []
        for position in range(step * self.batch_size, (step + 1) * self.batch_size):
            epoch, rank = divmod(position, len(self.people))
            index = self.order(epoch)[rank]
            crops.append(self.people.read(index, augment=self.augment, seed=derive_seed(self.seed, 1, position)))
        return LabeledImages.cat(crops)

    def close(self) -> None:
        """Stop the threads."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def _order(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, 0, epoch))
        order: list[int] = torch.randperm(len(self.people), generator=generator).tolist()
        return order

    def _prefetch(self, step: int, pool: ThreadPoolExecutor) -> LabeledImages:
        wanted = [step + number * self.stride for number in range(self.prefetch)]
        for number in wanted:
            if number not in self.pending:
                self.pending[number] = pool.submit(self._read, number)
        for number in set(self.pending) - set(wanted):
            self.pending.pop(number).cancel()
        return self.pending.pop(step).result()


def _read_entries(folder: Path, view: str) -> list[Annotations]:
    """Read annotations: an entry for each person who is large enough, or for each image."""
    path = folder / ANNOTATIONS_FILE
    if not path.is_file():
        raise InputError(
            f"{folder}: expected a dataset with {ANNOTATIONS_FILE}, got none. Write one with: vitruvian synthesize "
            "--count 1000 --out FOLDER"
        )
    table = read_json(path)
    try:
        people: dict[object, list[dict[str, Any]]] = {image["id"]: [] for image in table["images"]}
        for person in table["annotations"]:
            people[person["image_id"]].append(person)
        found = []
        for image in table["images"]:
            members = people[image["id"]]
            large = [person for person in members if min(person["bbox"][2:]) >= _SMALLEST_SIDE]
            if view == "person":
                found += [_read_entry(image, members, subject) for subject in large]
            else:
                subject = max(large, key=lambda person: float(person["area"]), default=None)
                found.append(_read_entry(image, members, subject))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"{path}: expected COCO's tables, but met {error!r}. Write the dataset again.") from error
    if not found:
        raise InputError(f"{folder}: expected people in its images, got none. Write another dataset.")
    return found


def _read_entry(
    image: Mapping[str, Any], people: Sequence[Mapping[str, Any]], subject: Mapping[str, Any] | None
) -> Annotations:
    """Read an image and its people; `subject` is one of them, or None."""
    for person in people:
        if len(person["keypoints"]) != 3 * KEYPOINTS:
            raise CheckpointError(
                f"keypoints: expected {3 * KEYPOINTS} numbers for each person, got {len(person['keypoints'])}. "
                "Write the dataset again."
            )
    first = subject or {"keypoints": [0.0] * (3 * KEYPOINTS), "area": 0.0}
    order = [*([] if subject is None else [subject]), *(person for person in people if person is not subject)]
    return Annotations(
        files={kind: image[f"{kind}_file"] for kind in MAPS if f"{kind}_file" in image}
        | {"images": image["file_name"]},
        size_hw=(int(image["height"]), int(image["width"])),
        intrinsics=torch.tensor(image["intrinsics"], dtype=torch.float32),
        boxes_xywh=torch.tensor([person["bbox"] for person in order], dtype=torch.float32).reshape(-1, 4),
        keypoints=torch.tensor(first["keypoints"], dtype=torch.float32).view(KEYPOINTS, 3),
        stature=float(first.get("stature", 0.0)),
        area=float(first["area"]),
    )
