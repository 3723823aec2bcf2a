"""Batches from a folder that `vitruvian synthesize` wrote (or anything with the same layout, see `set_files`).

    annotations.json ──▶ PeopleFolder[i] ──▶ view ──▶ FolderBatches.batch(n) ──▶ TrainBatch

A batch depends on its number and the seed alone: each pass over the set has its own order, each sample its own rng.
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
    Scene,
    Window,
    cut_view,
    person_window,
    picture_window,
    random_colours,
    random_window,
)
from vitruvian.training.datasets.labels import TrainBatch, Views, make_batch
from vitruvian.training.synthetic.dataset import ANNOTATIONS_FILE, read_maps
from vitruvian.training.synthetic.rng import derive_seed

KEYPOINTS = 308


LEAST_SIDE = 8  # pixels: people who are smaller are not cut out


MAPS_OF: Mapping[str, frozenset[str]] = {
    "pose": frozenset(),
    "people": frozenset(),
    "seg": frozenset({"parts"}),
    "normal": frozenset({"geometry"}),
    "pointmap": frozenset({"geometry"}),
    "albedo": frozenset({"albedo", "parts"}),
    "matting": frozenset({"matte"}),
}


@dataclass(frozen=True)
class Person:
    """Somebody in a picture."""

    box_xywh: tuple[float, float, float, float]
    keypoints: NDArray[np.float32]  # [308, 3]
    area: float  # pixels
    stature: float  # metres; 0: not known


@dataclass(frozen=True)
class Picture:
    """A picture of a set: its files and its camera."""

    files: Mapping[str, str]  # "images", "matte" …
    size_hw: tuple[int, int]
    intrinsics: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Entry:
    """What one view shows: a picture, its people, and which of them it is about (None: nobody)."""

    picture: Picture
    people: Sequence[Person]
    subject: int | None


class PeopleFolder:
    """The views of a set: one for each person, or one for each picture.

    Args:
        folder: The set.
        size_hw: Size of the views.
        tasks: What they are for; maps that none of these needs are not read.
        view: "person" cuts each person out, "picture" shows whole pictures.
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
        unknown = [task for task in tasks if task not in MAPS_OF]
        if unknown:
            raise InputError(f"tasks: expected some of {', '.join(MAPS_OF)}, got {', '.join(unknown)}.")
        self.maps = frozenset[str]().union(*(MAPS_OF[task] for task in tasks))
        self.entries = read_entries(self.folder, view)

    def __len__(self) -> int:
        """Number of views."""
        return len(self.entries)

    def scene(self, index: int) -> Scene:
        """Read the picture of a view, and what is known about it."""
        entry = self.entries[index]
        files = entry.picture.files
        missing = sorted(self.maps - files.keys())
        if missing:
            raise CheckpointError(f"{self.folder}: {files['images']} has no {', '.join(missing)}. Write the set again.")
        subject = None if entry.subject is None else entry.people[entry.subject]
        others = [person for number, person in enumerate(entry.people) if number != entry.subject]
        order = others if subject is None else [subject, *others]
        return Scene(
            maps=read_maps(self.folder, dict(files), self.maps),
            intrinsics=torch.tensor(entry.picture.intrinsics),
            keypoints=torch.zeros(KEYPOINTS, 3) if subject is None else torch.from_numpy(subject.keypoints),
            boxes_xywh=torch.tensor([person.box_xywh for person in order]).reshape(-1, 4),
            stature=0.0 if subject is None else subject.stature,
            area=0.0 if subject is None else subject.area,
        )

    def window(self, index: int) -> Window:
        """Where a view lies in its picture."""
        entry = self.entries[index]
        if self.view == "person" and entry.subject is not None:
            return person_window(torch.tensor(entry.people[entry.subject].box_xywh), self.size_hw)
        return picture_window(entry.picture.size_hw, self.size_hw)

    def read(self, index: int, *, augment: AugmentPart | None = None, seed: int = 0) -> Views:
        """Read one view (B = 1), varied by rng where `augment` is given."""
        window = self.window(index)
        if augment is None:
            return cut_view(self.scene(index), window)
        generator = torch.Generator().manual_seed(seed)
        window = random_window(window, augment, generator)
        return random_colours(cut_view(self.scene(index), window), augment, generator)


class FolderBatches:
    """Endless batches of a set, read ahead by threads.

    Args:
        people: The set.
        tasks: Whose labels to make.
        batch_size: Views a batch.
        seed: What order and augmentation are drawn from.
        augment: How views are varied; None leaves them.
        device: Where batches go.
        workers: Threads that read ahead; 0 reads when a batch is asked for.
        stride: Distance between the numbers that this process asks for: the number of processes.
        strides: Pixels of the picture for one of each task's output; see `vitruvian.training.build.head_strides`.
        heatmap_sigma: Width of keypoints in heatmap pixels.
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
        self.ahead = workers + 1 if workers else 0
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="views") if workers else None
        self.waiting: dict[int, Future[Views]] = {}
        self.order = functools.lru_cache(maxsize=4)(self._order)

    def batch(self, step: int) -> TrainBatch:
        """Return the batch of a number."""
        views = self.views(step) if self.pool is None else self._from_threads(step, self.pool)
        return make_batch(views.to(self.device), self.tasks, strides=self.strides, heatmap_sigma=self.heatmap_sigma)

    def views(self, step: int) -> Views:
        """Read the views of a batch, on the CPU."""
        found = []
        for place in range(step * self.batch_size, (step + 1) * self.batch_size):
            epoch, rank = divmod(place, len(self.people))
            index = self.order(epoch)[rank]
            found.append(self.people.read(index, augment=self.augment, seed=derive_seed(self.seed, 1, place)))
        return Views.joined(found)

    def close(self) -> None:
        """Let the threads go."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def _order(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, 0, epoch))
        order: list[int] = torch.randperm(len(self.people), generator=generator).tolist()
        return order

    def _from_threads(self, step: int, pool: ThreadPoolExecutor) -> Views:
        wanted = [step + number * self.stride for number in range(self.ahead)]
        for number in wanted:
            if number not in self.waiting:
                self.waiting[number] = pool.submit(self.views, number)
        for number in set(self.waiting) - set(wanted):
            self.waiting.pop(number).cancel()
        return self.waiting.pop(step).result()


def read_entries(folder: Path, view: str) -> list[Entry]:
    """Read what a set shows: an entry for each person who is large enough, or for each picture."""
    path = folder / ANNOTATIONS_FILE
    if not path.is_file():
        raise InputError(
            f"{folder}: expected a set with {ANNOTATIONS_FILE}, found none. Write one with: vitruvian synthesize "
            "--count 1000 --out FOLDER"
        )
    table = read_json(path)
    try:
        people: dict[Any, list[Person]] = {image["id"]: [] for image in table["images"]}
        for person in table["annotations"]:
            people[person["image_id"]].append(read_person(person))
        found = []
        for image in table["images"]:
            picture, own = read_picture(image), people[image["id"]]
            large = [number for number, person in enumerate(own) if min(person.box_xywh[2:]) >= LEAST_SIDE]
            if view == "person":
                found += [Entry(picture, own, number) for number in large]
            else:
                found.append(Entry(picture, own, max(large, key=lambda n: own[n].area, default=None)))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"{path}: expected COCO's tables, but met {error!r}. Write the set again.") from error
    if not found:
        raise InputError(f"{folder}: expected somebody in its pictures, found nobody. Write another set.")
    return found


def read_picture(entry: Mapping[str, Any]) -> Picture:
    """Read a picture's entry of the annotations."""
    known = [kind for kind in ("matte", "albedo", "parts", "geometry") if f"{kind}_file" in entry]
    files = {kind: str(entry[f"{kind}_file"]) for kind in known}
    rows = tuple(tuple(float(value) for value in row) for row in entry["intrinsics"])
    return Picture(files | {"images": entry["file_name"]}, (int(entry["height"]), int(entry["width"])), rows)


def read_person(entry: Mapping[str, Any]) -> Person:
    """Read a person's entry of the annotations."""
    if len(entry["keypoints"]) != 3 * KEYPOINTS:
        raise CheckpointError(
            f"keypoints: expected {3 * KEYPOINTS} numbers for each person, got {len(entry['keypoints'])}. "
            "Write the set again."
        )
    x, y, width, height = (float(value) for value in entry["bbox"])
    points = np.array(entry["keypoints"], np.float32).reshape(KEYPOINTS, 3)
    return Person((x, y, width, height), points, float(entry["area"]), float(entry.get("stature", 0.0)))
