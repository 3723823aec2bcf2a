"""Batches of a dataset that `vitruvian synthesize` wrote (or any folder with the same layout, see `synthetic.dataset`).

    annotations.json ──▶ PeopleFolder.read(i) ──▶ FolderBatches.batch(n) ──▶ LabeledImages

A batch depends on its number and the seed alone: each epoch has another order, each crop other random changes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from vitruvian.errors import CheckpointError, InputError, check_choice
from vitruvian.filesystem.json_files import JsonObject, read_json_object
from vitruvian.images import crop_windows, fit_inside_hw
from vitruvian.images.types import SizeHW
from vitruvian.training.config import AugmentConfig, TrainConfig
from vitruvian.training.datasets.augmentation import Photometric, photometric
from vitruvian.training.datasets.crop_window import CropWindow
from vitruvian.training.datasets.labels import LABEL_FIELDS, LabeledImages
from vitruvian.training.seeds import RandomStream, derive_seed
from vitruvian.training.synthetic.asset_pack import NUM_KEYPOINTS
from vitruvian.training.synthetic.dataset import ANNOTATIONS_FILE, MAPS, ImageMaps, read_maps
from vitruvian.training.synthetic.rng import Rng

_MIN_SIDE = 8  # pixels: smaller people are not cropped
# The files of `MAPS` that have the ground truth of a field.
_FILES = {"parts": "parts", "normals": "geometry", "depth": "geometry", "albedo": "albedo", "alpha": "matte"}


@dataclass(frozen=True)
class _Annotations:
    """An image of a dataset: its files, its camera, and its people, the subject of the crop first."""

    files: Mapping[str, str]  # "images", "matte" …
    size_hw: SizeHW
    intrinsics: Tensor  # [3, 3]
    boxes_xywh: Tensor  # [M, 4]
    keypoints: Tensor  # [308, 3] of the subject; zero where there is none, and so are stature and area
    stature_m: float  # 0: unknown
    area: float  # pixels


class PeopleFolder:
    """The crops of a dataset: one for each person, or one for each image.

    Args:
        folder: The dataset.
        size_hw: Size of the crops.
        tasks: Tasks to train; maps that none of these needs are not read.
        view: "person" crops each person, "image" takes whole images.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        size_hw: SizeHW,
        tasks: Sequence[str],
        view: Literal["person", "image"] = "person",
    ) -> None:
        self.folder, self.size_hw, self.view = Path(folder).expanduser(), size_hw, view
        for task in tasks:
            check_choice("tasks", task, LABEL_FIELDS)
        self.maps = frozenset(_FILES[name] for task in tasks for name in LABEL_FIELDS[task] if name in _FILES)
        self.entries = _read_entries(self.folder, view)

    def __len__(self) -> int:
        """Return the number of crops."""
        return len(self.entries)

    def read(self, index: int, *, augment: AugmentConfig | None = None, seed: int = 0) -> LabeledImages:
        """Read one crop (B = 1); zoomed, shifted and mirrored at random if `augment` is not None."""
        known = self.entries[index]
        missing = sorted(self.maps - known.files.keys())
        if missing:
            raise CheckpointError(
                f"{self.folder}: {known.files['images']} has no {', '.join(missing)}. Write the dataset again."
            )
        maps = read_maps(self.folder, known.files, self.maps)
        if self.view == "person":
            crop = _person_crop(known.boxes_xywh[0], self.size_hw)
        else:
            crop = _image_crop(known.size_hw, self.size_hw)
        if augment is not None:
            crop = _random_crop(crop, augment, torch.Generator().manual_seed(seed))
        return _crop_image(maps, known, crop)


class FolderBatches:
    """Endless batches of a dataset, prefetched by threads.

    Args:
        people: The dataset.
        config: The configuration of a run: seed, batch size, augmentation and number of threads.
        device: Device of the batches.
        processes: Number of processes, which take turns: the distance between the batch numbers of one.
    """

    def __init__(
        self, people: PeopleFolder, config: TrainConfig, *, device: torch.device | str = "cpu", processes: int = 1
    ) -> None:
        self.people, self.seed, self.data = people, config.seed, config.data
        self.device, self.processes = torch.device(device), processes
        workers = config.data.workers
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="crops") if workers else None
        self.pending: dict[int, Future[LabeledImages]] = {}
        self.order = functools.lru_cache(maxsize=4)(self._order)

    def batch(self, step: int) -> dict[str, LabeledImages]:
        """Return the batch of a number, counted from 0 over all processes and accumulated steps."""
        images = (self._read(step) if self.pool is None else self._prefetch(step, self.pool)).to(self.device)
        augment = self.data.augment
        if augment.color or augment.gray:
            seed = derive_seed(self.seed, RandomStream.FOLDER_COLOR, step)
            rng = Rng(torch.Generator().manual_seed(seed), self.device)
            images = photometric(images, rng, Photometric.colors_only(augment.color, augment.gray))
        return {"image": images}

    def _read(self, step: int) -> LabeledImages:
        """Read the crops of a batch, on the CPU."""
        crops = []
        for position in range(step * self.data.batch_size, (step + 1) * self.data.batch_size):
            epoch, rank = divmod(position, len(self.people))
            seed = derive_seed(self.seed, RandomStream.FOLDER_CROP, position)
            crops.append(self.people.read(self.order(epoch)[rank], augment=self.data.augment, seed=seed))
        return LabeledImages.cat(crops)

    def close(self) -> None:
        """Stop the threads."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def _order(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, RandomStream.FOLDER_ORDER, epoch))
        order: list[int] = torch.randperm(len(self.people), generator=generator).tolist()
        return order

    def _prefetch(self, step: int, pool: ThreadPoolExecutor) -> LabeledImages:
        wanted = [step + number * self.processes for number in range(self.data.workers + 1)]
        for number in wanted:
            if number not in self.pending:
                self.pending[number] = pool.submit(self._read, number)
        for number in set(self.pending) - set(wanted):
            self.pending.pop(number).cancel()
        return self.pending.pop(step).result()


def _read_entries(folder: Path, view: str) -> list[_Annotations]:
    """Read annotations: an entry for each person who is large enough, or for each image."""
    path = folder / ANNOTATIONS_FILE
    if not path.is_file():
        raise InputError(
            f"{folder}: expected a dataset with {ANNOTATIONS_FILE}, got none. Write one with: vitruvian synthesize "
            "--count 1000 --out FOLDER"
        )
    table = read_json_object(path)
    try:
        people: dict[object, list[JsonObject]] = {image["id"]: [] for image in table["images"]}
        for person in table["annotations"]:
            people[person["image_id"]].append(person)
        entries = []
        for image in table["images"]:
            members = people[image["id"]]
            large = [person for person in members if min(person["bbox"][2:]) >= _MIN_SIDE]
            if view == "person":
                entries += [_read_entry(image, members, subject) for subject in large]
            else:
                subject = max(large, key=lambda person: float(person["area"]), default=None)
                entries.append(_read_entry(image, members, subject))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RuntimeError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path}: not a valid COCO file: {reason}. Write the dataset again.") from error
    if not entries:
        raise InputError(f"{folder}: expected people in its images, got none. Write another dataset.")
    return entries


def _read_entry(image: JsonObject, people: Sequence[JsonObject], subject: JsonObject | None) -> _Annotations:
    """Read an image and its people; `subject` is one of them, or None."""
    for person in people:
        if len(person["keypoints"]) != 3 * NUM_KEYPOINTS:
            raise CheckpointError(
                f"keypoints: expected {3 * NUM_KEYPOINTS} numbers for each person, got {len(person['keypoints'])}. "
                "Write the dataset again."
            )
    first = subject or {"keypoints": [0.0] * (3 * NUM_KEYPOINTS), "area": 0.0}
    order = [*([] if subject is None else [subject]), *(person for person in people if person is not subject)]
    return _Annotations(
        files={kind: str(image[f"{kind}_file"]) for kind in MAPS if f"{kind}_file" in image}
        | {"images": str(image["file_name"])},
        size_hw=(int(image["height"]), int(image["width"])),
        intrinsics=torch.tensor(image["intrinsics"], dtype=torch.float32),
        boxes_xywh=torch.tensor([person["bbox"] for person in order], dtype=torch.float32).reshape(-1, 4),
        keypoints=torch.tensor(first["keypoints"], dtype=torch.float32).view(NUM_KEYPOINTS, 3),
        stature_m=float(first.get("stature", 0.0)),
        area=float(first["area"]),
    )


# ------------------------------------------------------------------------------------------------------------ crops
# Colors are interpolated, labels are not; camera, keypoints and boxes are transformed exactly.

_ONE_SURFACE = 0.02  # depths that differ by less than this share are interpolated


def _person_crop(box_xywh: Tensor, size_hw: SizeHW) -> CropWindow:
    """Return the crop around a person [4] that `Sapiens2ImageProcessor` cuts out too."""
    center_xy, size_wh = crop_windows(box_xywh[None], size_hw)  # [1, 2] each
    step = size_wh / torch.tensor([size_hw[1] - 1, size_hw[0] - 1])
    return CropWindow(center_xy - size_wh / 2, step, torch.zeros(1, dtype=torch.bool), size_hw)


def _image_crop(source_hw: SizeHW, size_hw: SizeHW) -> CropWindow:
    """Return the crop that shows a whole image, as large as possible, centered."""
    inner = fit_inside_hw(source_hw, size_hw)
    step = torch.tensor([[source_hw[1] / inner[1], source_hw[0] / inner[0]]])  # [1, 2]
    margin = torch.tensor([[(size_hw[1] - inner[1]) // 2, (size_hw[0] - inner[0]) // 2]])
    return CropWindow((0.5 - margin) * step - 0.5, step, torch.zeros(1, dtype=torch.bool), size_hw, centered=False)


def _random_crop(crop: CropWindow, augment: AugmentConfig, generator: torch.Generator) -> CropWindow:
    """Zoom about the middle, shift and mirror a crop at random."""
    draw = 2 * torch.rand(4, generator=generator) - 1
    scale = math.exp(float(draw[0]) * math.log1p(augment.scale))
    size = torch.tensor([crop.size_hw[1], crop.size_hw[0]])
    middle = (size - 1) / 2
    start = crop.start_xy + crop.step_xy * (middle - (middle + draw[1:3] * augment.shift * size) / scale)
    return replace(crop, start_xy=start, step_xy=crop.step_xy / scale, flipped=(draw[3:] + 1) / 2 < augment.flip)


def _crop_image(maps: ImageMaps, known: _Annotations, crop: CropWindow) -> LabeledImages:
    """Crop an image with its ground truth (B = 1)."""

    def sample(values: Tensor, *, mode: str = "bilinear") -> Tensor:
        return crop.sample(values[None], mode=mode, antialias=mode == "bilinear")  # [1, C, H, W]

    cropped = {"image": sample(maps["image"] / 255)}
    if "matte" in maps:
        cropped["alpha"] = sample(maps["matte"][3:])
        cropped["foreground"] = sample(maps["matte"][:3] * maps["matte"][3:])
    if "parts" in maps:
        cropped["parts"] = crop.sample_parts(maps["parts"][None, None])
        if "albedo" in maps:
            covered = (maps["parts"] > 0)[None].float()
            mean = sample(maps["albedo"] * covered) / sample(covered).clamp_min(1e-3)
            cropped["albedo"] = torch.where(cropped["parts"] > 0, mean.clamp(0, 1), 0.0)
    if "normals" in maps:
        nearest = sample(maps["depth"][None], mode="nearest")  # [1, 1, H, W]
        cropped["depth"] = _interpolate_depth(maps["depth"][None, None], nearest, crop)
        cropped["normals"] = crop.sample_normals(maps["normals"][None], antialias=True) * (nearest > 0)
    boxes = torch.cat([known.boxes_xywh[:, :2], known.boxes_xywh[:, :2] + known.boxes_xywh[:, 2:]], dim=1)
    return LabeledImages(
        valid=sample(torch.ones(1, *maps["image"].shape[1:]), mode="nearest") > 0,
        intrinsics=crop.camera(known.intrinsics[None]),
        keypoints=crop.move_keypoints(known.keypoints[None]),
        boxes_xyxy=crop.move_boxes(boxes[None]),
        stature_m=torch.tensor([known.stature_m]),
        area=known.area / crop.step_xy.prod(dim=1),
        **cropped,
    )


def _interpolate_depth(depth: Tensor, nearest: Tensor, crop: CropWindow) -> Tensor:
    """Interpolate depth [1, 1, H, W] along surfaces; across edges and outlines keep the `nearest` [1, 1, h, w]."""
    covered = (depth > 0).float()
    inverse = crop.sample(covered / depth.clamp_min(1e-6))  # 1 / depth is linear across a plane, depth is not
    mean = crop.sample(covered) / inverse.clamp_min(1e-6)
    return torch.where((mean - nearest).abs() < _ONE_SURFACE * nearest, mean, nearest)
