"""The demo: people detected in a few images, every task about people on them, and one contact sheet of all results.

    images ─▶ detector ─▶ people ─┬▶ pose ─▶ files, a drawing
                                  ├▶ parts ─▶ …                   ──▶ sheet.png: a row per image, a column per task
                                  └▶ normals, pointmap, matte, albedo

Runs the built-in model or any checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian import hub
from vitruvian.auto import AutoConfig
from vitruvian.draw import contact_sheet, draw_boxes
from vitruvian.errors import InputError, check_names
from vitruvian.files import write_image
from vitruvian.filesystem.output_paths import DistinctNames, output_path, safe_name
from vitruvian.images.types import RgbImage
from vitruvian.models.sapiens2.multitask_checkpoint import local_heads
from vitruvian.pipelines import pipeline
from vitruvian.pipelines.people.detectors import DetectorSpec, PeopleDetector, detect_people, open_detector
from vitruvian.pipelines.save_option import save_as
from vitruvian.pipelines.sources import Failure, Frame, open_source
from vitruvian.tasks import TASKS, file_extension

DEMO_TASKS = tuple(task.name for task in TASKS.values() if task.sapiens2_head and task.has_pipeline)
_IMAGES_FOLDER = hub.BUILTIN_FOLDER  # the example images are in the folder of the model
_TITLES = {"parts": "body parts", "pointmap": "depth of 3D points"}
_ROW_HEIGHT, _MARGIN = 360, 12  # pixels of the contact sheet
Checkpoint = str | Path


@dataclass(frozen=True)
class DemoReport:
    """What the demo wrote.

    Attributes:
        sheet: The contact sheet.
        files: Every file, including the sheet.
        people: Number of detected people.
        seconds: Duration.
        failures: Images that could not be read, and the errors.
    """

    sheet: Path
    files: list[Path]
    people: int
    seconds: float
    failures: dict[str, Exception] = field(default_factory=dict)


def run_demo(
    images: object = None,
    out: str | Path = "out/demo",
    *,
    model: Checkpoint | Mapping[str, Checkpoint] | None = None,
    detect: DetectorSpec | None = None,
    device: str | None = None,
    dtype: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> DemoReport:
    """Detect people, run every task about people on them, and write the results and a contact sheet into a folder.

    Args:
        images: Any source of images; by default those that ship with the package.
        out: The folder; it is created if missing.
        model: ``"builtin"``, the default; a folder of the same format; the folder of a training run, with a folder
            for each task; a checkpoint of one task, by its path or Hub name; or a mapping of tasks to checkpoints.
        detect: People detector, as `open_detector` takes it; by default the model itself if it detects people, else the
            built-in detector.
        device: Device of the models; by default the best one available.
        dtype: Data type of their weights.
        progress: Called with a line of text after each step.
    """
    start, folder, say = time.perf_counter(), Path(out).expanduser(), progress or (lambda _: None)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder to write into, got a file. Choose another.")
    models = _demo_models(hub.BUILTIN if model is None else model)
    if detect is None:
        detect = next((name for name in models.values() if "people" in local_heads(name)), hub.BUILTIN)
    detector = open_detector(detect, device=device, dtype=dtype)
    frames, failures = _read_images(_demo_images() if images is None else images)
    names = DistinctNames()
    rows = [_Row(frame, folder, names.add(safe_name(Path(frame.name.partition("?")[0]).stem))) for frame in frames]
    folder.mkdir(parents=True, exist_ok=True)
    people = sum(row.detect(detector) for row in rows)
    say(f"people: {people} found in {len(rows)} {'image' if len(rows) == 1 else 'images'}")
    for task, source in models.items():
        pipe = pipeline(task, source, device=device, dtype=dtype)
        for row in rows:
            row.run(task, pipe)
        extensions = map(file_extension, TASKS[task].default_image_formats)
        say(f"{task}: {', '.join(str(folder / f'*_{task}{extension}') for extension in extensions)}")
    sheet_path = folder / "sheet.png"
    write_image(sheet_path, _draw_sheet(rows))
    files = [*(path for row in rows for path in row.files), sheet_path]
    return DemoReport(sheet_path, files, people, time.perf_counter() - start, failures)


class _Row:
    """An image of the demo: its people, the files that were written, and the drawings for the sheet."""

    def __init__(self, frame: Frame, folder: Path, stem: str) -> None:
        self.frame, self.folder, self.stem = frame, folder, stem
        self.boxes: NDArray[np.float32] = np.zeros((0, 4), np.float32)  # people [P, 4]
        self.drawings: dict[str, RgbImage] = {"people": frame.image}
        self.files: list[Path] = []

    def detect(self, detector: PeopleDetector) -> int:
        """Detect the people, and draw their boxes; return their number."""
        image, source = self.frame.image, str(self.frame.path or self.frame.name)
        people = detect_people(detector, image, source=source, on_empty="none")
        self.boxes = people.boxes_xyxy
        self.drawings["people"] = draw_boxes(image, people.boxes_xyxy, scores=people.scores.tolist())
        self.files.append(output_path(self.folder, self.stem, "_people.png"))
        write_image(self.files[-1], self.drawings["people"])
        return len(people)

    def run(self, task: str, pipe: Any) -> None:
        """Run a task, write its files and draw it."""
        result = pipe(self.frame, **({"boxes": self.boxes} if len(self.boxes) else {"detect": "whole"}))
        for file_format in TASKS[task].default_image_formats:
            self.files.append(output_path(self.folder, self.stem, f"_{task}{file_extension(file_format)}"))
            save_as(file_format, result, self.files[-1], draw=lambda result: result.plot())
        # A legend would be too small to read on the sheet.
        self.drawings[task] = np.asarray(result.plot_frame().convert("RGB"))


def _draw_sheet(rows: list[_Row]) -> RgbImage:
    """Draw the contact sheet."""
    columns = ["people", *(name for name in TASKS if name in rows[0].drawings and name != "people")]
    drawn = contact_sheet(
        [[row.drawings[column] for column in columns] for row in rows],
        titles=[_TITLES.get(column, column) for column in columns],
        row_titles=[row.stem for row in rows],
        height=_ROW_HEIGHT,
    )
    return np.pad(drawn, ((_MARGIN, _MARGIN), (_MARGIN, _MARGIN), (0, 0)), constant_values=255)


def _demo_models(model: Checkpoint | Mapping[str, Checkpoint]) -> dict[str, Checkpoint]:
    """Return the checkpoint of each task that has one, in the order of the demo."""
    if isinstance(model, Mapping):
        models: dict[str, Checkpoint] = dict(model)
        check_names("model", models, DEMO_TASKS)
    elif heads := local_heads(hub.local_path(model) if hub.is_builtin(model) else model):
        models = {task: model for task in DEMO_TASKS if TASKS[task].sapiens2_head in heads}
    else:
        models = _models_of_run(model) or dict.fromkeys(_tasks_of_checkpoint(model), model)
    if not models:
        raise InputError(f"model: expected checkpoints for {', '.join(DEMO_TASKS)}, got none of these in {model}.")
    return {task: models[task] for task in DEMO_TASKS if task in models}


def _models_of_run(model: Checkpoint) -> dict[str, Checkpoint]:
    """Return the models in the folder of a training run; empty for anything else."""
    folder = Path(model).expanduser()
    folder = folder / "model" if (folder / "model").is_dir() else folder
    folders = {task: folder / task for task in DEMO_TASKS}
    return {task: path for task, path in folders.items() if (path / hub.CONFIG_FILE).is_file()}


def _tasks_of_checkpoint(model: Checkpoint) -> list[str]:
    """Return the tasks of a checkpoint for one task, from its architectures."""
    named = [str(name) for name in AutoConfig.from_pretrained(model).to_dict().get("architectures") or []]
    return [task for task in DEMO_TASKS if any(cls.__name__ in named for cls in TASKS[task].pipeline_class().accepts())]


def _demo_images() -> list[Path]:
    """Return the images that ship with the package."""
    return sorted(_IMAGES_FOLDER.glob("*.jpg"))


def _read_images(source: object) -> tuple[list[Frame], dict[str, Exception]]:
    """Read all images of a source; return them and the errors of unreadable ones. At least one must be readable."""
    read = list(open_source(source))
    frames = [frame for frame in read if isinstance(frame, Frame)]
    failures = {frame.name: frame.error for frame in read if isinstance(frame, Failure)}
    if not frames:
        raise next(iter(failures.values()), InputError("images: expected at least one image, got none."))
    return frames, failures
