"""Batches of a dataset that `vitruvian synthesize` wrote (or any folder with the same layout, see `synthetic.dataset`).

    annotations.json ──▶ PeopleFolder[i] ──▶ crop ──▶ FolderBatches.batch(n) ──▶ TrainBatch

A batch depends on its number and the seed alone: each epoch has its own order, each crop its own random changes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitruvian.config import read_json
from vitruvian.errors import CheckpointError, InputError
from vitruvian.training.config import AugmentPart
from vitruvian.training.datasets.augmentation import (
    AnnotatedImage,
    CropTransform,
    colour_jitter,
    crop_image,
    image_crop,
    person_crop,
    random_crop,
)
from vitruvian.training.datasets.labels import LabeledImages, TrainBatch, make_batch
from vitruvian.training.synthetic.dataset import ANNOTATIONS_FILE, read_maps
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


@dataclass(frozen=True)
class _Person:
    """A person in an image."""

    box_xywh: tuple[float, float, float, float]
    keypoints: NDArray[np.float32]  # [308, 3]
    area: float  # pixels
    stature: float  # metres; 0: not known


@dataclass(frozen=True)
class _ImageFile:
    """An image of a dataset: its files and its camera."""

    files: Mapping[str, str]  # "images", "matte" …
    size_hw: tuple[int, int]
    intrinsics: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class _Entry:
    """An image, its people, and the subject of the crop (None: nobody)."""

    image: _ImageFile
    people: Sequence[_Person]
    subject: int | None


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

    def source(self, index: int) -> AnnotatedImage:
        """Read the image of a crop and its annotations."""
        entry = self.entries[index]
        files = entry.image.files
        missing = sorted(self.maps - files.keys())
        if missing:
            raise CheckpointError(
                f"{self.folder}: {files['images']} has no {', '.join(missing)}. Write the dataset again."
            )
        subject = None if entry.subject is None else entry.people[entry.subject]
        others = [person for number, person in enumerate(entry.people) if number != entry.subject]
        order = others if subject is None else [subject, *others]
        return AnnotatedImage(
            maps=read_maps(self.folder, dict(files), self.maps),
            intrinsics=torch.tensor(entry.image.intrinsics),
            keypoints=torch.zeros(KEYPOINTS, 3) if subject is None else torch.from_numpy(subject.keypoints),
            boxes_xywh=torch.tensor([person.box_xywh for person in order]).reshape(-1, 4),
            stature=0.0 if subject is None else subject.stature,
            area=0.0 if subject is None else subject.area,
        )

    def crop(self, index: int) -> CropTransform:
        """Return where a crop lies in its image."""
        entry = self.entries[index]
        if self.view == "person" and entry.subject is not None:
            return person_crop(torch.tensor(entry.people[entry.subject].box_xywh), self.size_hw)
        return image_crop(entry.image.size_hw, self.size_hw)

    def read(self, index: int, *, augment: AugmentPart | None = None, seed: int = 0) -> LabeledImages:
        """Read one crop (B = 1), with random changes where `augment` is not None."""
        crop = self.crop(index)
        if augment is None:
            return crop_image(self.source(index), crop)
        generator = torch.Generator().manual_seed(seed)
        crop = random_crop(crop, augment, generator)
        return colour_jitter(crop_image(self.source(index), crop), augment, generator)


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


def _read_entries(folder: Path, view: str) -> list[_Entry]:
    """Read annotations: an entry for each person who is large enough, or for each image."""
    path = folder / ANNOTATIONS_FILE
    if not path.is_file():
        raise InputError(
            f"{folder}: expected a dataset with {ANNOTATIONS_FILE}, got none. Write one with: vitruvian synthesize "
            "--count 1000 --out FOLDER"
        )
    table = read_json(path)
    try:
        people: dict[object, list[_Person]] = {image["id"]: [] for image in table["images"]}
        for person in table["annotations"]:
            people[person["image_id"]].append(_read_person(person))
        found = []
        for image in table["images"]:
            file, members = _read_image_file(image), people[image["id"]]
            large = [number for number, person in enumerate(members) if min(person.box_xywh[2:]) >= _SMALLEST_SIDE]
            if view == "person":
                found += [_Entry(file, members, number) for number in large]
            else:
                subject = max(large, key=lambda n: members[n].area, default=None)
                found.append(_Entry(file, members, subject))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"{path}: expected COCO's tables, but met {error!r}. Write the dataset again.") from error
    if not found:
        raise InputError(f"{folder}: expected people in its images, got none. Write another dataset.")
    return found


def _read_image_file(entry: Mapping[str, Any]) -> _ImageFile:
    """Read an image's entry of the annotations."""
    known = [kind for kind in ("matte", "albedo", "parts", "geometry") if f"{kind}_file" in entry]
    files = {kind: str(entry[f"{kind}_file"]) for kind in known}
    rows = tuple(tuple(float(value) for value in row) for row in entry["intrinsics"])
    return _ImageFile(files | {"images": entry["file_name"]}, (int(entry["height"]), int(entry["width"])), rows)


def _read_person(entry: Mapping[str, Any]) -> _Person:
    """Read a person's entry of the annotations."""
    if len(entry["keypoints"]) != 3 * KEYPOINTS:
        raise CheckpointError(
            f"keypoints: expected {3 * KEYPOINTS} numbers for each person, got {len(entry['keypoints'])}. "
            "Write the dataset again."
        )
    x, y, width, height = (float(value) for value in entry["bbox"])
    points = np.array(entry["keypoints"], np.float32).reshape(KEYPOINTS, 3)
    return _Person((x, y, width, height), points, float(entry["area"]), float(entry.get("stature", 0.0)))
