"""Accuracy and speed of the built-in model, next to its goals.

    python benchmarks/builtin_accuracy.py [--model builtin] [--pack people-pack.npz] [--photos ../shared/photos]

Synthetic people use the bodies, clothes and poses of a pack that are held out from training (`held_out_split`) and
other seeds, without augmentation. Photographs are cropped by their annotated boxes. Except for times, numbers are the
same in every run. Without the pack or the photographs their table is skipped. Prints a table for synthetic people, one
for photographs and one of times, each number next to its goal, then the missed goals, whose number is the exit code.
It takes about a quarter of an hour on two cores, most of it for the 512 people. With 128 it takes a third of that, and
the mean IoU varies by ±0.02 because of rare parts.

Silhouettes in photographs: inside a person's box, pixels of any part compared with the union of all people's masks; the
score against the person's mask alone is printed too. Crowds and boxes of fewer than 32 × 32 pixels (COCO's "small") are
skipped. Keypoints: the labelled ones. Detection: people taller than a quarter of the image; crowds are ignored.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F

from vitruvian import Sapiens2ImageProcessor, load_image, pipeline
from vitruvian.bench.timing import time_interleaved
from vitruvian.hub import BUILTIN
from vitruvian.human import LAYOUTS, PART_NAMES
from vitruvian.images import crop_windows
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.ops.heatmap_peaks import decode_heatmaps
from vitruvian.ops.interpolate import bilinear
from vitruvian.pipelines.people import detect_people, open_detector
from vitruvian.training.datasets.compose import CropSampling, compose_crops
from vitruvian.training.datasets.labels import LabeledImages, normalize, to_model_axes
from vitruvian.training.evaluation import (
    PCK,
    AngularError,
    BoxAP,
    ForegroundIoU,
    Goal,
    MattingError,
    MeanIoU,
    PointError,
    ScoreReport,
    box_length,
    layout_groups,
)
from vitruvian.training.synthetic.asset_pack import held_out_split, load_pack
from vitruvian.training.synthetic.camera import points_from_depth
from vitruvian.training.synthetic.render import RenderOptions
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.synthetic.samples import Samples, render_samples
from vitruvian.training.synthetic.textures import build_pyramid

HELD_OUT = 1_000_000_000  # training uses smaller seeds
SYNTHETIC = [
    Goal("parts", "mean_iou", at_least=0.70),
    Goal("silhouette", "mean_iou", at_least=0.95),
    Goal("normals", "mean", at_most=15.0),
    Goal("keypoints", "per_group.body, feet, hands@0.1", at_least=0.85),
    Goal("matte", "mse", at_most=0.01),
    Goal("points", "relative_distance", at_most=0.05),
]
REAL = [
    Goal("silhouette", "mean_iou", at_least=0.75),
    Goal("keypoints", "pck@0.2", at_least=0.65),
    Goal("people", "recall@0.5", at_least=0.6),
]
TASKS = ("pose", "parts", "normals", "pointmap", "matte", "albedo")
FROM_SHELL = "{} from the shell"
SPEED = [Goal("seconds", task, at_most=0.3) for task in TASKS]
SPEED += [Goal("seconds", FROM_SHELL.format(task), at_most=2.5) for task in TASKS]
# ------------------------------------------------------------------------------------------------- synthetic people


def synthetic_report(
    model: Sapiens2MultiTask, pack_path: Path, count: int, *, device: str = "cpu", batch: int = 8
) -> ScoreReport:
    """Score all tasks on held-out synthetic people."""
    pack = held_out_split(load_pack(pack_path)).to(device)
    pyramid = build_pyramid(pack.textures)
    model = model.to(device)
    options = CropSampling.plain()
    hands = ("body", "feet", "left_hand", "right_hand")
    groups = layout_groups("sapiens308")
    chosen = {"body, feet, hands": [point for name in hands for point in groups[name]], **groups}
    parts = MeanIoU(len(PART_NAMES))
    silhouette = ForegroundIoU(threshold=0.0)
    normals, matte, points = AngularError(), MattingError(), PointError(alignment="scale")
    depth = PointError(alignment="scale")  # with directions from the known camera, which leaves the depth
    labelled = PCK("sapiens308", groups=chosen)
    for start in track(range(0, count, batch), "synthetic people", console=Console(stderr=True)):
        some = render_samples(
            pack,
            min(batch, count - start),
            seed=HELD_OUT + start,
            options=RenderOptions(chunk=batch),
            pyramid=pyramid,
        )
        rng = Rng(torch.Generator().manual_seed(start), torch.device(device))
        crops = compose_crops(some, pack.scenery.backgrounds, rng=rng, options=options)
        size_hw = crops.size_hw
        with torch.inference_mode():
            out: Any = model(normalize(crops.image), tasks=["seg", "normal", "matting", "pointmap", "pose"])
        logits = out["seg"].logits.float()
        labels = bilinear(logits, size_hw).argmax(1)  # [n, H, W]
        parts.update(labels, crops.parts[:, 0])
        silhouette.update(labels, crops.parts[:, 0] > 0)
        normals.update(bilinear(out["normal"].normals.float(), size_hw), to_model_axes(crops.normals))
        matte.update(bilinear(out["matting"].alphas.float(), size_hw)[:, 0].clamp(0, 1), crops.alpha[:, 0].clamp(0, 1))
        known = crops.depth[:, 0] > 0  # [n, H, W]
        found = bilinear(out["pointmap"].pointmaps.float(), size_hw)
        points.update(found, crops.points, mask=known, length=crops.stature_m)
        along = points_from_depth(found[:, 2], crops.intrinsics)
        depth.update(along, crops.points, mask=known, length=crops.stature_m)
        labelled.update(
            crop_keypoints(out["pose"].heatmaps, size_hw),
            crops.keypoints[..., :2],
            reference=box_lengths(some, crops),
            mask=crops.keypoints[..., 2] > 0,
        )
    report = ScoreReport(f"{count} held-out synthetic people", goals=SYNTHETIC)
    scores = parts.compute()
    present = np.isfinite(scores.accuracy)  # classes that occur in the labels
    report.add(
        "parts",
        {
            "mean_iou": float(np.nanmean(scores.iou[present])),
            "classes": int(present.sum()),
            "pixel_accuracy": scores.pixel_accuracy,
            "iou": {name: float(value) for name, value in zip(PART_NAMES, scores.iou, strict=True)},
        },
    )
    metrics = {"silhouette": silhouette, "normals": normals, "keypoints": labelled, "matte": matte, "points": points}
    for name, metric in {**metrics, "points, camera known": depth}.items():
        report.add(name, metric.compute())
    return report


def crop_keypoints(heatmaps: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """Return keypoints [n, J, 2] in pixels of the crop."""
    xy, _ = decode_heatmaps(heatmaps)
    return xy * xy.new_tensor(
        [(size_hw[1] - 1) / (heatmaps.shape[-1] - 1), (size_hw[0] - 1) / (heatmaps.shape[-2] - 1)]
    )


def box_lengths(samples: Samples, crops: LabeledImages) -> Tensor:
    """Return the larger side of people's boxes [n], in pixels of the crop."""
    width, height = samples.boxes_xywh[:, 2:].unbind(1)
    H, W = crops.image.shape[-2:]
    shown = torch.maximum(height * 1.25, width * 1.25 * H / W)  # source pixels that the crop's height spans
    return torch.maximum(width, height) * H / shown


# ------------------------------------------------------------------------------------------------- photographs


@dataclass
class Person:
    """One annotation of a person."""

    box_xywh: tuple[float, float, float, float]
    mask: np.ndarray[Any, np.dtype[np.bool_]]  # [H, W]
    crowd: bool
    keypoints: np.ndarray[Any, np.dtype[np.float64]]  # [17, 3]; zeros if not labelled


@dataclass
class Photo:
    """A photograph with its people."""

    image: np.ndarray[Any, np.dtype[np.uint8]]
    people: list[Person] = field(default_factory=list)

    @property
    def boxes_xyxy(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Boxes of the people [M, 4]."""
        boxes = np.array([person.box_xywh for person in self.people], float).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        return boxes


def read_photos(root: Path) -> Iterator[Photo]:
    """Read all photographs with people and their annotations."""
    from pycocotools import mask as coco_mask

    for file in ("coco/instances.json", "wholebody/keypoints.json", "wholebody/wholebody.json"):
        table = json.loads((root / file).read_text())
        for record in sorted(table["images"], key=lambda record: record["id"]):
            path = (root / file).parent / record["file_name"]
            image = np.asarray(load_image(path if path.exists() else path.parent / "images" / path.name))
            photo = Photo(image)
            for entry in table["annotations"]:
                if entry["image_id"] != record["id"] or entry["category_id"] != 1:
                    continue
                shape = entry["segmentation"]
                if isinstance(shape, list):
                    shape = coco_mask.merge(coco_mask.frPyObjects(shape, *image.shape[:2]))
                elif isinstance(shape["counts"], list):
                    shape = coco_mask.frPyObjects(shape, *image.shape[:2])
                points = np.array(entry.get("keypoints") or [0] * 51, float).reshape(17, 3)
                mask = coco_mask.decode(shape).astype(bool)
                photo.people.append(Person(tuple(entry["bbox"]), mask, bool(entry["iscrowd"]), points))
            yield photo


def photo_report(
    model: Sapiens2MultiTask, processor: Sapiens2ImageProcessor, root: Path, source: str, threshold: float | None
) -> ScoreReport:
    """Score silhouettes, keypoints and person detection in photographs."""
    detector = open_detector(source, device="cpu", threshold=threshold)
    union, person_mask = (ForegroundIoU(threshold=0.0) for _ in range(2))
    matte = ForegroundIoU()
    accuracy = PCK("coco17", thresholds=(0.1, 0.2))
    detection = BoxAP(thresholds=(0.5,), min_height=0.25)
    photos = 0
    for photo in read_photos(root):
        photos += 1
        people = detect_people(detector, photo.image, on_empty="none")
        detection.update(
            people.boxes_xyxy,
            people.scores,
            photo.boxes_xyxy,
            crowd=[person.crowd for person in photo.people],
            size_hw=photo.image.shape[:2],
        )
        everyone = np.any([person.mask for person in photo.people], axis=0) if photo.people else None
        chosen = [
            person
            for person in photo.people
            if not person.crowd
            and (person.box_xywh[2] * person.box_xywh[3] >= 32 * 32 or (person.keypoints[:, 2] > 0).any())
        ]
        for start in range(0, len(chosen), 8):
            some = chosen[start : start + 8]
            wanted = [[list(person.box_xywh) for person in some]]
            pixels = processor(photo.image, boxes=wanted, return_tensors="pt")["pixel_values"]
            with torch.inference_mode():
                out: Any = model(pixels, tasks=["seg", "matting", "pose"])
            logits = out["seg"].logits.float()
            margins = foreground_margin(logits)  # [n, h, w]
            poses = processor.post_process_pose_estimation(out["pose"], boxes=wanted)[0]
            for number, person in enumerate(some):
                if person.box_xywh[2] * person.box_xywh[3] >= 32 * 32:
                    area, inside = in_box(margins[number], person, processor, photo.image.shape[:2])
                    _, alpha = in_box(out["matting"].alphas[number, 0], person, processor, photo.image.shape[:2])
                    union.update(inside, everyone[area])
                    person_mask.update(inside, person.mask[area])
                    matte.update(alpha, everyone[area])
                points, _ = LAYOUTS["coco17"].convert(poses[number]["keypoints"], poses[number]["scores"])
                x, y, w, h = person.box_xywh
                accuracy.update(
                    points,
                    person.keypoints[:, :2],
                    reference=box_length([[x, y, x + w, y + h]], side="larger", factor=0.5),
                    mask=person.keypoints[:, 2] > 0,
                )
    report = ScoreReport(f"{photos} photographs with annotated boxes", goals=REAL)
    metrics = {"silhouette": union, "silhouette, person's mask": person_mask, "silhouette of matte": matte}
    for name, metric in {**metrics, "keypoints": accuracy, "people": detection}.items():
        report.add(name, metric.compute())
    return report


def foreground_margin(logits: Tensor) -> Tensor:
    """Return the margin of the best part over the background: [n, K, h, w] -> [n, h, w]."""
    return logits[:, 1:].amax(1) - logits[:, 0]


def in_box(
    values: Tensor, person: Person, processor: Sapiens2ImageProcessor, size_hw: tuple[int, int]
) -> tuple[tuple[slice, slice], Tensor]:
    """Sample a crop's map [h, w] at the pixels of the person's box: their slices, and the values."""
    x, y, w, h = person.box_xywh
    columns = torch.arange(max(0, round(x)), min(size_hw[1], max(round(x + w), round(x) + 1)))
    rows = torch.arange(max(0, round(y)), min(size_hw[0], max(round(y + h), round(y) + 1)))
    (center_xy,), (size_wh,) = crop_windows(torch.tensor([person.box_xywh]), processor.size_hw)
    H, W = processor.size_hw
    u = ((columns - center_xy[0]) / size_wh[0] + 0.5) * (W - 1)  # pixels of the crop
    v = ((rows - center_xy[1]) / size_wh[1] + 0.5) * (H - 1)
    grid = torch.stack(torch.broadcast_tensors((2 * u + 1) / W - 1, ((2 * v + 1) / H - 1)[:, None]), dim=-1)
    read = F.grid_sample(values.float()[None, None], grid[None], padding_mode="border", align_corners=False)[0, 0]
    return (slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)), read


# ------------------------------------------------------------------------------------------------- time


def speed_report(source: str, image: Path) -> ScoreReport:
    """Time every task on one person, in Python and as a command: medians of seven."""
    report = ScoreReport(f"seconds on {torch.get_num_threads()} threads, one person", goals=SPEED)
    pipes = {task: pipeline(task, source, device="cpu", detect="whole") for task in TASKS}
    calls: dict[str, Callable[[], Any]] = {task: functools.partial(pipe, str(image)) for task, pipe in pipes.items()}
    with tempfile.TemporaryDirectory() as folder:
        rest = [str(image), "--model", source, "--device", "cpu", "--out", folder, "--overwrite", "--quiet"]
        whole = ["--detect", "whole"]
        commands = {FROM_SHELL.format(task): ["-m", "vitruvian", task, *rest, *whole] for task in TASKS}
        commands["pose, with detection"] = ["-m", "vitruvian", "pose", *rest]
        commands["import torch, for comparison"] = ["-c", "import torch"]
        for name, command in commands.items():
            calls[name] = functools.partial(subprocess.run, [sys.executable, *command], check=True)
        times = time_interleaved(calls, device=torch.device("cpu"), seconds=60.0, rounds=7)
    report.add("seconds", {name: timing.median / 1e3 for name, timing in times.items()})
    return report


def main() -> int:
    """Print the reports; return the number of missed goals."""
    here = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=BUILTIN, help="builtin, or a folder packed like it")
    parser.add_argument("--pack", type=Path, default=here.parent / "people-pack.npz", help="assets of synthetic people")
    parser.add_argument("--photos", type=Path, default=here.parent / "shared" / "photos")
    parser.add_argument("--count", type=int, default=512, help="synthetic people; 128 are faster and less precise")
    parser.add_argument("--threshold", type=float, help="minimum score of detected people")
    parser.add_argument("--out", type=Path, help="folder for the numbers as JSON")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--device", default="cpu", help="device for synthetic people")
    parser.add_argument("--no-speed", action="store_true", help="skip times")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(soft_wrap=True)
    model = Sapiens2MultiTask.from_pretrained(options.model)
    processor = Sapiens2ImageProcessor.from_pretrained(options.model)
    reports: dict[str, ScoreReport] = {}
    if options.pack.is_file():
        reports["synthetic"] = synthetic_report(model, options.pack, options.count, device=options.device)
        model = model.to("cpu")
    else:
        console.print(f"{options.pack}: no such file; synthetic people are skipped. Name a pack with --pack.")
    if options.photos.is_dir():
        reports["photos"] = photo_report(model, processor, options.photos, options.model, options.threshold)
    else:
        console.print(f"{options.photos}: no such folder; photographs are skipped. Name one with --photos.")
    if not options.no_speed:
        reports["speed"] = speed_report(options.model, here / "src" / "vitruvian" / "builtin" / "standing.jpg")
    missed = 0
    for name, report in reports.items():
        console.print(report)
        missed += len(report.missed())
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            report.save(options.out / f"{name}.json")
    goals = sum(len(report.goals) for report in reports.values())
    console.print(f"{goals - missed} of {goals} goals met.")
    for report in reports.values():
        for goal in report.missed():
            console.print(f"missed: {report.title}: {goal.task} {goal.metric} {goal}", markup=False)
    return missed


if __name__ == "__main__":
    sys.exit(main())
